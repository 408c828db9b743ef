"""A real Prometheus scrapes a real run; its figures are those that the topics give."""

import asyncio
import contextlib
import dataclasses
import json
import math
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream_app.core.agents import agent_for
from stream_app.core.experiment import Experiment
from stream_app.kafka.reading import read_partition
from stream_app.local.broker import LocalBroker, free_port
from stream_app.metrics.experiments import regret_bounds
from stream_app.monitor.view import regret
from stream_app.settings import Settings
from stream_app.wire.assignment import Assignment, decode_assignment
from stream_app.wire.sum import decode_sum
from tests.deploy.observing import (
    PROMETHEUS,
    dashboard,
    defined,
    families,
    panel_queries,
    program,
)
from tests.integration.service import check, experiment, play, settings_for, topics, workers

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARTITIONS = 4
GATEWAY = "shufflebandit_gateway_"  # none takes part here
# With an arm's last change more than a minute ago, or a Prometheus younger than that, there is
# nothing to annotate.
MAY_BE_EMPTY = {"annotation: Arm eliminated"}
# Quantiles of what did not happen are NaN.
MAY_BE_NAN = {"Checkpoints"}


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
        text: str = answer.read().decode()
        return text


def until(holds: Callable[[], bool], within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError):
            if holds():
                return
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.2)


class Prometheus:
    """A running one."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **parameters: str) -> Any:
        answer = json.loads(fetch(f"{self._base}/{path}?{urllib.parse.urlencode(parameters)}"))
        assert answer["status"] == "success"
        return answer["data"]

    def query(self, promql: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=promql)["result"]
        return found


@contextlib.contextmanager
def prometheus(folder: Path, ports: list[int]) -> Iterator[Prometheus]:
    """Prometheus with the project's files, only faster."""
    (folder / "targets").mkdir()
    config = (PROMETHEUS / "prometheus.yml").read_text().replace("15s", "1s")
    (folder / "prometheus.yml").write_text(config)
    (folder / "rules.yml").write_text((PROMETHEUS / "rules.yml").read_text())
    (folder / "targets" / "t.yml").write_text(
        json.dumps([{"targets": [f"127.0.0.1:{port}" for port in ports]}])
    )
    port = free_port()
    command = [
        program("prometheus"), f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (
        (folder / "prometheus.log").open("wb") as log,
        subprocess.Popen(command, stderr=log) as process,
    ):
        try:
            yield Prometheus(port)
        finally:
            process.kill()


@dataclass
class Run:
    """A run that is over, while its workers and Prometheus still answer."""

    settings: Settings
    ended: list[Assignment]
    prometheus: Prometheus
    ports: list[int]

    def scrape(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """All samples of all workers."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for text in self.texts()
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith("shufflebandit_")
        }

    def texts(self) -> list[str]:
        return [fetch(f"http://127.0.0.1:{port}/metrics") for port in self.ports]


@contextlib.asynccontextmanager
async def a_run(broker: LocalBroker, folder: Path) -> AsyncIterator[Run]:
    settings = settings_for(broker.bootstrap)
    await topics(settings, PARTITIONS)
    ports = [free_port(), free_port()]
    stages, monitor = (
        dataclasses.replace(
            settings,
            metrics=dataclasses.replace(settings.metrics, port=port),
            monitor=dataclasses.replace(settings.monitor, port=free_port()),
        )
        for port in ports
    )
    folders = [folder / name for name in ("stages", "monitor", "prometheus")]
    for one in folders:
        one.mkdir()
    experiments = [
        experiment("first"),
        experiment("second", order="interleaved", means=[0.6, 0.5, 0.4]),
        experiment("third", preset="kl-ucb"),
    ]
    with (
        workers(stages, folders[0], "shuffle,agent"),
        workers(monitor, folders[1], "monitor"),
        prometheus(folders[2], ports) as watching,
    ):
        ready = "sum(shufflebandit_ready)"
        await asyncio.to_thread(
            until, lambda: [r["value"][1] for r in watching.query(ready)] == ["2"]
        )
        run = Run(settings, await play(settings, experiments), watching, ports)
        over = 'count(shufflebandit_experiment_state{state="running"} == 0)'
        await asyncio.to_thread(
            until, lambda: [r["value"][1] for r in watching.query(over)] == ["3"]
        )
        await asyncio.sleep(4)  # two more scrapes and evaluations
        yield run


async def test_prometheus_sees_a_run(broker: LocalBroker, tmp_path: Path) -> None:
    """Every query gives data, every metric exists, every figure is the topics'."""
    program("prometheus")
    async with a_run(broker, tmp_path) as run:
        await asyncio.to_thread(queries_give_data, run.prometheus)
        await asyncio.to_thread(rules_are_healthy, run.prometheus)
        expected = {name for name in defined() if GATEWAY not in name}
        assert expected == set().union(*map(families, run.texts()))
        await experiments_agree(run)
        await batches_agree(run)


def queries_give_data(watching: Prometheus) -> None:
    asked = [(title, promql) for title, promql in panel_queries() if GATEWAY not in promql]
    board = dashboard()
    asked += [(f"annotation: {a['name']}", a["expr"]) for a in board["annotations"]["list"]]
    for title, template in asked:
        promql = filled(template)
        found = watching.query(promql)
        if title in MAY_BE_EMPTY:
            continue
        assert found, (title, promql)
        values = [float(series["value"][1]) for series in found]
        assert title in MAY_BE_NAN or not any(map(math.isnan, values)), (title, promql)
    offered = next(v for v in board["templating"]["list"] if v["name"] == "experiment")
    inner = offered["query"]["query"].removeprefix("query_result(").removesuffix(")")
    listed = watching.query(filled(inner))
    released = [float(series["value"][1]) for series in listed]
    assert {"first", "second", "third"} == {series["metric"]["experiment"] for series in listed}
    assert sorted(released, reverse=True) == released


def filled(template: str) -> str:
    """A query as Grafana sends it."""
    values = {
        "$experiment": "second",
        "$__rate_interval": "1m",
        "$__interval": "1m",
        "$__range": "5m",
    }
    for variable, value in values.items():
        template = template.replace(variable, value)
    return template


def rules_are_healthy(watching: Prometheus) -> None:
    rules = [rule for group in watching.ask("rules")["groups"] for rule in group["rules"]]
    for rule in rules:
        assert rule["health"] == "ok", rule
        if rule["type"] == "recording":
            assert watching.query(rule["name"]), rule["name"]
        else:
            assert rule["state"] != "firing", rule


def sample(found: dict[Any, float], name: str, **labels: str) -> float:
    return found[f"shufflebandit_{name}", frozenset(labels.items())]


async def experiments_agree(run: Run) -> None:
    """Per experiment and arm: state, users, batches, estimates, regret."""
    found = run.scrape()
    for assignment in run.ended:
        defined_as = assignment.experiment
        state = assignment.state
        name = defined_as.name
        agent = agent_for(defined_as)
        users = [arm.users for arm in state.arms]
        means = agent.means(state)
        intervals = agent.intervals(state)
        batches, _ = await check(run.settings, [name])
        assert defined_as.simulation is not None
        expected = {
            "users": state.users,
            "batches": batches,
            "phase": state.phase,
            "remaining_users": defined_as.horizon - state.users,
            "epsilon": float(defined_as.privacy.epsilon),
            "true_regret": regret(users, defined_as.simulation.means),
            "estimated_regret": regret(users, means),
        }
        for metric, value in expected.items():
            assert sample(found, f"experiment_{metric}", experiment=name) == pytest.approx(value)
        assert sample(found, "experiment_state", experiment=name, state=str(state.status)) == 1
        arms_agree(found, defined_as, means, intervals)
        bounds = regret_bounds(
            [
                {"users": n, "lower": low, "upper": high, "history": []}
                for n, (low, high) in zip(users, intervals, strict=True)
            ]
        )
        for end, value in zip(("lower", "upper"), bounds, strict=True):
            metric = f"experiment_estimated_regret_{end}"
            assert sample(found, metric, experiment=name) == pytest.approx(value)


def arms_agree(
    found: dict[Any, float],
    of: Experiment,
    means: list[float | None],
    intervals: list[tuple[float, float]],
) -> None:
    for arm, mean, (lower, upper) in zip(of.arms, means, intervals, strict=True):
        for metric, value in (("estimate", mean), ("lower", lower), ("upper", upper)):
            shown = sample(found, f"arm_{metric}", experiment=of.name, arm=arm)
            assert shown == pytest.approx(value)


async def batches_agree(run: Run) -> None:
    """Released batches, accepted reports and the three latencies, from the topics alone."""
    found = run.scrape()
    batches, reports = await check(run.settings, [a.experiment.name for a in run.ended])
    sums, opened, reacted = await history(run.settings)

    assert sample(found, "batches_released_total") == batches == len(sums)
    assert sample(found, "reports_total", outcome="accepted", reason="") == reports
    expected = {
        "batch_open_seconds": sum(at - opened[s.batch_id] for s, at in sums),
        "batch_collection_seconds": sum(s.last.time_ms - s.first.time_ms for s, _ in sums),
        "release_delay_seconds": sum(max(0, at - s.last.time_ms) for s, at in sums),
        "assignment_delay_seconds": sum(reacted),
    }
    for metric, total_ms in expected.items():
        assert sample(found, f"{metric}_count") == batches
        assert sample(found, f"{metric}_sum") == pytest.approx(total_ms / 1000, abs=1e-6)


async def history(settings: Settings) -> tuple[list[tuple[Any, int]], dict[str, int], list[int]]:
    """Sums with their times; when each batch was first listed; from each sum to its assignment."""
    sums: list[tuple[Any, int]] = []
    opened: dict[str, int] = {}
    reacted: list[int] = []
    for number in range(PARTITIONS):
        waiting: dict[str, list[tuple[int, int]]] = {}
        async for records in read_partition(settings.kafka, "sums", number):
            for record in records:
                released = decode_sum(record.value)
                sums.append((released, record.timestamp))
                waiting.setdefault(released.terms.experiment, []).append(
                    (record.offset, record.timestamp)
                )
        async for records in read_partition(settings.kafka, "assignments", number):
            for record in records:
                assignment = decode_assignment(record.value)
                for batch in assignment.state.open:
                    opened.setdefault(assignment.terms(batch).batch_id, record.timestamp)
                left = waiting.get(assignment.experiment.name, [])
                while left and left[0][0] <= assignment.folded:
                    reacted.append(record.timestamp - left.pop(0)[1])
    return sums, opened, reacted
