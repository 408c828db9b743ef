"""The check that anybody can make: does an experiment's state follow from its public topics?

The service is a pure function of its log. `verify` checks every sum's terms and certificate and
folds all sums again (`refold`): the agent's last assignment must come out. It only reads, and no
report; differences are given in words, none if all is well.
"""

from dataclasses import dataclass, field
from typing import Any

from stream_app import kafka, registry
from stream_app.audit.refold import refold
from stream_app.kafka.reading import read_partition
from stream_app.settings import KafkaSettings
from stream_app.wire.sum import Sum


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found."""

    experiment: str
    batches: int  # released sums that were checked
    reports: int  # reports in them
    differences: tuple[str, ...]
    unchecked: tuple[str, ...] = ()
    sums: tuple[Sum, ...] = field(default=(), repr=False)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "experiment": self.experiment,
            "batches": self.batches,
            "reports": self.reports,
            "differences": list(self.differences),
            "unchecked": list(self.unchecked),
        }


async def verify(settings: KafkaSettings, name: str) -> CheckResult:
    """Check an experiment from `experiments`, `assignments` and `sums`, committed records only."""
    # The assignment first: all sums that it has folded are on their topic by then.
    entry = await registry.find(settings, name)
    records = await read_sums(settings, name, committed=True)
    found = refold(entry, ((record.offset, record.value) for record in records))
    users = sum(one.terms.mechanism.promise.batch_size for one in found.sums)
    return CheckResult(
        name, len(found.sums), users, tuple(found.differences), sums=tuple(found.sums)
    )


async def read_sums(settings: KafkaSettings, name: str, *, committed: bool) -> list[kafka.Record]:
    """The experiment's sums in the log's order."""
    partition = kafka.partition_of(name, await kafka.partition_count(settings, kafka.PUBLIC))
    key = name.encode()
    return [
        record
        async for records in read_partition(settings, "sums", partition, committed=committed)
        for record in records
        if record.key == key
    ]
