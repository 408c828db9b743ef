"""Who may come in: open connections, streams and rates. Nothing here knows an address.

A connection's allowance is forgotten with the connection. Limits per address belong to the load
balancer in front, which has to know addresses anyway.
"""

import resource
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from stream_app.gateway.reports import MAX_REPORTS
from stream_app.logs import log
from stream_app.settings import GatewaySettings

_OTHER_FILES = 200  # of the process: Kafka's connections, pipes, libraries


def room(wanted: int) -> int:
    """How many of so many connections fit; raises the limit of open files as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, allowed - _OTHER_FILES)


def fitting(settings: GatewaySettings) -> GatewaySettings:
    """With as many connections as the limit of open files allows."""
    fits = room(settings.max_connections)
    if fits < settings.max_connections:
        log.warning(
            "gateway: only %d connections fit, not %d: raise the limit of open files (ulimit -n)",
            fits,
            settings.max_connections,
        )
    return replace(settings, max_connections=fits)


class Connection(Protocol):
    """One connection."""

    def force_close(self) -> None:
        """End it now."""


class Bucket:
    """A token bucket: `rate` a second, at most a second's worth (or one full request) at once."""

    __slots__ = ("_most", "_rate", "_tokens", "_when")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._most = max(rate, float(MAX_REPORTS))
        self._tokens = self._most
        self._when = now

    def lacks(self, tokens: int, now: float) -> float:
        """Seconds until so many tokens are there; 0 if they are."""
        self._tokens = min(self._most, self._tokens + (now - self._when) * self._rate)
        self._when = now
        return max(0.0, (tokens - self._tokens) / self._rate)

    def take(self, tokens: int) -> None:
        """Use tokens that `lacks` has found."""
        self._tokens -= tokens


class ConnectionLimits:
    """All open connections of a gateway."""

    def __init__(self, settings: GatewaySettings, clock: Callable[[], float]) -> None:
        self.evicted = 0
        self.streams = 0
        self._settings = settings
        self._clock = clock
        self._all = Bucket(settings.max_reports_per_s, clock())
        self._buckets: dict[Connection, Bucket] = {}
        self._handovers: dict[Connection, Bucket] = {}
        self._idle: dict[Connection, None] = {}  # longest idle first

    def __len__(self) -> int:
        return len(self._buckets)

    def enter(self, connection: Connection) -> bool:
        """A new connection; False if there is no room, even without the idle ones."""
        if len(self._buckets) >= self._settings.max_connections:
            if not self._idle:
                return False
            oldest = next(iter(self._idle))
            self.leave(oldest)
            oldest.force_close()
            self.evicted += 1
        self._buckets[connection] = Bucket(
            self._settings.max_connection_reports_per_s, self._clock()
        )
        self._idle[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        """A connection ended."""
        self._buckets.pop(connection, None)
        self._handovers.pop(connection, None)
        self._idle.pop(connection, None)

    def busy(self, connection: Connection) -> None:
        """It has a request."""
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Its request is answered."""
        if connection in self._buckets:
            self._idle[connection] = None

    def admit(self, connection: Connection, reports: int) -> float:
        """Let reports pass: 0, or the seconds after which the sender may try again."""
        now = self._clock()
        own = self._buckets.get(connection)
        wait_s = max(self._all.lacks(reports, now), own.lacks(reports, now) if own else 0.0)
        if wait_s == 0:
            self._all.take(reports)
            if own:
                own.take(reports)
        return wait_s

    def admit_handover(self, connection: Connection) -> float:
        """Let a handover pass: 0, or the seconds after which the sender may try again.

        Only by the connection's own rate. A limit that senders share would tell each of them
        how many others leave their pages.
        """
        now = self._clock()
        own = self._handovers.get(connection)
        if own is None:
            own = Bucket(self._settings.max_connection_reports_per_s, now)
            if connection in self._buckets:
                self._handovers[connection] = own
        wait_s = own.lacks(1, now)
        if wait_s == 0:
            own.take(1)
        return wait_s

    def stream(self) -> bool:
        """Begin a stream of changes; False if there are too many."""
        if self.streams >= self._settings.max_streams:
            return False
        self.streams += 1
        return True
