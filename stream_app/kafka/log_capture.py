"""What aiokafka's log may say: nothing twice while a start may fail, and never a request.

Knows only logging. Importing it is enough to keep requests out of every log.
"""

import logging
import ssl
from typing import Final


class StartupLogCapture(logging.Handler):
    """Keeps aiokafka's own lines back while a start may fail: the error says it in one line.

    aiokafka tells refused credentials and certificates only in its log, so the lines are looked
    through for that. Starts overlap: the first one mutes, the last one unmutes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logger = logging.getLogger("aiokafka")
        self._starts = 0
        self.refused = False
        self.certificate = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Note what the line tells of credentials and certificates."""
        self.refused = self.refused or "uthentication" in record.getMessage()
        for argument in record.args or ():
            if isinstance(argument, ssl.SSLCertVerificationError):
                self.certificate = argument.verify_message

    def __enter__(self) -> None:
        if self._starts == 0:
            self.refused = False
            self.certificate = ""
            self._logger.addHandler(self)
            self._logger.propagate = False
        self._starts += 1

    def __exit__(self, *_: object) -> None:
        self._starts -= 1
        if self._starts == 0:
            self._logger.removeHandler(self)
            self._logger.propagate = True


STARTUP_LOG: Final = StartupLogCapture()


def _above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


# At level debug these show whole requests and values: reports, and under SASL PLAIN the password.
for _talkative in ("aiokafka.conn", "aiokafka.producer.producer"):
    logging.getLogger(_talkative).addFilter(_above_debug)
