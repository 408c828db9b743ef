"""Noninterference of the stages: what is public does not depend on rewards, but for the sums.

Two runs have the same ids, times and schedule, and rewards that differ. In the first form rewards
and noise are permuted within each window, so that totals are kept: every byte must be equal. In
the second they are changed at will, and all but the value of a sum must be equal. The scripts are
drawn by hypothesis, which shows the shortest one that tells two runs apart. A difference that
needs an event which no script has, or that is one of time, is not seen.
"""

import random
from collections import defaultdict
from collections.abc import Iterator

import orjson
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.core.build import experiment
from tests.noninterference.world import Ones, Step, World, named, without_sums

STEPS = st.lists(
    st.one_of(
        st.builds(Step, st.just("users"), st.integers(1, 12)),
        st.builds(Step, st.just("feed"), st.integers(1, 20)),
        st.builds(Step, st.sampled_from(["again", "bad"]), st.integers(1, 4)),
        st.builds(Step, st.just("tick"), st.sampled_from([1, 4_000])),
        st.builds(Step, st.sampled_from(["crash", "abort"]), st.integers(1, 12)),
        st.just(Step("agent dies")),
    ),
    min_size=3,
    max_size=14,
)
# Small windows, so that a script fills several; small rereads, so that checkpoints are written.
EXPERIMENT = named(experiment(honest="0.9", horizon=2_000, arms=2, batch_size=4, schedule="fixed"))


def drawn(number: int) -> Ones:
    """Ones by report id, from a seed."""
    return lambda identity, most: random.Random(identity + bytes([number])).randint(0, most)


def windows(world: World) -> Iterator[list[bytes]]:
    """The ids of each window, released or open, in the order of the log."""
    found: defaultdict[str, list[bytes]] = defaultdict(list)
    for identity, (batch, _) in world.said.items():  # in the order in which they came first
        found[batch].append(identity)
    released = (orjson.loads(r.value or b"") for r in world.kafka.records("sums", committed=False))
    sizes = {raw["batch"]: raw["terms"]["batch_size"] for raw in released}
    for batch, ids in found.items():
        yield ids[: sizes.get(batch, len(ids))]


def permuted(world: World, number: int) -> Ones:
    """The ones of a run, given to others of the same window."""
    chance = random.Random(number)
    given = {identity: ones for identity, (_, ones) in world.said.items()}
    for ids in windows(world):
        values = [given[identity] for identity in ids]
        chance.shuffle(values)
        given.update(zip(ids, values, strict=True))
    return lambda identity, _most: given[identity]


@seed(20261118)
@settings(max_examples=600, deadline=None)
@given(STEPS, st.sampled_from([2, 8, 1_000_000]), st.integers(0, 255))
def test_the_same_totals_are_the_same_bytes(steps: list[Step], reread: int, number: int) -> None:
    """Rewards and noise that change hands within their windows change nothing that is public."""
    one = World(EXPERIMENT, drawn(number), reread)
    one.play(steps)
    other = World(EXPERIMENT, permuted(one, number), reread)
    other.play(steps)

    assert one.seen == other.seen


@seed(20261119)
@settings(max_examples=600, deadline=None)
@given(STEPS, st.sampled_from([2, 8, 1_000_000]), st.integers(0, 127))
def test_other_rewards_are_other_sums_alone(steps: list[Step], reread: int, number: int) -> None:
    """Until the first sum is folded nothing differs but the values of sums."""
    seen = []
    for rewards in (number, number + 128):
        world = World(EXPERIMENT, drawn(rewards), reread)
        # No agent: what it decides is a function of the sums.
        world.play([step for step in steps if step.kind != "agent dies"], agent=False)
        seen.append(without_sums(world.seen))

    assert seen[0] == seen[1]


def test_a_leak_would_be_seen() -> None:
    """The test can fail: sizes that tell the digits of a total are found."""
    steps = [Step("users", 3), Step("feed", 3)]
    low = World(EXPERIMENT, lambda _, __: 0, 1_000_000)
    low.play(steps)
    high = World(EXPERIMENT, lambda _, most: most, 1_000_000)
    high.play(steps)
    low.seen.append(len(str(sum(ones for _, ones in low.said.values()))))
    high.seen.append(len(str(sum(ones for _, ones in high.said.values()))))

    assert low.seen[:-1] == high.seen[:-1]
    assert low.seen != high.seen


def test_a_script_releases_and_saves() -> None:
    """The scripts are not empty: sums are released and folded, and checkpoints written."""
    world = World(EXPERIMENT, drawn(1), 2)
    world.play([Step("users", 3), Step("feed", 3), Step("users", 6), Step("feed", 6)] * 2)

    assert len(world.kafka.records("sums")) >= 2
    assert len(world.kafka.records("assignments")) >= 2
    assert world.kafka.records("windows")
