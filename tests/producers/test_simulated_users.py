"""Simulated users against a pipeline in memory: an agent and windows behind a fake transport."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest
from click.testing import CliRunner

from producers.commands.users import users
from producers.simulated_users import Drift, UsersOutcome, run_users
from producers.transport import Acknowledged
from stream_app.core.agents import agent_for
from stream_app.core.experiment import Experiment
from stream_app.core.state import Status
from stream_app.core.window import Window, open_window
from stream_app.errors import ConfigurationError, ShufflebanditError
from stream_app.kafka.record_batches import Rows
from stream_app.settings import KafkaSettings, Settings
from stream_app.wire.assignment import Assignment
from stream_app.wire.report import decode_report
from tests.producers.build import FakeTransport, banners

SETTINGS = Settings(kafka=KafkaSettings(connect_timeout_s=1))


class Pipeline(FakeTransport):
    """Shuffle stage and agent in one; drops the first `lost` reports of every batch."""

    def __init__(self, experiment: Experiment, lost: int = 0) -> None:
        self.agent = agent_for(experiment)
        self.lost = lost
        self.late = 0
        self.pause_s = 0.0  # before the first reports are acknowledged
        self.state = self.agent.begin()
        self.windows: dict[str, Window] = {}
        self.dropped: dict[str, int] = {}
        super().__init__(self._publish())

    def _publish(self) -> bytes:
        record = Assignment(self.agent.experiment, self.state)
        for batch in self.state.open:
            terms = record.terms(batch)
            if terms.batch_id not in self.windows:
                self.windows[terms.batch_id] = open_window(terms.batch_id, terms)
        return record.encode()

    async def send(self, parts: Iterable[Rows], acknowledged: Acknowledged) -> None:
        """Count the reports; a full window moves the agent on."""
        await asyncio.sleep(self.pause_s)
        self.pause_s = 0.0
        await super().send(parts, acknowledged)
        for value in self.attempts[-1]:
            batch_id, report_id, ones = decode_report(value)
            window = self.windows[batch_id]
            self.dropped[batch_id] = self.dropped.get(batch_id, 0) + 1
            if window.full:
                self.late += 1
            elif self.dropped[batch_id] > self.lost:
                window.accept(report_id, ones, 0, 0)
                if window.full:
                    release = window.release()
                    estimate = window.terms.mechanism.debias(release.total)
                    self.state = self.agent.fold(self.state, window.terms.sequence, estimate)
                    self.values.put_nowait(self._publish())


async def run(pipeline: Pipeline, **options: object) -> UsersOutcome:
    experiment = pipeline.agent.experiment
    return await run_users(
        SETTINGS,
        experiment.name,
        transport=pipeline,
        experiment=experiment,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("order", ["sequential", "interleaved"])
async def test_closed_loop_ends_with_the_decision(order: str) -> None:
    """The better arm wins, and few reports come for nothing. Wrong with probability < 1e-6."""
    pipeline = Pipeline(banners(means=(0.9, 0.1), order=order))

    outcome = await run(pipeline)

    assert (outcome.status, outcome.serve) == (Status.DECIDED, "arm-0")
    assert outcome.reports == outcome.users == sum(outcome.shown.values()) == len(pipeline.sent)
    assert pipeline.late <= 0.35 * outcome.users
    assert outcome.regret == pytest.approx(0.8 * outcome.shown["arm-1"])


async def test_sequential_closed_loop_wastes_nobody() -> None:
    """Exactly as many users as the batches take."""
    pipeline = Pipeline(banners(means=(0.9, 0.1)))

    outcome = await run(pipeline)

    assert outcome.users == pipeline.state.users
    assert pipeline.late == 0


async def test_closed_loop_tops_up_what_did_not_count() -> None:
    """Lost reports do not stall the experiment."""
    outcome = await run(Pipeline(banners(means=(0.9, 0.1)), lost=3))

    assert outcome.status is Status.DECIDED


async def test_closed_loop_with_an_attribution_window() -> None:
    """The users wait for the deadline, as a product's do."""
    outcome = await run(Pipeline(banners(means=(0.5, 0.5), attribution_s="0.05")), users=200)

    assert outcome.users == 200
    assert outcome.reports == 200


async def test_open_loop_keeps_its_rate() -> None:
    """200 users at 400 a second take about half a second."""
    outcome = await run(Pipeline(banners(means=(0.5, 0.5))), rate=400.0, users=200)

    assert outcome.users == outcome.reports == 200
    assert 0.4 < outcome.seconds < 3
    assert outcome.most_behind == 0


async def test_open_loop_says_when_it_falls_behind() -> None:
    """Kafka does not answer for longer than the second that is tolerated."""
    said: list[str] = []
    pipeline = Pipeline(banners(means=(0.5, 0.5)))
    pipeline.pause_s = 2

    outcome = await run(pipeline, rate=5_000.0, users=9_000, say=said.append)

    assert outcome.reports == 9_000
    assert len(said) == 1
    assert "are late" in said[0]
    assert outcome.most_behind > 7_000


def test_drift_moves_all_means_together() -> None:
    """A quarter of the period up, three quarters down."""
    drift = Drift(0.1, 400)

    assert drift.at(0) == 0
    assert drift.at(100) == pytest.approx(0.1)
    assert drift.at(300) == pytest.approx(-0.1)


async def test_means_must_fit_the_arms() -> None:
    """The error names the option and the arms."""
    with pytest.raises(ConfigurationError, match=r"--means 0\.5: must be 2 numbers"):
        await run(Pipeline(banners()), means=[0.5])
    with pytest.raises(ConfigurationError, match=r"no \[simulation\] means"):
        await run(Pipeline(replace(banners(), simulation=None)))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--means", "0.5,x"], "--means 0.5,x"),
        (["--drift", "0.1"], "--drift 0.1"),
        (["--drift", "0.1,0"], "--drift 0.1,0"),
        (["--bootstrap", "127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    options: list[str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends with exit code 2 or 3."""
    monkeypatch.setenv("SHUFFLEBANDIT_KAFKA_CONNECT_TIMEOUT_S", "1")
    result = CliRunner().invoke(users, ["banners", *options])

    assert isinstance(result.exception, ShufflebanditError)
    assert result.exception.exit_code in (2, 3)
    assert named in str(result.exception)
    assert "\n" not in str(result.exception)
