"""An experiment in plain words: where it stands, what is promised, and under which assumptions.

Takes an experiment and a snapshot of the view, gives text. The same words are on the web page and
in its API. Promise and guarantee are worded in the core, for all surfaces.
"""

from typing import Any

from stream_app.core.experiment import Experiment, Privacy
from stream_app.core.state import Status
from stream_app.core.wording import ONE_REPORT, TRUSTED, guarantee, percent, promise


def describe(experiment: Experiment, shown: dict[str, Any]) -> dict[str, Any]:
    """All sentences about a snapshot."""
    return {
        "state": state(shown),
        "next": following(shown),
        "guarantee": guarantee(experiment.agent, shown["horizon"]),
        "privacy": promise(experiment.privacy),
        "certificate": certificate(shown["certificate"]),
        "reports": reports(shown),
        "assumptions": assumptions(experiment.privacy),
    }


def state(shown: dict[str, Any]) -> str:
    """Where it stands, in a few words; the arm to serve stands last, for it may be long."""
    serve = shown["serve"]
    match Status(shown["state"]):
        case Status.RUNNING:
            return f"running: phase {shown['phase']}, {shown['viable']} of {_arms(shown)} viable"
        case Status.DECIDED:
            return f"decided: serve {serve}"
        case Status.EXHAUSTED:
            return f"horizon reached, undecided: serve the leader, {serve}"
        case Status.STOPPED:
            return f"stopped by the operator: serve the leader, {serve}"


def following(shown: dict[str, Any]) -> str:
    """What comes next."""
    if shown["state"] != Status.RUNNING:
        return "Nobody reports any more."
    opened = shown["open"]
    if not opened:
        return "No batch is open: the agent is deciding."
    sizes = sorted({batch["size"] for batch in opened})
    of = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    many = "One batch is" if len(opened) == 1 else f"{len(opened)} batches are"
    return (
        f"{many} open, of {of} users; nothing is known of an open batch until its sum is released."
    )


def certificate(of: dict[str, Any] | None) -> str:
    """What was computed for the newest batch."""
    if of is None:
        return "No batch yet, so nothing to certify."
    return (
        f"The noise of the newest batch ({of['mechanism']}, {of['size']:,} users, of whom "
        f"{of['honest']:,} must be honest) has a delta of at most {of['certified_delta']:.3g} "
        f"at epsilon = {of['epsilon']:g}: computed from the batch's public terms, and checked "
        "again by every client and by the shuffle stage before a report counts."
    )


def reports(shown: dict[str, Any]) -> str:
    """What becomes of single reports, by the settings that the monitor was given."""
    if shown["reports_retained"]:
        return (
            "By the service's settings, reports are kept for an auditor after their batch is "
            "released, until the retention time of their topic ends. For so long, whoever can "
            "read that topic or its disks sees single reports."
        )
    return (
        "By the service's settings, reports are deleted from their topic once no open batch "
        "needs them."
    )


def assumptions(privacy: Privacy) -> list[str]:
    """What the promise rests on."""
    return [
        f"Whoever sees single reports is trusted: {TRUSTED}. The agent and the readers of this "
        "page are not.",
        f"At least {percent(privacy.honest_fraction)} of the reports in each batch come from "
        "honest clients, which add their share of the noise. Whoever can forge more weakens the "
        "promise.",
        "Each user sends one report to this experiment, ever. Over several experiments, what a "
        "user spends adds up.",
        "Whether and when a report is sent does not depend on the reward.",
        f"{ONE_REPORT} So nobody else may see a report.",
    ]


def _arms(shown: dict[str, Any]) -> str:
    return f"{len(shown['arms'])} arms"
