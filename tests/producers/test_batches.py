"""Which batch a user goes to: terms that do not hold are refused before any noise is drawn."""

import os
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from producers.batches import Draws, OpenBatches, Shown, rounded
from stream_app.core.agents import agent_for
from stream_app.core.state import Status
from stream_app.core.terms import Limits
from stream_app.errors import InvalidInput
from stream_app.wire.assignment import decode_offer
from tests.producers.build import NAME, assignment, banners, changed


def no_entropy(_: int) -> bytes:
    raise AssertionError("noise was drawn")


def halve_clip(terms: dict[str, Any]) -> None:
    terms["parameters"]["clip"] //= 2


# Each change with the way its terms are refused when the malicious agent also fixes the id.
TAMPERED: dict[str, tuple[Callable[[dict[str, Any]], None], str | None]] = {
    "size": (lambda t: t.update(batch_size=t["batch_size"] // 8), "its noise gives delta"),
    "mechanism": (lambda t: t.update(mechanism="binomial"), "parameters of binomial"),
    "noise": (halve_clip, "its noise gives delta"),
    "epsilon": (lambda t: t.update(epsilon="5"), "limits.max_epsilon"),
    "delta": (lambda t: t.update(delta="0.01"), "limits.max_delta"),
    "honest fraction": (lambda t: t.update(honest_fraction="1.1"), "honest_fraction"),
    "attribution window": (lambda t: t.update(attribution_ms=10**12), "limits.max_attribution_ms"),
    "experiment": (lambda t: t.update(experiment="other"), "another experiment"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_terms_that_do_not_hash_to_their_id_are_refused(what: str) -> None:
    """Whatever was changed: no batch is open, nothing is drawn."""
    offers = OpenBatches(NAME, Limits(), no_entropy)

    reasons = offers.take(decode_offer(changed(assignment(), TAMPERED[what][0], rehash=False)))

    assert 1 == len(reasons) == offers.refused
    assert offers.open == {}
    assert offers.pick() is None


@pytest.mark.parametrize("what", TAMPERED)
def test_terms_that_hash_but_do_not_hold_are_refused(what: str) -> None:
    """A malicious agent makes the id fit; the certificate or the limits do not."""
    change, reason = TAMPERED[what]
    offers = OpenBatches(NAME, Limits(), no_entropy)

    reasons = offers.take(decode_offer(changed(assignment(), change, rehash=True)))

    assert reason is not None
    assert reason in reasons[0]
    assert offers.pick() is None


def test_the_clients_own_limits_hold() -> None:
    """Valid terms above a limit are refused."""
    offers = OpenBatches(NAME, replace(Limits(), max_epsilon=Decimal("0.4")), no_entropy)

    (reason,) = offers.take(decode_offer(assignment()))

    assert "limits.max_epsilon" in reason


def test_second_terms_under_a_known_number_are_refused() -> None:
    """Both sets are valid; the first stands, the same again is no new one."""
    offers = OpenBatches(NAME, Limits())
    first = assignment()
    second = assignment(banners(epsilon="0.6"))

    assert offers.take(decode_offer(first)) == []
    (reason,) = offers.take(decode_offer(second))
    assert "has other terms already" in reason
    assert offers.pick() is None
    assert offers.take(decode_offer(first)) == []
    assert offers.pick() is not None


def test_an_older_number_is_refused() -> None:
    """Sequence numbers count up."""
    experiment = banners()
    agent = agent_for(experiment)
    later = agent.fold(agent.begin(), 1, 30.0)
    offers = OpenBatches(NAME, Limits())

    offers.take(decode_offer(assignment(experiment, later)))
    (reason,) = offers.take(decode_offer(assignment(experiment)))

    assert "is not a new one" in reason


def test_a_refusal_is_counted_once() -> None:
    """The same bad terms in the next assignment are no news."""
    offers = OpenBatches(NAME, Limits())
    bad = decode_offer(changed(assignment(), halve_clip, rehash=True))

    assert len(offers.take(bad)) == 1
    assert offers.take(bad) == []
    assert offers.refused == 1


def test_another_experiments_assignment_is_refused() -> None:
    """Its key and its content must agree."""
    with pytest.raises(InvalidInput, match="other"):
        OpenBatches(NAME, Limits()).take(decode_offer(assignment(banners("other"))))


def test_open_batches_are_chosen_by_their_sizes() -> None:
    """Two batches of equal size: 10 000 choices within 5 standard deviations (p < 1e-6)."""
    offers = OpenBatches(NAME, Limits())
    offers.take(decode_offer(assignment(banners(order="interleaved"))))

    picked = [offers.pick() for _ in range(10_000)]
    counts = Counter(batch.arm for batch in picked if batch is not None)

    assert set(counts) == {"arm-0", "arm-1"}
    assert abs(counts["arm-0"] - 5000) < 250


def test_after_the_decision_its_arm_is_served() -> None:
    """No batch, and the arm that the agent names."""
    experiment = banners()
    decided = replace(agent_for(experiment).begin(), status=Status.DECIDED, open=(), serve=1)
    offers = OpenBatches(NAME, Limits())
    offers.take(decode_offer(assignment(experiment, decided)))

    assert offers.pick() is None
    assert offers.fallback() == "arm-1"


def test_a_forked_child_draws_its_own_randomness() -> None:
    """Ids and noise that the parent has drawn ahead are forgotten in the child."""
    draws = Draws()
    offers = OpenBatches(NAME, Limits())
    offers.take(decode_offer(assignment()))
    batch = offers.pick()
    assert batch is not None
    draws.take()
    batch.sampler.draw()
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        words = [batch.sampler.draw() for _ in range(4)]
        os.write(writable, draws.take() + b"".join(word.to_bytes(8) for word in words))
        os._exit(0)
    os.waitpid(child, 0)
    of_child = os.read(readable, 48)
    os.close(readable)
    os.close(writable)

    assert of_child[:16] != draws.take()
    assert of_child[16:] != b"".join(batch.sampler.draw().to_bytes(8) for _ in range(4))


def test_draws_are_used_once() -> None:
    """All bytes of two blocks are different pieces of the source."""
    taken: list[bytes] = []

    def source(size: int) -> bytes:
        taken.append(secrets.token_bytes(size))
        return taken[-1]

    draws = Draws(source)

    pieces = [draws.take() for _ in range(1024)]

    assert len(taken) == 2
    assert sorted(pieces) == sorted(
        block[i : i + 16] for block in taken for i in range(0, len(block), 16)
    )


@pytest.mark.parametrize(
    "shown",
    [
        Shown("blue", ""),
        Shown("春 ~ %41\t!", "12.ab_-Z", bytes(range(16))),
        Shown("x" * 100, "1.a", bytes(16), 1_700_000_000_000),
    ],
)
def test_what_was_shown_has_a_text_form(shown: Shown) -> None:
    """For a session or a link: plain characters, and the same back."""
    text = str(shown)

    assert text.isascii()
    assert " " not in text
    assert Shown.parse(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "blue",
        "2~" + "0" * 32 + "~~1.a~blue",
        "1~" + "0" * 31 + "~~1.a~blue",
        "1~" + "0" * 32 + "~-1~1.a~blue",
        "1~" + "0" * 32 + "~~~blue",
        "1~~~1.a~blue",
        "1~~~~",
        "1~~~~%ff",
        "1~~~~a\n",
        "1~~~~" + "a" * 1201,
    ],
)
def test_a_text_that_no_client_made_is_refused(text: str) -> None:
    """It comes back from outside."""
    with pytest.raises(InvalidInput, match="shown: "):
        Shown.parse(text)


def test_rewards_are_rounded_with_their_mean() -> None:
    """20 000 draws within 5 standard deviations (p < 1e-6); 0 and 1 are kept."""
    drawn = [rounded(0.3) for _ in range(20_000)]

    assert {rounded(0), rounded(0.0), rounded(1), rounded(True)} == {0, 1}
    assert set(drawn) == {0, 1}
    assert abs(sum(drawn) - 6_000) < 5 * (20_000 * 0.21) ** 0.5


@pytest.mark.parametrize(("window_ms", "accepted"), [(None, 1), (60_000, 1), (0, 0), (59_999, 0)])
def test_a_window_that_the_product_was_not_written_for_is_refused(
    window_ms: int | None, accepted: int
) -> None:
    """What the product's code does is not the agent's to say."""
    offers = OpenBatches(NAME, Limits(), window_ms=window_ms)
    reasons = offers.take(decode_offer(assignment(banners(attribution_s="60"))))

    assert len(offers.open) == accepted
    assert len(reasons) == offers.refused == 1 - accepted
    assert all("attribution_ms = 60000, but this client was made for" in each for each in reasons)
