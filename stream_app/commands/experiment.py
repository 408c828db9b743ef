"""The commands `experiment create | list | show | stop`."""

from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from stream_app import registry
from stream_app.commands.connection import run, with_settings
from stream_app.commands.output import console, echo_json, json_option
from stream_app.core import wording
from stream_app.core.agents import agent_for
from stream_app.core.state import Status
from stream_app.definitions import load_experiment
from stream_app.errors import InvalidInput, Unavailable
from stream_app.registry import Entry
from stream_app.settings import Settings
from stream_app.wire.assignment import Assignment


@click.group()
def experiment() -> None:
    """Define, watch and stop experiments."""


@experiment.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="EXPERIMENT.toml")
@with_settings
def create(file: Path, settings: Settings) -> None:
    """Start the experiment of a file; its definition cannot be changed afterwards."""
    defined = load_experiment(file)
    registry.check_limits(defined, settings.limits)
    created = run(settings, registry.create(settings.kafka, defined))
    said = "created" if created else "exists already with the same definition; nothing was changed"
    click.echo(f"experiment {defined.name} {said}")


@experiment.command()
@click.argument("name")
@with_settings
def stop(name: str, settings: Settings) -> None:
    """End an experiment: open batches are dropped, and nothing of them is released."""
    stopped = run(settings, registry.stop(settings.kafka, name))
    click.echo(f"experiment {name} {'is told to stop' if stopped else 'was stopped before'}")


@experiment.command("list")
@json_option
@with_settings
def list_(as_json: bool, settings: Settings) -> None:
    """All experiments, with their state and winner."""
    rows = [_row(entry) for entry in run(settings, registry.read_all(settings.kafka))]
    if as_json:
        echo_json({"experiments": rows})
        return
    if not rows:
        click.echo("no experiments yet; create one with: shufflebandit experiment create FILE.toml")
        return
    table = Table(box=None, pad_edge=False)
    for heading in rows[0]:
        table.add_column(heading, justify="right" if heading in ("phase", "users") else "left")
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row.values()))
    console().print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _row(entry: Entry) -> dict[str, Any]:
    defined = entry.experiment
    assignment = entry.assignment
    state = None if assignment is None else assignment.state
    serve = None if state is None or assignment is None else state.serve
    return {
        "name": entry.name,
        "state": entry.state,
        "phase": None if state is None else state.phase,
        "users": None if state is None else state.users,
        "serve": None if serve is None or defined is None else defined.arms[serve],
        "guarantee": None if defined is None else str(defined.agent.guarantee),
    }


@experiment.command()
@click.argument("name")
@json_option
@with_settings
def show(name: str, as_json: bool, settings: Settings) -> None:
    """One experiment: its arms, its decision and its promise.

    --json gives the agent's last record, as it stands on the topic.
    """
    entry = run(settings, registry.find(settings.kafka, name))
    if as_json:
        if entry.record is None:
            raise Unavailable(
                f"experiment {name!r}: the agent has not answered yet; is it running?"
            )
        click.echo(entry.record.decode(errors="replace"))
        return
    if entry.problem:
        raise InvalidInput(f"experiment {name!r}: a record cannot be read: {entry.problem}")
    defined = entry.experiment
    assert defined is not None
    if entry.assignment is None:
        click.echo(f"{name}: {entry.state}; the agent has not answered yet")
    else:
        _show_state(entry, entry.assignment)
    click.echo(f"\nPromise: {wording.promise(defined.privacy)} {wording.ONE_REPORT}")


def _show_state(entry: Entry, assignment: Assignment) -> None:
    state = assignment.state
    agent = agent_for(assignment.experiment)
    horizon = agent.horizon(state)
    click.echo(
        f"{entry.name}: {entry.state}, phase {state.phase}, {state.users:,} users "
        f"of a horizon of {horizon:,}\n"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("arm")
    for heading in ("mean", "interval", "batches", "users"):
        table.add_column(heading, justify="right")
    table.add_column("")
    opened = {batch.arm for batch in state.open}
    rows = zip(assignment.experiment.arms, state.arms, agent.means(state), strict=True)
    for i, ((name, arm, mean), (low, high)) in enumerate(
        zip(rows, agent.intervals(state), strict=True)
    ):
        table.add_row(
            escape(name),
            "-" if mean is None else f"{mean:.4f}",
            f"[{low:.4f}, {high:.4f}]",
            f"{arm.batches:,}",
            f"{arm.users:,}",
            "collecting" if i in opened else "" if arm.viable else "eliminated",
        )
    console().print(table)
    click.echo(f"\n{decision(assignment)}")


def decision(assignment: Assignment) -> str:
    """What is decided, with the guarantee that holds for it, in words."""
    state = assignment.state
    defined = assignment.experiment
    if state.serve is None:
        left = sum(arm.viable for arm in state.arms)
        return f"No decision yet: {left} of {len(state.arms)} arms are left."
    arm = defined.arms[state.serve]
    if state.status is Status.DECIDED:
        worth = wording.guarantee(defined.agent, agent_for(defined).horizon(state))
        return f"Decided: serve {arm}. Guarantee: {worth}."
    why = "Stopped" if state.status is Status.STOPPED else "The horizon is reached"
    return f"{why} without a decision: serve {arm}, which leads; it is not proved to be the best."
