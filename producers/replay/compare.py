"""The same log with other agents: the paper's own constants, and no privacy at all."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from producers.replay.match import Matcher
from producers.replay.memory import Player
from stream_app.core.baselines import no_noise
from stream_app.core.experiment import Comparison, Experiment, Guarantee, ScheduleName
from stream_app.core.mechanisms import Calibration, MechanismName

# The paper's constants are proved below 1 only.
_PAPER_EPSILON = Decimal("0.99")
# Without noise small batches cost nothing; from here on they grow, so that decisions stay few.
_FIRST_BATCH = 16
_GROWTH = Decimal("1.5")


def others(experiment: Experiment, matcher: Callable[[], Matcher], key: bytes) -> list[Player]:
    """The agents to compare with, each with a matcher of its own."""
    paper = with_paper_constants(experiment)
    name = "paper's constants"
    if paper.privacy.epsilon != experiment.privacy.epsilon:
        name += f" (at eps {paper.privacy.epsilon}: proved below 1 only)"
    return [
        Player(name, paper, matcher(), key),
        Player("without privacy", without_privacy(experiment), matcher(), None, no_noise),
    ]


def with_paper_constants(experiment: Experiment) -> Experiment:
    """VB-SDP-AE with the noise and the radius that the paper prints."""
    privacy = replace(
        experiment.privacy,
        mechanism=MechanismName.BINOMIAL,
        calibration=Calibration.PAPER,
        epsilon=min(experiment.privacy.epsilon, _PAPER_EPSILON),
    )
    agent = replace(
        experiment.agent,
        preset="vb-sdp-ae",
        test=Comparison.PAPER,
        guarantee=Guarantee.HIGH_PROBABILITY,
        schedule=ScheduleName.DOUBLING,
        batch_size=None,
    )
    return replace(experiment, privacy=privacy, agent=agent)


def without_privacy(experiment: Experiment) -> Experiment:
    """The sharpest test of the same kind on the rewards themselves, batches from 16."""
    first = max(2, min(_FIRST_BATCH, experiment.horizon // (8 * len(experiment.arms))))
    sharp = Comparison.KL_UCB if experiment.agent.test is Comparison.KL_UCB else Comparison.PAIRWISE
    agent = replace(
        experiment.agent,
        test=sharp,
        schedule=ScheduleName.GEOMETRIC,
        batch_size=first,
        growth=_GROWTH,
    )
    return replace(experiment, agent=agent)
