"""A faust agent that counts distinct reports of each batch and sends a sum; at least once."""

import os

import faust
import orjson

from tests.benchmarks.peers import job

task = job()
app = faust.App("peer-faust", broker=f"kafka://{task.bootstrap}", web_enabled=False)
app.conf.consumer_auto_offset_reset = "earliest"
reports = app.topic(task.reports_topic, value_type=bytes, value_serializer="raw")
sums = app.topic(task.sums_topic, value_type=bytes, value_serializer="raw")
windows: dict[str, dict[str, int]] = {}
released: list[str] = []


@app.agent(reports)
async def count(stream: faust.StreamT[bytes]) -> None:
    async for value in stream:
        task.begin()
        report = orjson.loads(value)
        window = windows.setdefault(report["batch"], {})
        window[report["id"]] = report["ones"]
        if len(window) == task.size:
            await sums.send(value=orjson.dumps(sum(window.values())))
            released.append(report["batch"])
            del windows[report["batch"]]
            if len(released) == task.reports // task.size:
                task.end()
                os._exit(0)


app.finalize()
faust.Worker(app, loglevel="error").execute_from_commandline()
