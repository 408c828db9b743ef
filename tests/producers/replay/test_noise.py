import inspect
from decimal import Decimal

import numpy as np
import pytest

from producers.client import Client
from producers.commands.replay import replay
from producers.replay import session
from producers.replay.noise import BatchNoise, Stream
from stream_app.core.mechanisms import Calibration, Mechanism, MechanismName, Promise, calibrate
from tests.producers.replay.build import KEY


def mechanism(name: str, calibration: str, size: int) -> Mechanism:
    promise = Promise(Decimal("0.5"), Decimal("1e-6"), size)
    return calibrate(promise, MechanismName(name), Calibration(calibration))


@pytest.mark.parametrize(
    "made",
    [
        mechanism("discrete-laplace", "exact", 2),
        mechanism("discrete-laplace", "exact", 1_000),
        mechanism("binomial", "exact", 10),
        mechanism("binomial", "exact", 5_000),
        mechanism("binomial", "paper", 100),
        mechanism("binomial", "paper", 20_000),
    ],
)
def test_many_at_once_is_the_mechanism_s_own_sampler(made: Mechanism) -> None:
    """The same stream through `Sampler.encode`, one reward at a time."""
    rewards = np.array([0.0, 1.0, 1.0, 0.0] * 200)
    sampler = made.sampler(Stream(KEY, "noise 1.x").take)
    one_by_one = [sampler.encode(reward) for reward in rewards]
    noise = BatchNoise(made, KEY, "1.x")

    assert one_by_one == [*noise.encode(rewards[:300]), *noise.encode(rewards[300:])]


def test_rewards_between_0_and_1_keep_their_mean() -> None:
    """Rounded at random: 5 standard errors, false-failure probability 6e-7."""
    made = mechanism("discrete-laplace", "exact", 100_000)
    noise = BatchNoise(made, KEY, "1.x")
    bits = noise.rounded(np.full(100_000, 0.3))

    assert {0, 1} == set(bits.tolist())
    assert abs(bits.mean() - 0.3) < 5 * np.sqrt(0.21 / 100_000)


def test_a_stream_is_one_stream_however_it_is_read() -> None:
    """Other purposes and keys give other ones."""
    whole = Stream(KEY, "x").take(100_000)
    piecewise = Stream(KEY, "x")

    assert whole == b"".join(piecewise.take(n) for n in (1, 32_767, 5, 40_000, 27_227))
    assert whole[:32] != Stream(KEY, "y").take(32)
    assert whole[:32] != Stream(bytes(32), "x").take(32)


def test_ids_are_new_for_every_report() -> None:
    """And the same again for the same batch and key."""
    made = mechanism("discrete-laplace", "exact", 100)
    noise = BatchNoise(made, KEY, "1.x")
    again = BatchNoise(made, KEY, "1.x")
    ids = noise.ids(500) + noise.ids(500)

    assert len({ids[i : i + 16] for i in range(0, 16_000, 16)}) == 1000
    assert ids == again.ids(1000)


def test_only_a_test_can_choose_the_key() -> None:
    """No option of the command and no argument of the client reaches the noise."""
    assert not any("key" in option.name for option in replay.params)
    assert not {"key", "_key", "entropy", "seed"} & set(inspect.signature(Client).parameters)
    for play in (session.in_memory, session.through_kafka):
        assert inspect.signature(play).parameters["_key"].default is None
