"""The sentences of promise and guarantee, word for word: every surface shows these."""

from decimal import Decimal

import pytest

from stream_app.core.promise import Promise
from stream_app.core.wording import guarantee, percent, promise
from tests.core.build import experiment

PROMISE = (
    "Each user is (0.5, 0.000001)-differentially private in all that the agent and every reader of "
    "the released sums can see, as long as at least 90% of each batch's reports come from honest "
    "clients and whoever sees single reports (gateway, Kafka, shuffle stage, auditor) is trusted."
)
EXPECTED = (
    "the expected regret is bounded up to T = 2,000 users; nothing is promised of the winner's "
    "name (where the name matters, use guarantee = high-probability)"
)
KL_UCB = (
    "no arm is ever dropped; the best arm is underestimated with a probability of 1/T at most, "
    "T = 2,000 users; nothing is promised of the winner's name"
)
HIGH_PROBABILITY = (
    "the best arm is dropped with a probability of about 1/T at most, T = 2,000 users"
)


def test_promise() -> None:
    """The same for an experiment and for one of its batches; the certified delta stands in it."""
    privacy = experiment("optimal", epsilon="0.5", delta="1e-6", honest="0.9").privacy
    batch = Promise(Decimal("0.5"), Decimal("1E-6"), 1000, Decimal("0.90"))

    assert PROMISE == promise(privacy) == promise(batch)
    assert " can see (certified delta 7.15e-07), as long" in promise(batch, 7.1541e-7)


@pytest.mark.parametrize(
    ("preset", "changes", "sentence"),
    [
        ("optimal", {}, EXPECTED),
        ("kl-ucb", {}, EXPECTED.replace("use g", "use preset = optimal with g")),
        ("kl-ucb", {"guarantee": "high-probability"}, KL_UCB),
        ("optimal", {"guarantee": "high-probability"}, HIGH_PROBABILITY),
        ("vb-sdp-ae", {}, HIGH_PROBABILITY),
    ],
)
def test_guarantee(preset: str, changes: dict[str, str], sentence: str) -> None:
    assert sentence == guarantee(experiment(preset, 2_000, **changes).agent, 2_000)


def test_an_unknown_horizon_is_a_guess() -> None:
    settings = experiment("optimal", horizon_known=False).agent

    assert "T = 4,000 users (the current guess of an unknown horizon);" in guarantee(
        settings, 4_000
    )


@pytest.mark.parametrize(("fraction", "text"), [("0.9", "90%"), ("1", "100%"), ("0.995", "99.5%")])
def test_a_fraction_is_not_rounded(fraction: str, text: str) -> None:
    assert text == percent(Decimal(fraction))
