"""What a replay found, as plain values for JSON; `wording` and `page` show them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import numpy as np

from producers.replay.log import Floats, TrafficLog
from producers.replay.match import Mode
from producers.replay.memory import Moment, Run
from producers.replay.session import Played
from producers.replay.survey import Survey
from stream_app.core import wording
from stream_app.core.agents import Agent, Status
from stream_app.core.experiment import Comparison, Privacy

_LISTED = 6  # arms in the verdict that is to stay one sentence


def report(played: Played) -> dict[str, Any]:
    """Everything, in values that JSON has."""
    run = played.runs[0]
    survey = played.survey
    plan = played.plan
    rates = np.nan_to_num(survey.rates, nan=0.0)
    moments = course(run)
    horizon = run.experiment.horizon << run.state.epoch
    return {
        "experiment": plan.experiment.name,
        "files": played.files,
        "mode": str(plan.mode),
        "through": played.through,
        "verdict": verdict(run),
        "guarantee": f"{wording.guarantee(run.experiment.agent, horizon)}.",
        "decisions": decisions(run),
        "arms": _arms(run, survey, moments),
        "best_in_log": plan.experiment.arms[int(rates.argmax())],
        "agents": [_agent(one, rates) for one in played.runs],
        "rows": _rows(played),
        "choice_p": survey.choice_p(),
        "days": survey.day_table(),
        "warnings": _warnings(played),
        "privacy": _privacy(plan.experiment.privacy),
        "course": moments,
    }


def survey_report(
    log: TrafficLog, survey: Survey, mode: Mode, known: Sequence[str] | None
) -> dict[str, Any]:
    """What `--dry-run` found."""
    rates = survey.rates
    bounds = survey.intervals()
    return {
        "files": [source.name for source in log.sources],
        "format": log.form.name,
        "columns": log.columns.named(),
        "rows": {
            "read": log.rows,
            "filtered": log.filtered,
            "usable": survey.rows,
            "skipped": _skipped(log.skipped),
        },
        "arms": [
            {
                "arm": arm,
                "rows": int(survey.counts[i]),
                "rate": None if math.isnan(rates[i]) else float(rates[i]),
                "interval": bounds[i],
                "in_experiment": None if known is None else arm in known,
            }
            for i, arm in enumerate(log.arms)
        ],
        "choice_p": survey.choice_p(),
        "days": survey.day_table(),
        "warnings": survey.warnings(mode),
    }


def verdict(run: Run) -> dict[str, Any]:
    """What was decided, and when; or that nothing was, and why."""
    state = run.state
    experiment = run.experiment
    leader = experiment.arms[leading(run)]
    users = sum(run.taken)
    left = [arm for arm, a in zip(experiment.arms, state.arms, strict=True) if a.viable]
    at = f"after {users:,} users (row {run.row:,}{_at(run.time_s)})"
    if state.status is Status.DECIDED:
        outcome = "decided"
        said = f"Decided: {leader}, {at}."
    elif experiment.agent.test is Comparison.KL_UCB:
        outcome = "undecided"
        said = f"kl-ucb shows the best more and more and names no winner; leader {leader}, {at}."
    else:
        outcome = "undecided"
        why = {
            Status.EXHAUSTED: f"no further phase fits into the horizon of {experiment.horizon:,}",
            Status.STOPPED: "the experiment was stopped",
        }.get(state.status, "the log ended")
        listed = ", ".join(left[:_LISTED]) + (", ..." if len(left) > _LISTED else "")
        said = (
            f"Undecided: {why} {at} with {len(left)} arms left ({listed}): what they gave is too "
            f"close to tell apart; leader {leader}."
        )
    return {
        "outcome": outcome,
        "status": str(state.status) if state.status is not Status.RUNNING else "log-ended",
        "arm": leader,
        "users": users,
        "row": run.row,
        "time": _iso(run.time_s),
        "left": left,
        "text": said,
    }


def decisions(run: Run) -> list[dict[str, Any]]:
    """Which arms were dropped when."""
    found = []
    before = (True,) * len(run.experiment.arms)
    for moment in run.moments:
        dropped = [
            arm
            for arm, was, now in zip(run.experiment.arms, before, moment.viable, strict=True)
            if was and not now
        ]
        if dropped:
            found.append(
                {
                    "row": moment.row,
                    "users": moment.users,
                    "time": _iso(moment.time_s),
                    "dropped": dropped,
                }
            )
        before = moment.viable
    return found


def leading(run: Run) -> int:
    """The arm to serve, or the viable one with the best mean so far."""
    if run.state.serve is not None:
        return run.state.serve
    means = [a.total / a.users if a.viable and a.users else -math.inf for a in run.state.arms]
    return int(np.argmax(means))


def regret_at(run: Run, rates: Floats) -> list[tuple[int, float]]:
    """Users and regret so far, by the log's own rates, to the horizon; the leader is served last.

    Regret is what those users would have given more, had all been shown the log's best arm.
    """
    gaps = rates.max() - rates
    path = [(0, 0.0)]
    path += [(m.users, float(np.dot(m.taken, gaps))) for m in run.moments]
    users = sum(run.taken)
    spent = float(np.dot(run.taken, gaps))
    if users > path[-1][0]:
        path.append((users, spent))
    horizon = run.experiment.horizon << run.state.epoch
    if horizon > users:
        path.append((horizon, spent + (horizon - users) * float(gaps[leading(run)])))
    return path


def course(run: Run) -> list[dict[str, Any]]:
    """Every moment with the arms' private estimates and their intervals.

    Bounds cost milliseconds each, so the arms of all moments of an epoch are asked for at once.
    """
    agent = Agent(run.experiment)
    arms = len(run.experiment.arms)
    found: list[dict[str, Any]] = []
    for epoch, group in groupby(run.moments, key=lambda moment: moment.epoch):
        moments = list(group)
        arms_of_all = tuple(arm for moment in moments for arm in moment.arms)
        state = replace(run.state, epoch=epoch, arms=arms_of_all)
        means = agent.means(state)
        intervals = agent.intervals(state)
        for i, moment in enumerate(moments):
            own = slice(i * arms, (i + 1) * arms)
            found.append(_moment(moment, means[own], intervals[own]))
    return found


def _arms(run: Run, survey: Survey, moments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last = moments[-1] if moments else None
    rates = survey.rates
    bounds = survey.intervals()
    return [
        {
            "arm": arm,
            "rows": int(survey.counts[i]),
            "rate": None if math.isnan(rates[i]) else float(rates[i]),
            "rate_interval": bounds[i],
            "users": run.taken[i],
            "estimate": last["means"][i] if last else None,
            "interval": last["intervals"][i] if last else (0.0, 1.0),
            "viable": run.state.arms[i].viable,
        }
        for i, arm in enumerate(run.experiment.arms)
    ]


def _agent(run: Run, rates: Floats) -> dict[str, Any]:
    said = verdict(run)
    path = regret_at(run, rates)
    return {
        "name": run.name,
        "outcome": said["outcome"],
        "arm": said["arm"],
        "users": said["users"],
        "row": said["row"],
        "regret": path[-1][1],
        "regret_users": path[-1][0],
        "path": path,
    }


def _rows(played: Played) -> dict[str, Any]:
    run = played.runs[0]
    usable = played.survey.rows
    used = sum(run.taken)
    over = run.state.status is not Status.RUNNING
    behind = usable - run.row if over and played.plan.mode is not Mode.QUEUE else 0
    return {
        "read": played.rows,
        "filtered": played.filtered,
        "skipped": _skipped(played.skipped),
        "usable": usable,
        "used": used,
        "not_asked_for": usable - used - behind,
        "after_the_end": behind,
        "kept_by_weight": played.kept,
        "above_the_cap": played.capped,
    }


def _skipped(skipped: dict[str, Any]) -> dict[str, Any]:
    return {reason: {"rows": one.rows, "first": one.first} for reason, one in skipped.items()}


def _warnings(played: Played) -> list[str]:
    found = played.survey.warnings(played.plan.mode)
    if played.capped:
        found.append(
            f"{played.capped:,} rows have a propensity below --min-propensity and count less than "
            "they should: a little bias for more rows"
        )
    if played.form.unfiltered_warning is not None and not played.filtered:
        found.append(played.form.unfiltered_warning)
    return found


def _privacy(privacy: Privacy) -> str:
    return (
        f"Live: {wording.promise(privacy)} This report is not private: it shows the log's own "
        "rates without noise. Keep it as you keep the log."
    )


def _moment(moment: Moment, means: list[Any], intervals: list[Any]) -> dict[str, Any]:
    return {
        "row": moment.row,
        "users": moment.users,
        "time": _iso(moment.time_s),
        "means": means,
        "intervals": intervals,
        "viable": moment.viable,
    }


def _iso(time_s: float | None) -> str | None:
    if time_s is None:
        return None
    return datetime.fromtimestamp(time_s, UTC).isoformat(" ", "seconds")


def _at(time_s: float | None) -> str:
    return "" if time_s is None else f", {_iso(time_s)}"
