"""The newest assignment of a replayed experiment, with its terms checked as the client does."""

import asyncio
from collections.abc import Callable

from producers.batches import OpenBatches
from producers.transport import Transport
from stream_app.core.experiment import Experiment
from stream_app.core.state import State
from stream_app.errors import ConfigurationError, InvalidInput, Unavailable
from stream_app.settings import Settings
from stream_app.wire.assignment import decode_assignment, decode_offer


class Follower:
    """The newest assignment, checked."""

    def __init__(self, settings: Settings, experiment: Experiment, transport: Transport) -> None:
        self.batches = OpenBatches(experiment.name, settings.limits)
        self.state: State | None = None
        self._experiment = experiment
        self._transport = transport
        self._news = asyncio.Event()
        self._problem: Exception | None = None

    async def follow(self) -> None:
        """Take every assignment, for ever; a problem is raised by `until`."""
        try:
            async for value in self._transport.follow():
                self._take(value)
                self._news.set()
        except (Unavailable, InvalidInput, ConfigurationError) as error:
            self._problem = error
            self._news.set()

    def _take(self, value: bytes | None) -> None:
        assignment = decode_assignment(value)
        if assignment.experiment != self._experiment:
            raise ConfigurationError(
                f"experiment {self._experiment.name!r} runs with another definition; "
                "use another name"
            )
        refused = self.batches.take(decode_offer(value))
        if refused:
            raise InvalidInput(f"terms refused, nothing is sent: {refused[0]}")
        self.state = assignment.state

    async def until(self, holds: Callable[[State], bool], patience_s: float, missing: str) -> State:
        """Wait for a state. Raises Unavailable with `missing` when none came in time."""
        try:
            async with asyncio.timeout(patience_s):
                while True:
                    if self._problem is not None:
                        raise self._problem
                    if self.state is not None and holds(self.state):
                        return self.state
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise Unavailable(missing) from None
