"""Agents on logs: in memory, and through a service that is cut off at bad moments."""

import threading
import time
from pathlib import Path

import pytest

from producers.replay import session, stream
from producers.replay.arrow import READER_THREAD
from producers.replay.columns import Columns
from producers.replay.json_format import DSJSON
from producers.replay.match import Mode
from producers.replay.report import report
from producers.replay.session import ReplayPlan
from stream_app.errors import ConfigurationError, InvalidInput, Unavailable
from stream_app.settings import KafkaSettings, Settings
from tests.producers.replay.build import (
    KEY,
    Service,
    cut,
    drawn,
    experiment,
    log,
    write,
    write_drawn,
)

MEANS = (0.30, 0.20, 0.15)


@pytest.fixture(autouse=True)
def _no_second_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cut stays cut."""
    monkeypatch.setattr(stream, "ATTEMPTS", 1)


@pytest.fixture(scope="module")
def clear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 000 rows in which arm a is better by a clear margin."""
    return write_drawn(tmp_path_factory.mktemp("logs") / "clear.csv", 1, 60_000, MEANS)


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.QUEUE])
@pytest.mark.parametrize("order", ["sequential", "interleaved"])
def test_a_clear_margin_is_decided(clear: Path, mode: Mode, order: str) -> None:
    """At (1, 1e-6); all of 3 000 simulated runs decide rightly; a wrong winner: 1/T = 5e-5."""
    found = session.in_memory(log(clear), ReplayPlan(experiment(order=order), mode), _key=KEY)
    said = report(found)["verdict"]

    assert ("decided", "a") == (said["outcome"], said["arm"])
    assert said["text"].startswith("Decided: a, after ")


def test_a_near_tie_is_left_undecided_and_says_so(tmp_path: Path) -> None:
    """Two arms that differ by .002; of 3 000 simulated runs none decides (below 1e-3)."""
    path = write_drawn(tmp_path / "tie.csv", 2, 60_000, (0.300, 0.298))
    plan = ReplayPlan(experiment(("a", "b")))
    said = report(session.in_memory(log(path, arms=("a", "b")), plan, _key=KEY))["verdict"]

    assert ("undecided", "exhausted") == (said["outcome"], said["status"])
    assert said["text"].startswith("Undecided: no further phase fits into the horizon of 20,000")
    assert "too close to tell apart" in said["text"]
    assert ["a", "b"] == said["left"]


def test_a_log_that_ends_early_is_undecided_and_says_so(tmp_path: Path) -> None:
    """And every row is accounted for."""
    path = write_drawn(tmp_path / "short.csv", 2, 900, MEANS)
    found = report(session.in_memory(log(path), ReplayPlan(experiment()), _key=KEY))
    rows = found["rows"]

    assert "log-ended" == found["verdict"]["status"]
    assert "Undecided: the log ended" in found["verdict"]["text"]
    assert rows["usable"] == rows["used"] + rows["not_asked_for"] + rows["after_the_end"] == 900


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.QUEUE])
@pytest.mark.parametrize("changes", [{}, {"order": "interleaved"}, {"preset": "kl-ucb"}])
async def test_both_drivers_agree(
    clear: Path, tmp_path: Path, mode: Mode, changes: dict[str, str]
) -> None:
    """The same sums, decisions, rows and moments for the same noise."""
    definition = experiment(**changes)
    plan = ReplayPlan(definition, mode, compare=False)
    service = Service(definition)
    streamed = await session.through_kafka(
        Settings(), log(clear), plan, tmp_path / "at", transport=service, _key=KEY
    )
    direct = session.in_memory(log(clear), plan, _key=KEY)

    assert direct.runs[0] == streamed.runs[0]
    assert 0 == service.duplicates == service.late
    assert service.state == direct.runs[0].state


async def test_both_drivers_agree_on_weights(tmp_path: Path) -> None:
    """`weighted` keeps the same rows in both, over an interruption as well."""
    rows = [
        ("abc"[arm], reward, (0.2, 0.5)[i % 2])
        for chunk in drawn(6, 20_000, MEANS)
        for i, (arm, reward) in enumerate(zip(chunk.arms, chunk.rewards, strict=True))
    ]
    path = write(tmp_path / "p.csv", ("arm", "reward", "p"), rows)
    columns = Columns(propensity="p")
    plan = ReplayPlan(experiment(), Mode.WEIGHTED, compare=False)
    service = Service(experiment())
    at = tmp_path / "at"
    with cut(service, 500), pytest.raises(Unavailable):
        await session.through_kafka(
            Settings(), log(path, columns=columns), plan, at, transport=service, _key=KEY
        )
    streamed = await session.through_kafka(
        Settings(), log(path, columns=columns), plan, at, transport=service, _key=KEY
    )
    direct = session.in_memory(log(path, columns=columns), plan, _key=KEY)

    assert direct.runs[0] == streamed.runs[0]
    assert direct.kept == streamed.kept == pytest.approx(0.7, abs=0.02)


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.QUEUE])
@pytest.mark.parametrize("order", ["sequential", "interleaved"])
async def test_an_interrupted_replay_goes_on_and_counts_nothing_twice(
    clear: Path, tmp_path: Path, mode: Mode, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut a dozen times, in mid-batch and at its end: the result is that of an unbroken run."""
    monkeypatch.setattr(stream, "MOST_AT_ONCE", 50)
    definition = experiment(order=order)
    plan = ReplayPlan(definition, mode, compare=False)
    service = Service(definition)
    path = tmp_path / "at"
    for after in (0, 1, 31, 32, 33, 64, 65, 100, 200, 300, 500, 1000):
        with cut(service, after), pytest.raises(Unavailable):
            await session.through_kafka(
                Settings(), log(clear), plan, path, transport=service, _key=KEY
            )
        # Left to the garbage collector, a reader can be waited for where it cannot end.
        assert not [thread for thread in threading.enumerate() if READER_THREAD in thread.name]
    ended = await session.through_kafka(
        Settings(), log(clear), plan, path, transport=service, _key=KEY
    )
    direct = session.in_memory(log(clear), plan, _key=KEY)

    assert service.duplicates > 0
    assert direct.runs[0] == ended.runs[0]
    assert service.state == direct.runs[0].state
    assert KEY.hex() not in path.read_text()
    with pytest.raises(ConfigurationError, match="this replay has ended"):
        await session.through_kafka(Settings(), log(clear), plan, path, transport=service)


async def test_the_key_survives_an_interruption(clear: Path, tmp_path: Path) -> None:
    """Drawn from the system once; the file is for its owner only."""
    definition = experiment()
    plan = ReplayPlan(definition, compare=False)
    service = Service(definition)
    path = tmp_path / "at"
    service.dies_after = 40
    with pytest.raises(Unavailable):
        await session.through_kafka(Settings(), log(clear), plan, path, transport=service)
    key = bytes.fromhex(path.read_text().split('"key":"')[1][:64])
    service.dies_after = None
    ended = await session.through_kafka(Settings(), log(clear), plan, path, transport=service)

    assert 0o600 == path.stat().st_mode & 0o777
    assert ended.runs[0] == session.in_memory(log(clear), plan, _key=key).runs[0]


async def test_another_log_or_mode_does_not_go_on(clear: Path, tmp_path: Path) -> None:
    """The position belongs to one replay."""
    definition = experiment()
    service = Service(definition)
    path = tmp_path / "at"
    service.dies_after = 40
    with pytest.raises(Unavailable):
        await session.through_kafka(
            Settings(), log(clear), ReplayPlan(definition, compare=False), path, transport=service
        )
    with pytest.raises(ConfigurationError, match="belongs to another log"):
        await session.through_kafka(
            Settings(), log(clear), ReplayPlan(definition, Mode.QUEUE), path, transport=service
        )


async def test_an_experiment_that_has_begun_is_refused(clear: Path, tmp_path: Path) -> None:
    """Its users would be mixed with the log's."""
    definition = experiment()
    service = Service(definition)
    service.state = service.agent.fold(service.state, 1, 1.0)
    with pytest.raises(ConfigurationError, match="has begun already"):
        await session.through_kafka(
            Settings(), log(clear), ReplayPlan(definition), tmp_path / "at", transport=service
        )


async def test_no_agent_answers(clear: Path, tmp_path: Path) -> None:
    """One line, in bounded time."""
    service = Service(experiment())
    service.silent = True
    settings = Settings(kafka=KafkaSettings(connect_timeout_s=0.1))
    with pytest.raises(Unavailable, match="no agent answers: start one with shufflebandit run"):
        await session.through_kafka(
            settings, log(clear), ReplayPlan(experiment()), tmp_path / "at", transport=service
        )


async def test_a_damaged_log_sends_nothing(tmp_path: Path) -> None:
    """Not even the experiment is created: the last of 5 000 rows has a reward of 7."""
    path = write_drawn(tmp_path / "late.csv", 3, 5_000, MEANS)
    with path.open("a") as file:
        file.write("a,7\n")
    service = Service(experiment())
    created = []

    async def create() -> None:
        created.append(1)

    with pytest.raises(InvalidInput, match=r"late\.csv:5002: reward = 7"):
        await session.through_kafka(
            Settings(),
            log(path),
            ReplayPlan(experiment()),
            tmp_path / "at",
            transport=service,
            create=create,
        )
    assert [] == created
    assert all(not window.ids for window in service.windows.values())


def test_an_update_between_two_parts_of_a_replay_knows_the_log(tmp_path: Path) -> None:
    """What a position file calls its log does not change from version to version."""
    path = write(tmp_path / "log.csv", ("arm", "reward"), [("a", 1)])
    weighted = ReplayPlan(experiment(), Mode.WEIGHTED, 3, 0.1)

    assert "592a6f9db55766bfb4f681b68e7e35f4" == session.identity(
        log(path), ReplayPlan(experiment())
    )
    assert "2c4968eee2904c7d7bde58f8f2bd54cd" == session.identity(log(path, form=DSJSON), weighted)


async def test_the_log_s_own_pace(tmp_path: Path) -> None:
    """1 000 rows in 100 s of log time, 50 times as fast: 2 s, and the same decisions."""
    rows = [
        ("abc"[arm], reward, 1_700_000_000 + i / 10)
        for chunk in drawn(4, 1_000, MEANS)
        for i, (arm, reward) in enumerate(zip(chunk.arms, chunk.rewards, strict=True))
    ]
    path = write(tmp_path / "timed.csv", ("arm", "reward", "time"), rows)
    columns = Columns(time="time")
    plan = ReplayPlan(experiment(), compare=False)
    began = time.monotonic()
    paced = await session.through_kafka(
        Settings(), log(path, columns=columns), plan, tmp_path / "at",
        speed=50, transport=Service(experiment()), _key=KEY,
    )  # fmt: skip
    took = time.monotonic() - began

    assert 1.7 < took < 6
    direct = session.in_memory(log(path, columns=columns), plan, _key=KEY)
    assert direct.runs[0] == paced.runs[0]
    with pytest.raises(ConfigurationError, match="needs --time-column"):
        await session.through_kafka(
            Settings(),
            log(path),
            plan,
            tmp_path / "other",
            speed=1,
            transport=Service(experiment()),
        )
