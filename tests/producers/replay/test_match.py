import numpy as np
import pytest

from producers.replay.log import LoggedRows
from producers.replay.match import Matcher, Mode, RowPosition, RowsInOrder, make
from producers.replay.survey import Survey

# |z| > 5 for one of at most 16 means has probability 16 * 5.7e-7 < 1e-5.
Z = 5.0


def chunk(arms: str, rewards: str, start: int = 0) -> LoggedRows:
    codes = np.array([ord(a) - ord("a") for a in arms], dtype=np.int16)
    return LoggedRows(start, codes, np.array([float(r) for r in rewards]))


def matcher(mode: Mode, arms: int = 2, begins: RowPosition | None = None) -> Matcher:
    return make(mode, arms, None, 1, begins or RowPosition(0, (0,) * arms))


def rows(given: dict[int, object]) -> dict[int, list[int]]:
    return {arm: taken.rows.tolist() for arm, taken in given.items()}


def test_rejection_uses_a_row_or_loses_it() -> None:
    """Rows of other arms are gone, and the next ask begins behind the last row used."""
    found = matcher(Mode.REJECTION)
    found.feed(chunk("bbabaab", "0000000"))

    assert {0: [2, 4]} == rows(found.take({0: 2}))
    assert {1: [6]} == rows(found.take({1: 3}))
    assert RowPosition(7, (2, 1)) == found.position


def test_rejection_fills_several_arms_at_once() -> None:
    """An arm that has enough loses its rows while another one waits."""
    found = matcher(Mode.REJECTION)
    found.feed(chunk("aaaabab", "0000000"))

    assert {0: [0, 1], 1: [4]} == rows(found.take({0: 2, 1: 1}))
    assert {0: [5]} == rows(found.take({0: 1}))


def test_queue_loses_nothing() -> None:
    """Each arm's rows in their order, whenever they are asked for."""
    found = matcher(Mode.QUEUE)
    found.feed(chunk("bbab", "0000"))

    assert {0: [2]} == rows(found.take({0: 2}))
    found.feed(chunk("aba", "000", start=4))
    assert {0: [4]} == rows(found.take({0: 1}))
    assert {1: [0, 1, 3, 5]} == rows(found.take({1: 9}))


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.QUEUE])
def test_a_new_matcher_goes_on_where_another_stood(mode: Mode) -> None:
    """After any number of steps, over chunks of any size."""
    rng = np.random.default_rng(5)
    arms = "".join(rng.choice(list("ab"), 400))
    pieces = [chunk(arms[i : i + 37], "0" * 37, i) for i in range(0, 370, 37)]

    def play(found: Matcher, asks: list[dict[int, int]]) -> tuple[list[object], RowPosition]:
        feed = iter(pieces)
        taken = []
        for ask in asks:
            left = dict(ask)
            while left:
                given = found.take(left)
                taken.append(rows(given))
                left = {a: n - len(given[a].rows) if a in given else n for a, n in left.items()}
                left = {a: n for a, n in left.items() if n}
                if left:
                    found.feed(next(feed))
        return [r for r in taken if r], found.position

    first = [{0: 13}, {0: 9, 1: 5}, {1: 20}]
    second = [{0: 17}, {1: 3}]
    flat = play(matcher(mode), first + second)[0]
    begun, position = play(matcher(mode), first)
    resumed = play(matcher(mode, begins=position), second)[0]

    def by_arm(parts: list[object]) -> list[list[int]]:
        return [[row for part in parts for row in part.get(arm, [])] for arm in (0, 1)]

    assert by_arm(flat) == [x + y for x, y in zip(by_arm(begun), by_arm(resumed), strict=True)]


def skewed(rows_: int, seed: int) -> tuple[LoggedRows, np.ndarray]:
    """Two kinds of user; who likes an arm was shown it more often. Returns the arms' true means."""
    rng = np.random.default_rng(seed)
    kind = (rng.random(rows_) < 0.3).astype(int)
    chances = np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
    means = np.array([[0.2, 0.3, 0.1], [0.1, 0.1, 0.6]])
    arms = (rng.random(rows_)[:, None] > np.cumsum(chances, 1)[kind]).sum(1)
    rewards = (rng.random(rows_) < means[kind, arms]).astype(float)
    shown = LoggedRows(0, arms.astype(np.int16), rewards, None, chances[kind, arms])
    return shown, 0.7 * means[0] + 0.3 * means[1]


def deviations(found: Matcher, log: LoggedRows, truth: np.ndarray) -> list[float]:
    """Each arm's mean over the rows it got, in standard errors from the truth."""
    found.feed(log)
    result = []
    for arm, mean in enumerate(truth):
        found.feed(log)  # every arm may look at the whole log
        rewards = found.take({arm: len(log)})[arm].rewards
        result.append((rewards.mean() - mean) / np.sqrt(mean * (1 - mean) / len(rewards)))
    return result


def test_rejection_is_unbiased_on_a_uniform_log() -> None:
    """False-failure probability below 1e-5."""
    rng = np.random.default_rng(11)
    truth = np.array([0.05, 0.3, 0.5, 0.9])
    arms = rng.integers(0, 4, 400_000).astype(np.int16)
    log = LoggedRows(0, arms, (rng.random(400_000) < truth[arms]).astype(float))

    assert max(map(abs, deviations(matcher(Mode.REJECTION, 4), log, truth))) < Z


def test_weighted_is_unbiased_on_a_skewed_log() -> None:
    """False-failure probability below 1e-5. The test has power: plain rejection is far off.

    It must be off by 32, 14.7 and 210 standard errors: arm b's rows have the mean
    (.7 .3 .3 + .3 .2 .1) / (.7 .3 + .3 .2) = .2556 in place of .24, over 162 000 rows.
    """
    log, truth = skewed(600_000, 12)
    survey = Survey()
    survey.add(log, 3)
    weighted = make(Mode.WEIGHTED, 3, survey.least, 7, RowPosition(0, (0, 0, 0)))
    plain = matcher(Mode.REJECTION, 3)

    assert max(map(abs, deviations(weighted, log, truth))) < Z
    assert min(map(abs, deviations(plain, log, truth))) > 14.7 - Z
    assert max(abs(survey.rates - truth)) < 0.01


def test_weighted_rows_do_not_depend_on_chunks() -> None:
    """The draw belongs to the row, so a resumed replay keeps the same ones."""
    log, _ = skewed(5_000, 13)
    floors = np.array([0.1, 0.2, 0.1])
    whole = make(Mode.WEIGHTED, 3, floors, 7, RowPosition(0, (0, 0, 0)))
    whole.feed(log)
    part = make(Mode.WEIGHTED, 3, floors, 7, RowPosition(0, (0, 0, 0)))
    cut = 1_234
    part.feed(
        LoggedRows(cut, log.arms[cut:], log.rewards[cut:], None, log.propensities[cut:])  # type: ignore[index]
    )
    needs = {0: 5_000, 1: 5_000, 2: 5_000}

    expected = {a: [r for r in t if r >= cut] for a, t in rows(whole.take(needs)).items()}
    assert expected == rows(part.take(needs))
    assert isinstance(whole, RowsInOrder)
    assert whole.thinning is not None
    assert 0.2 < whole.thinning.kept / whole.thinning.seen < 0.6
