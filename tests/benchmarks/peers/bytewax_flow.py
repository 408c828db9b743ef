"""A bytewax flow that counts distinct reports of each batch and writes a sum; no recovery."""

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSource, KafkaSourceMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.testing import run_main

from tests.benchmarks.peers import job

task = job()
Window = dict[str, int]


def keyed(message: KafkaSourceMessage) -> tuple[str, tuple[str, int]]:
    task.begin()
    report = orjson.loads(message.value)
    return report["batch"], (report["id"], report["ones"])


def count(window: Window | None, report: tuple[str, int]) -> tuple[Window | None, int | None]:
    window = window if window is not None else {}
    window[report[0]] = report[1]
    if len(window) == task.size:
        return None, sum(window.values())
    return window, None


def record(released: tuple[str, int | None]) -> KafkaSinkMessage | None:
    batch, total = released
    return None if total is None else KafkaSinkMessage(batch.encode(), orjson.dumps(total))


flow = Dataflow("peer")
source = KafkaSource([task.bootstrap], [task.reports_topic], tail=False, batch_size=10_000)
totals = op.stateful_map("count", op.map("key", op.input("in", flow, source), keyed), count)
kop.output("out", op.filter_map("record", totals, record), brokers=[task.bootstrap],
           topic=task.sums_topic)  # fmt: skip
run_main(flow)
task.end()
