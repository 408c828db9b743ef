import math
from pathlib import Path

from producers.replay.report import report
from producers.replay.session import ReplayPlan, in_memory
from stream_app.core.agents import Status
from tests.producers.replay.build import KEY, experiment, log, write_drawn


def test_regret_counts_the_whole_horizon(tmp_path: Path) -> None:
    """By the log's own rates: users by arm times gap, then the winner's gap, which is 0."""
    clear = write_drawn(tmp_path / "clear.csv", 1, 60_000, (0.30, 0.20, 0.15))
    found = in_memory(log(clear), ReplayPlan(experiment()), _key=KEY)
    rates = found.survey.rates
    run = found.runs[0]
    expected = sum(n * (rates.max() - r) for n, r in zip(run.taken, rates, strict=True))
    agents = {agent["name"].split(" (")[0]: agent for agent in report(found)["agents"]}

    assert Status.DECIDED is run.state.status
    assert math.isclose(expected, agents["replay"]["regret"])
    assert agents["without privacy"]["regret"] < agents["paper's constants"]["regret"]
    assert "undecided" == agents["paper's constants"]["outcome"]
