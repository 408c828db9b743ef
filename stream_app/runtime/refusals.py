"""What a stage does not accept: counted, and named in the log, but not without end."""

import logging

# Different ones that are named: more than an operator reads, few enough for any disk.
_MOST = 1_000


class Refusals:
    """Bad records of a partition. Whoever may write them could also try to fill the log."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._named = set[str]()
        self.count = 0

    def add(self, what: str, why: str) -> None:
        """Count a refusal; name it once."""
        self.count += 1
        if what not in self._named and len(self._named) < _MOST:
            self._named.add(what)
            self._log.warning("refused %s: %s", what, why)
