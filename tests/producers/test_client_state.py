"""Who reports what and when, with a clock that the test moves."""

import os
from decimal import Decimal

import pytest

from producers.batches import Shown
from producers.store import Budget, MemoryStore
from stream_app.core.agents import agent_for
from stream_app.errors import ConfigurationError, IllegalTransition, Unavailable
from tests.producers.build import Clock, assignment, banners, changed, state


def test_a_user_reports_once() -> None:
    """After the report the user still sees an arm, but is bound to no batch."""
    made = state(assignment())
    shown = made.choose("ada")

    assert made.choose("ada") == shown
    assert made.report(shown, 1)
    assert not made.report(shown, 1)
    made.end(made.leaving)
    again = made.choose("ada")
    assert again == Shown(shown.arm, "")
    assert not made.report(again, 1)
    assert (made.counts.chosen, made.counts.repeated) == (1, 1)


def test_costs_add_up_over_experiments() -> None:
    """Two experiments at 0.5 fit into a budget of 1, the third does not; another user does."""
    store = MemoryStore()
    budget = Budget(max_user_epsilon=Decimal(1))
    desks = [
        state(assignment(banners(name)), store=store, budget=budget, name=name)
        for name in ("one", "two", "three")
    ]

    assert [bool(made.choose("ada").batch_id) for made in desks] == [True, True, False]
    assert desks[2].counts.over_budget == 1
    assert desks[2].choose("bob").batch_id
    assert store.spent(store.tag("ada")).epsilon == 1


def test_delta_counts_too() -> None:
    """A budget of delta is kept like that of epsilon."""
    made = state(assignment(), budget=Budget(max_user_delta=Decimal("0.0000001")))

    assert not made.choose("ada").batch_id


def test_the_report_leaves_at_the_deadline_whatever_happened() -> None:
    """Clicks, non-clicks and silence leave at the same time, in the order of the choices."""
    clock = Clock()
    made = state(assignment(banners(attribution_s="60")), clock=clock)
    shown = [made.choose(user) for user in ("click", "none", "silent")]
    made.report(shown[1], 0)
    made.report(shown[0], 1)

    clock.now_ms += 59_999
    made.due()
    assert made.leaving == []
    assert made.next_due_s() == 0.001
    clock.now_ms += 1
    made.due()
    assert [report.shown for report in made.leaving] == shown
    assert [report.bit for report in made.leaving] == [1, 0, None]
    assert made.next_due_s() is None


def test_a_reward_after_the_deadline_does_not_count() -> None:
    """Even if the report has not left yet."""
    clock = Clock()
    made = state(assignment(banners(attribution_s="60")), clock=clock)
    shown = made.choose("ada")

    clock.now_ms += 60_000
    assert not made.report(shown, 1)
    made.due()
    [report] = made.leaving
    assert report.bit is None
    assert not made.report(shown, 1)
    assert (made.counts.late, made.bound, made.waiting) == (2, 1, {})


def test_noise_is_drawn_once() -> None:
    """A second reward changes nothing; the noise share is what the first drew."""
    clock = Clock()
    made = state(assignment(banners(attribution_s="60")), clock=clock)
    shown = made.choose("ada")
    made.report(shown, 1)
    [report] = made._by_user.values()
    ones = report.ones

    assert not made.report(shown, 0)
    clock.now_ms += 60_000
    made.due()
    assert made.leaving[0].ones == ones


def test_without_a_window_an_unreported_choice_ends_with_its_batch() -> None:
    """Nobody waits for ever for a reward that was never reported."""
    experiment = banners()
    agent = agent_for(experiment)
    made = state(assignment(experiment))
    shown = made.choose("ada")

    made.follow(assignment(experiment, agent.fold(agent.begin(), 1, 3.0)))
    assert (made.bound, made.waiting) == (0, {})
    assert not made.report(shown, 1)


def test_a_report_to_a_closed_batch_leaves_all_the_same() -> None:
    """Whether a report is sent depends on time only."""
    clock = Clock()
    experiment = banners(attribution_s="60")
    agent = agent_for(experiment)
    made = state(assignment(experiment), clock=clock)
    shown = made.choose("ada")

    made.follow(assignment(experiment, agent.fold(agent.begin(), 1, 3.0)))
    clock.now_ms += 60_000
    made.due()
    assert [report.shown for report in made.leaving] == [shown]


def test_memory_is_bounded() -> None:
    """With too many reports waiting, users see arms and are not counted."""
    made = state(assignment(), max_waiting=2)

    assert [bool(made.choose(str(i)).batch_id) for i in range(3)] == [True, True, False]
    assert made.counts.full == 1


def test_users_whose_report_has_left_are_forgotten() -> None:
    """Not at once, but before there are many; those who wait are shown the same as before."""
    made = state(assignment(), max_waiting=10_000)
    silent = {f"silent {i}": made.choose(f"silent {i}") for i in range(50)}
    most = 0
    for user in range(5_000):
        shown = made.choose(f"{user}")
        made.report(shown, 1)
        assert made.choose(f"{user}").batch_id == ""
        made.end(made.leaving)
        made.leaving.clear()
        most = max(most, len(made._by_user))

    assert 50 < most < 1_200
    assert silent == {user: made.choose(user) for user in silent}
    assert (made.bound, made.counts.repeated) == (50, 5_000)


def test_refused_terms_leave_nothing_to_show() -> None:
    """If nothing was ever accepted, the error says where to look."""
    bad = changed(assignment(), lambda terms: terms.update(delta="0.01"), rehash=True)

    with pytest.raises(Unavailable, match="refused"):
        state(bad).choose("ada")


@pytest.mark.parametrize("reward", [1.25, -0.5, float("nan")])
def test_a_bad_reward_is_not_repeated_in_the_error(reward: float) -> None:
    """Errors end up in logs."""
    made = state(assignment())
    shown = made.choose("ada")

    with pytest.raises(ConfigurationError) as caught:
        made.report(shown, reward)
    assert str(caught.value) == "reward: must be a number from 0 to 1"


def test_no_repr_shows_what_a_report_says() -> None:
    """At large batches one count of ones is nearly the reward."""
    made = state(assignment())
    made.report(made.choose("ada"), 1)
    (report,) = made.leaving
    report.noise = 987_653

    assert "987654" not in repr(report)
    assert "987654" not in repr(made._by_user)


def test_a_client_is_refused_in_a_forked_child() -> None:
    """Its connections, file and reports are the parent's."""
    made = state(assignment())
    shown = made.choose("bob")
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: made.choose("ada"), lambda: made.report(shown, 1)):
            try:
                call()
            except IllegalTransition:
                refused += 1
        os._exit(5 + refused)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert made.choose("ada").batch_id
    assert made.report(shown, 1)
