import numpy as np

from producers.replay.log import LoggedRows
from producers.replay.survey import Survey
from tests.producers.replay.test_match import skewed

DAY = 86_400.0


def surveyed(log: LoggedRows, arms: int) -> Survey:
    found = Survey()
    for start in range(0, len(log), 999):
        part = slice(start, start + 999)
        found.add(
            LoggedRows(
                start,
                log.arms[part],
                log.rewards[part],
                None if log.times is None else log.times[part],
                None if log.propensities is None else log.propensities[part],
            ),
            arms,
        )
    return found


def made(seed: int, shares: list[float], days: int = 1, drift: float = 0.0) -> LoggedRows:
    rng = np.random.default_rng(seed)
    rows = 20_000
    arms = rng.choice(len(shares), rows, p=shares).astype(np.int16)
    times = np.linspace(0, days * DAY - 1, rows)
    rewards = (rng.random(rows) < 0.1 + drift * (times > DAY)).astype(float)
    return LoggedRows(0, arms, rewards, times)


def test_p_values_are_uniform_where_the_log_is_fair() -> None:
    """40 fair logs, four tests each: none below 1e-5; false-failure probability .0016."""
    for seed in range(40):
        found = surveyed(made(seed, [1 / 3] * 3, days=3), 3)
        weighted = surveyed(skewed(5_000, seed)[0], 3)
        for chance in (
            found.choice_p(), found.shares_p(), found.drift_p(), weighted.choice_p(),
        ):  # fmt: skip
            assert chance > 1e-5


def test_a_choice_that_is_not_uniform_is_said() -> None:
    """And nothing is said of one that is."""
    unfair = surveyed(made(1, [0.4, 0.3, 0.3]), 3).warnings("rejection")

    assert [] == surveyed(made(1, [1 / 3] * 3, days=3), 3).warnings("rejection")
    assert 1 == len(unfair)
    assert "not chosen uniformly" in unfair[0]


def test_propensities_that_are_wrong_are_said() -> None:
    """The same log with one arm's propensities doubled."""
    log, _ = skewed(20_000, 2)
    assert log.propensities is not None
    wrong = np.where(log.arms == 1, 2 * log.propensities, log.propensities)

    assert [] == surveyed(log, 3).warnings("weighted")
    assert "is biased; --mode weighted is not" in surveyed(log, 3).warnings("rejection")[0]
    said = surveyed(LoggedRows(0, log.arms, log.rewards, None, wrong), 3).warnings("weighted")
    assert "not chosen with the logged propensities" in said[0]


def test_drift_is_said_and_shown_by_day() -> None:
    """Rates that jump after the first day; `queue` would compare arms at different times."""
    found = surveyed(made(4, [0.5, 0.5], days=3, drift=0.1), 2)

    assert "--mode queue compares arms" in found.warnings("queue")[0]
    assert ["1970-01-01", "1970-01-02", "1970-01-03"] == [d["day"] for d in found.day_table()]
    assert found.day_table()[2]["rate"] > 0.15 > found.day_table()[0]["rate"]


def test_rows_that_go_back_in_time_are_counted() -> None:
    """Over the borders of chunks, too."""
    log = made(5, [0.5, 0.5])
    assert log.times is not None
    times = log.times.copy()
    times[999] = 0.0
    found = surveyed(LoggedRows(0, log.arms, log.rewards, times), 2)

    assert 1 == found.backwards
