"""How log lines look: one line each on standard error, with time, level and message.

Libraries log tracebacks, tables and, while Kafka is away, dozens of lines a second; here each
becomes one line, and aiokafka says a thing once while it goes on. Knows only logging.
"""

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

log = logging.getLogger("shufflebandit")

_FRAMES = 3  # innermost ones of an error: where it happened, and who asked
# Messages that are remembered so as not to be said again at once; then memory is begun anew.
_MAX_DISTINCT = 1000


def describe(error: BaseException) -> str:
    """An error and the innermost places that it came through, in one line."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{Path(code.co_filename).name}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    where = f" ({' < '.join(places[: -_FRAMES - 1 : -1])})" if places else ""
    return f"{type(error).__name__}: {error}{where}"


class LineFormatter(logging.Formatter):
    """One line per record, whatever is in it."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, message."""
        return " ".join(super().format(record).split())

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """The error without its traceback."""
        return "" if ei[1] is None else describe(ei[1])


class RateLimit(logging.Filter):
    """Lets a message of a library through only if it did not come within the last period."""

    def __init__(
        self, library: str, period_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(library)
        self._period_s = period_s
        self._clock = clock
        self._last: dict[Any, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged; records of others always are."""
        if not super().filter(record):
            return True
        now = self._clock()
        # The message before its arguments: ports, offsets and counts do not make it another one.
        known = now - self._last.get(record.msg, -self._period_s) < self._period_s
        if len(self._last) >= _MAX_DISTINCT:
            self._last.clear()
        self._last[record.msg] = now
        return not known


def setup() -> None:
    """Log to standard error; the frameworks only when something is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(RateLimit("aiokafka"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name, level in (("aiokafka", "WARNING"), ("faust", "ERROR"), ("mode", "CRITICAL")):
        logging.getLogger(name).setLevel(level)
