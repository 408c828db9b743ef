"""Quix Streams' count window, exactly once: each batch's ones are summed, ids not looked at."""

import tempfile

from quixstreams import Application
from quixstreams.dataframe.windows.aggregations import Sum

from tests.benchmarks.peers import job

task = job()
with tempfile.TemporaryDirectory() as state:
    app = Application(
        broker_address=task.bootstrap,
        consumer_group="peer-quix",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        state_dir=state,
        loglevel="ERROR",
    )
    frame = app.dataframe(app.topic(task.reports_topic, value_deserializer="json"))

    def ones(report: dict[str, int]) -> int:
        task.begin()
        return report["ones"]

    frame = frame.apply(ones).tumbling_count_window(task.size).agg(value=Sum()).final()
    frame.to_topic(app.topic(task.sums_topic, value_serializer="json"))
    app.run(count=task.reports // task.size, timeout=60)
    task.end()
