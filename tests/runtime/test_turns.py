"""Whoever writes control records cannot keep a worker from its heartbeats."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from stream_app.kafka import TransactionalWriter
from stream_app.runtime.control_tail import _take
from stream_app.runtime.open_partition import OpenPartition
from stream_app.runtime.stage import Partition
from tests.support.partition_log import Record


class Slow:
    """A state that notes how often somebody else had a turn before each record."""

    def __init__(self) -> None:
        self.turns = 0
        self.seen: list[tuple[int, int]] = []

    def control(self, records: Sequence[Any]) -> None:
        self.seen += [(record.offset, self.turns) for record in records]


async def test_others_have_a_turn_after_every_control_record() -> None:
    """And each record is told once, in order."""
    state = Slow()
    partition = OpenPartition(0, cast(Partition, state), cast(TransactionalWriter, None), 3)

    async def heartbeat() -> None:
        while True:
            await asyncio.sleep(0)
            state.turns += 1

    beating = asyncio.ensure_future(heartbeat())
    await asyncio.sleep(0)
    await _take(partition, cast(Any, [Record(offset, b"x", b"") for offset in range(10)]))
    beating.cancel()

    assert list(range(3, 10)) == [offset for offset, _ in state.seen]
    assert sorted({turn for _, turn in state.seen}) == [turn for _, turn in state.seen]
    assert partition.control_position == 10
