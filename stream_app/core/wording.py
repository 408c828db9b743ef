"""The one wording of the promise to each user, and of the guarantee for a decision.

Close to a legal text, so no surface has its own: page, API, terminal, demo, commands and reports of
a replay all take these sentences. Pure: values in, text out. What each surface says beside them (a
certificate, what becomes of reports) is its own affair, as long as it promises nothing more.
"""

from decimal import Decimal
from typing import Final

from stream_app.core.experiment import AgentSettings, Comparison, Guarantee, Privacy
from stream_app.core.promise import Promise, plain

# Those who must be trusted, wherever a surface names them (deploy/SECURITY.md says with what).
TRUSTED: Final = "gateway, Kafka, shuffle stage, auditor"
# Said wherever there is room: the shuffle model is not the local one.
ONE_REPORT: Final = (
    "One report alone hides little, and a batch of them in random order is not private either: it "
    "is their sum that is."
)


def promise(to_each: Privacy | Promise, certified_delta: float | None = None) -> str:
    """What each user is promised, and on what conditions; with what a batch's noise certifies."""
    certified = "" if certified_delta is None else f" (certified delta {certified_delta:.3g})"
    return (
        f"Each user is ({plain(to_each.epsilon)}, {plain(to_each.delta)})-differentially private "
        f"in all that the agent and every reader of the released sums can see{certified}, as long "
        f"as at least {percent(to_each.honest_fraction)} of each batch's reports come from honest "
        f"clients and whoever sees single reports ({TRUSTED}) is trusted."
    )


def guarantee(agent: AgentSettings, horizon: int) -> str:
    """What a decision is worth: to stand behind "Guarantee: ", so without capital and full stop.

    With an unknown horizon, `horizon` is the guess at which the experiment is.
    """
    users = f"T = {horizon:,} users"
    if not agent.horizon_known:
        users += " (the current guess of an unknown horizon)"
    if agent.guarantee is Guarantee.EXPECTED:
        named = f"guarantee = {Guarantee.HIGH_PROBABILITY}"
        if agent.test is Comparison.KL_UCB:  # it drops no arm, so no guarantee of it names one
            named = "preset = optimal with " + named
        return (
            f"the expected regret is bounded up to {users}; nothing is promised of the winner's "
            f"name (where the name matters, use {named})"
        )
    if agent.test is Comparison.KL_UCB:
        return (
            "no arm is ever dropped; the best arm is underestimated with a probability of 1/T at "
            f"most, {users}; nothing is promised of the winner's name"
        )
    return f"the best arm is dropped with a probability of about 1/T at most, {users}"


def percent(fraction: Decimal) -> str:
    """A fraction as it is, not rounded: 99.5% must not become 100%."""
    return f"{plain(fraction * 100)}%"
