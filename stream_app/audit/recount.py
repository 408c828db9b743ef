"""The check with the reports at hand: is every released sum the one that its reports give?

`audit` is `verify`, and then counts every released sum again from `reports`; it reads `sums` as an
untrusted reader can, with what was aborted: a batch has one value, ever. The recount is written
apart from the shuffle stage's window on purpose. It only reads; differences are given in words.
"""

import hashlib
from collections.abc import Iterable
from contextlib import aclosing

from stream_app import kafka
from stream_app.audit.verify import CheckResult, read_sums, verify
from stream_app.errors import InvalidInput
from stream_app.kafka import Record, TopicPartition
from stream_app.kafka.reading import read_to_end
from stream_app.settings import KafkaSettings
from stream_app.wire.report import MAX_REPORT_BYTES, decode_report
from stream_app.wire.sum import Sum, decode_sum


async def audit(settings: KafkaSettings, name: str) -> CheckResult:
    """`verify`, then count every sum again from `reports`; needs the right to read them."""
    verified = await verify(settings, name)
    released, differences = one_value_each(await read_sums(settings, name, committed=False))
    recounts = {batch_id: _Recount(found) for batch_id, found in released.items()}
    start = await _recount(settings, name, recounts)
    unchecked = []
    for batch_id, recount in recounts.items():
        wrong = recount.differences()
        if wrong and recount.sum.first.offset < start:
            unchecked.append(
                f"batch {batch_id}: its reports were deleted (it begins at offset "
                f"{recount.sum.first.offset}, the log at {start})"
            )
        else:
            differences += [f"batch {batch_id}: {line}" for line in wrong]
    checked = [r for r in recounts.values() if r.complete]
    return CheckResult(
        name,
        len(checked),
        sum(r.size for r in checked),
        verified.differences + tuple(differences),
        tuple(unchecked),
        verified.sums,
    )


def one_value_each(records: Iterable[Record]) -> tuple[dict[str, Sum], list[str]]:
    """The first value of each batch, aborted or not, and the batches that show another one."""
    values: dict[int, bytes] = {}
    sums: dict[str, Sum] = {}
    differences = []
    for record in records:
        try:
            found = decode_sum(record.value)
        except InvalidInput as error:
            differences.append(f"the sum at offset {record.offset} is not valid: {error}")
            continue
        if values.setdefault(found.terms.sequence, record.value) != record.value:
            differences.append(
                f"batch {found.batch_id}: another value of it is on the topic, at offset "
                f"{record.offset}; readers of uncommitted records see both"
            )
        sums.setdefault(found.batch_id, found)
    return sums, differences


class _Recount:
    """One batch, counted again: its first m valid, distinct reports from its first offset on."""

    def __init__(self, found: Sum) -> None:
        mechanism = found.terms.mechanism
        self.sum = found
        self.size = mechanism.promise.batch_size
        self.max_ones = mechanism.max_ones
        self.ids: set[bytes] = set()
        self.counted = self.total = 0
        self.first = self.last = -1
        self.digest = ""

    @property
    def complete(self) -> bool:
        """Whether all of its reports were found."""
        return self.counted == self.size

    def add(self, report_id: bytes, ones: int, offset: int) -> None:
        """Count a report if it is valid; the ids are dropped with the last one."""
        if (
            offset < self.sum.first.offset
            or not 0 <= ones <= self.max_ones
            or report_id in self.ids
        ):
            return
        self.ids.add(report_id)
        self.counted += 1
        self.total += ones
        self.first = self.first if self.first >= 0 else offset
        self.last = offset
        if self.complete:
            self.digest = hashlib.sha256(b"".join(sorted(self.ids))).hexdigest()
            self.ids = set()

    def differences(self) -> list[str]:
        """What the sum states and its reports do not give."""
        if not self.complete:
            return [f"only {self.counted} of its {self.size} reports are on the topic"]
        return [
            f"its {what} is {stated}, recomputed {due}"
            for what, stated, due in (
                ("total", self.sum.total, self.total),
                ("digest of ids", self.sum.digest, self.digest),
                ("first report's offset", self.sum.first.offset, self.first),
                ("last report's offset", self.sum.last.offset, self.last),
            )
            if stated != due
        ]


async def _recount(settings: KafkaSettings, name: str, recounts: dict[str, _Recount]) -> int:
    """Read `reports` once into the recounts; returns the log's first offset after it."""
    partition = kafka.partition_of(name, await kafka.partition_count(settings))
    source = TopicPartition(kafka.topic(settings, "reports"), partition)
    start = min((r.sum.first.offset for r in recounts.values()), default=0)
    key = name.encode()
    missing = dict(recounts)
    async with kafka.consumer(settings, committed=False) as consumer:
        consumer.assign([source])
        try:
            async with aclosing(read_to_end(consumer, source, start)) as chunks:
                async for records in chunks:
                    _count(records, key, missing)
                    if not missing:
                        break
            return int((await consumer.beginning_offsets([source]))[source])
        except kafka.KafkaError as error:
            raise kafka.unreachable(settings, error) from None


def _count(records: list[Record], key: bytes, missing: dict[str, _Recount]) -> None:
    """Add a chunk's reports to the recounts that still miss some."""
    for record in records:
        value = record.value
        if record.key != key or value is None or len(value) > MAX_REPORT_BYTES:
            continue
        try:
            batch_id, report_id, ones = decode_report(value)
            recount = missing.get(batch_id)
        except (ValueError, KeyError, TypeError):
            continue
        if recount is not None:
            recount.add(report_id, ones, record.offset)
            if recount.complete:
                del missing[batch_id]
