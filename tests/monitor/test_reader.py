"""The monitor's view: what the public topics tell, whatever is written to them."""

import dataclasses

import orjson
import pytest

from stream_app.core.agents import agent_for
from stream_app.core.experiment import Experiment
from stream_app.core.state import ArmState, State, Status
from stream_app.core.window import LogPosition, Release
from stream_app.monitor.history import MAX_POINTS
from stream_app.monitor.view import View, regret
from stream_app.wire.assignment import Assignment
from stream_app.wire.sum import encode_sum
from tests.core.build import experiment

MEANS = (0.7, 0.2)


def total_for(mechanism_size: int, mean: float, of: Assignment) -> int:
    """The total of ones that debiases to about this mean."""
    mechanism = of.terms(of.state.open[0]).mechanism
    low = 0
    high = mechanism_size * mechanism.max_ones
    while low < high:
        middle = (low + high) // 2
        if mechanism.debias(middle) < mean * mechanism_size:
            low = middle + 1
        else:
            high = middle
    return low


def release(of: Assignment, mean: float) -> bytes:
    """The sum of its first open batch."""
    terms = of.terms(of.state.open[0])
    total = total_for(terms.mechanism.promise.batch_size, mean, of)
    return encode_sum(
        Release(terms.batch_id, terms, total, "00", LogPosition(0, 1), LogPosition(9, 2))
    )


def fold(of: Experiment, state: State, mean: float) -> State:
    batch = state.open[0]
    return agent_for(of).fold(state, batch.sequence, mean * batch.size)


def test_shows_a_new_experiment() -> None:
    """Before any sum: every arm is viable, its interval is all of [0, 1], the regret is unknown."""
    defined = experiment(horizon=10_000, means=MEANS)
    view = View()
    view.assignment(Assignment(defined, agent_for(defined).begin()).encode())

    shown = view.snapshot("test")

    assert shown is not None
    assert ("running", 1, None, 0, 10_000) == tuple(
        shown[key] for key in ("state", "phase", "serve", "users", "horizon")
    )
    assert [(0.0, 1.0, None)] * 2 == [(a["lower"], a["upper"], a["mean"]) for a in shown["arms"]]
    assert shown["estimated_regret"] is None
    assert shown["true_regret"] == 0
    assert 0 < shown["certified_delta"] <= shown["delta"] == 1e-6
    assert shown["epsilon"] == 0.5
    assert shown["guarantee"] == "expected"
    assert orjson.loads(orjson.dumps(shown))["name"] == "test"


def test_follows_sums_and_assignments() -> None:
    """Means and intervals are the agent's; the regret counts each arm's users by its gap."""
    defined = experiment(horizon=10_000, means=MEANS)
    state = agent_for(defined).begin()
    view = View()
    sizes = []
    for mean, at_ms in zip(MEANS, (1_000, 2_000), strict=True):
        view.sum(release(Assignment(defined, state), mean), at_ms)
        sizes.append(state.open[0].size)
        state = fold(defined, state, mean)
    view.assignment(Assignment(defined, state).encode())

    shown = view.snapshot("test")

    assert shown is not None
    assert shown["sums"] == 2
    assert shown["last_release_ms"] == 2_000
    assert shown["users"] == sum(sizes)
    assert agent_for(defined).means(state) == [arm["mean"] for arm in shown["arms"]]
    assert agent_for(defined).intervals(state) == [(a["lower"], a["upper"]) for a in shown["arms"]]
    assert shown["true_regret"] == pytest.approx(sizes[1] * 0.5)
    assert shown["estimated_regret"] == pytest.approx(sizes[1] * 0.5, rel=0.1)
    for arm, size, mean in zip(shown["arms"], sizes, MEANS, strict=True):
        assert [(size, pytest.approx(mean, abs=0.02))] == arm["history"]


def test_a_repeated_sum_counts_once() -> None:
    """A reader that begins again changes nothing."""
    defined = experiment(horizon=10_000, means=MEANS)
    begun = Assignment(defined, agent_for(defined).begin())
    view = View()
    for _ in range(3):
        view.assignment(begun.encode())
        view.sum(release(begun, 0.7), 1_000)

    shown = view.snapshot("test")

    assert shown is not None
    assert shown["sums"] == 1
    assert len(shown["arms"][0]["history"]) == 1


def test_a_new_record_replaces_the_snapshot() -> None:
    """The newest assignment is shown; a decided one names the arm to serve, and its terms stay."""
    defined = experiment(horizon=10_000, means=MEANS)
    begun = agent_for(defined).begin()
    view = View()
    view.assignment(Assignment(defined, begun).encode())
    view.sum(release(Assignment(defined, begun), 0.7), 1_000)
    before = view.snapshot("test")
    ended = dataclasses.replace(begun, status=Status.DECIDED, open=(), serve=1)
    view.assignment(Assignment(defined, ended).encode())

    shown = view.snapshot("test")

    assert before is not None
    assert shown is not None
    assert ("decided", "arm-1", []) == (shown["state"], shown["serve"], shown["open"])
    assert before["certified_delta"] == shown["certified_delta"]


def test_lists_experiments_by_name() -> None:
    """Only those with an assignment; a sum alone does not make an experiment."""
    view = View()
    for name in ("b", "a"):
        defined = dataclasses.replace(experiment(), name=name)
        view.assignment(Assignment(defined, agent_for(defined).begin()).encode())
    other = dataclasses.replace(experiment(), name="c")
    view.sum(release(Assignment(other, agent_for(other).begin()), 0.5), 1)

    assert ["a", "b"] == [entry["name"] for entry in view.experiments()]
    assert view.snapshot("c") is None
    assert view.snapshot("nobody") is None


@pytest.mark.parametrize(
    "value", [None, b"", b"\xff\x00", b"[]", b"{}", b'{"version":1}', b"1" * 5_000, b'{"a":' * 500]
)
def test_invalid_records_are_counted(value: bytes | None) -> None:
    """Whatever the bytes, they are skipped."""
    view = View()
    view.assignment(value)
    view.sum(value, 0)

    assert view.invalid == 2
    assert view.experiments() == []


@pytest.mark.parametrize("preset", ["sdp-ae", "vb-sdp-ae", "optimal", "kl-ucb"])
@pytest.mark.parametrize("epoch", [0, 60])
@pytest.mark.parametrize("batches", [3, 2**53 - 1])
def test_an_impossible_state_is_shown_without_estimates(
    preset: str, epoch: int, batches: int
) -> None:
    """Whoever writes assignments is not trusted: no state makes the page fail."""
    defined = experiment(preset, means=MEANS)
    arm = ArmState(True, batches, 2**53 - 1, 1e308, -1e308)
    state = dataclasses.replace(agent_for(defined).begin(), arms=(arm, arm), epoch=epoch)
    view = View()
    view.assignment(Assignment(defined, state).encode())

    shown = view.snapshot("test")

    assert orjson.dumps(shown)
    assert orjson.dumps(view.experiments())


def test_history_is_bounded() -> None:
    """Two thousand sums leave a few hundred points, the first and the last among them."""
    defined = experiment("kl-ucb", horizon=100_000, means=MEANS)
    begun = agent_for(defined).begin()
    view = View()
    view.assignment(Assignment(defined, begun).encode())
    batch = begun.open[0]
    for sequence in range(1, 2_001):
        opened = (dataclasses.replace(batch, sequence=sequence),)
        of = Assignment(defined, dataclasses.replace(begun, open=opened))
        terms = of.terms(opened[0])
        view.sum(
            encode_sum(
                Release(terms.batch_id, terms, 9, "00", LogPosition(0, 1), LogPosition(9, 2))
            ),
            sequence,
        )

    shown = view.snapshot("test")

    assert shown is not None
    assert shown["sums"] == 2_000
    history = shown["arms"][0]["history"]
    assert len(history) <= MAX_POINTS
    assert (batch.size, 2_000 * batch.size) == (history[0][0], history[-1][0])


def test_regret() -> None:
    """Users times gap, by the best known mean."""
    assert regret([10, 20, 30], (0.5, 0.4, 0.1)) == pytest.approx(14)
    assert regret([10, 20, 30], [0.5, None, 0.1]) == pytest.approx(12)
    assert regret([10], [None]) is None
