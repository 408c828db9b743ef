"""The command `replay`: logged traffic played again, through Kafka or in memory."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from producers.replay import formats, session
from producers.replay.columns import Columns, parse_filter
from producers.replay.files import Source
from producers.replay.log import TrafficLog
from producers.replay.match import Mode
from producers.replay.memory import Run
from producers.replay.page import page
from producers.replay.report import report, survey_report
from producers.replay.session import Played, ReplayPlan
from producers.replay.sources import sources
from producers.replay.wording import dry_text, text
from stream_app import registry
from stream_app.commands.connection import run as run_kafka
from stream_app.commands.connection import with_settings
from stream_app.commands.output import echo_json, json_option
from stream_app.definitions import load_experiment
from stream_app.errors import ConfigurationError
from stream_app.settings import Settings


@click.command(help=f"""
    Play logged traffic again: what would the private bandit have decided, and when?

    FILE is {formats.listed()}, plain, gzip or zstd; a folder of such; or - for standard
    input, which is first copied to a temporary file. The whole log is checked before anything is
    sent.

    Example: shufflebandit replay log.csv.gz -e banners.toml --arm-column banner --through memory
""")  # fmt: skip
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--experiment", "-e", "definition", type=click.Path(path_type=Path), metavar="EXPERIMENT.toml",
    help="What to play; its arms must be the log's. Only --dry-run can do without.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(formats.CHOICES),
    default=formats.AUTO, show_default=True, help=formats.choices_help(),
)  # fmt: skip
@click.option("--arm-column", metavar="NAME", help="Which arm was shown.  [default: arm]")
@click.option(
    "--reward-column", metavar="NAME",
    help="What came of it: 0/1, true/false, yes/no or a number from 0 to 1.  [default: reward]",
)  # fmt: skip
@click.option("--propensity-column", metavar="NAME", help="How likely the shown arm was.")
@click.option("--time-column", metavar="NAME", help="When: ISO 8601, or a number since 1970.")
@click.option("--user-column", metavar="NAME", help="Who: a user's first row counts, no other.")
@click.option(
    "--where", "filters", multiple=True, metavar="COLUMN=VALUE,...",
    help="Keep these rows only; also !=, <, <=, >, >=. May be given several times.",
)  # fmt: skip
@click.option(
    "--mode", type=click.Choice([str(mode) for mode in Mode]),
    default="rejection", show_default=True,
    help="rejection: a row counts when its arm is asked for. weighted: the same for logs whose "
    "arms were not uniform, by propensities. queue: each arm's rows in order, none lost.",
)  # fmt: skip
@click.option("--min-propensity", type=click.FloatRange(0, 1, min_open=True),
    help="weighted: treat smaller propensities as this; more rows, a little bias.")  # fmt: skip
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0),
    help="Of weighted's choice of rows. Privacy noise has no seed.")  # fmt: skip
@click.option("--through", type=click.Choice(["kafka", "memory"]), default="kafka",
    show_default=True, help="A running service, or this process alone.")  # fmt: skip
@click.option("--speed", type=click.FloatRange(0, min_open=True),
    help="kafka: times the log's own pace (1: as it was).  [default: as fast as it goes]",
)  # fmt: skip
@click.option("--position", type=click.Path(path_type=Path), metavar="FILE",
    help="kafka: where an interrupted replay goes on from; secret.  [default: NAME.replay]",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what is in the log.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page, too.")
@json_option
@with_settings
def replay(files: tuple[str, ...], definition: Path | None, **options: Any) -> None:
    """Play logged traffic again."""
    with sources(files) as found:
        if options["dry_run"]:
            _dry_run(found, definition, options)
            return
        if definition is None:
            raise ConfigurationError("--experiment: missing; give the experiment's TOML file")
        experiment = load_experiment(definition)
        log = TrafficLog(found, _columns(options), formats.named(options["form"]), experiment.arms)
        plan = ReplayPlan(
            experiment, Mode(options["mode"]), options["seed"], options["min_propensity"]
        )
        if options["through"] == "memory":
            played = session.in_memory(log, plan)
        else:
            played = _through_kafka(log, plan, options)
        _show(report(played), options)


def _columns(options: dict[str, Any]) -> Columns:
    return Columns(
        arm=options["arm_column"],
        reward=options["reward_column"],
        time=options["time_column"],
        user=options["user_column"],
        propensity=options["propensity_column"],
        filters=tuple(parse_filter(given) for given in options["filters"]),
    )


def _through_kafka(log: TrafficLog, plan: ReplayPlan, options: dict[str, Any]) -> Played:
    settings: Settings = options["settings"]
    path = options["position"] or Path(f"{plan.experiment.name}.replay")

    async def create() -> None:
        await registry.create(settings.kafka, plan.experiment)

    async def play() -> Played:
        with _progress() as progress:
            return await session.through_kafka(
                settings, log, plan, path, speed=options["speed"], progress=progress, create=create
            )

    try:
        return run_kafka(settings, play())
    except KeyboardInterrupt:
        click.echo(f"interrupted; the same command goes on from {path}", err=True)
        raise


@contextmanager
def _progress() -> Iterator[Any]:
    """A line on a terminal, gone at the end."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return

    def show(run: Run) -> None:
        users = f"{sum(run.taken):,} users, row {run.row:,}, phase {run.state.phase}"
        click.echo(f"\r\033[K{users}", nl=False, err=True)

    yield show
    click.echo("\r\033[K", nl=False, err=True)


def _show(found: dict[str, Any], options: dict[str, Any]) -> None:
    html: Path | None = options["html"]
    if html is not None:
        try:
            html.write_text(page(found), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"--html {html}: cannot be written: {error.strerror}"
            ) from None
    if options["as_json"]:
        echo_json(found)
    else:
        click.echo(text(found))


def _dry_run(found: Sequence[Source], definition: Path | None, options: dict[str, Any]) -> None:
    known = None if definition is None else load_experiment(definition).arms
    form = formats.named(options["form"])
    columns = _columns(options)
    log = TrafficLog(found, columns, form)
    there = log.form.column_names(found[0])
    unnamed = [name for name in (log.columns.arm, log.columns.reward) if name not in there]
    if unnamed and columns.arm is None and columns.reward is None:
        listed = ", ".join(there)
        if options["as_json"]:
            echo_json({"files": [source.name for source in found], "columns": there})
        else:
            click.echo(f"{found[0].name}: {log.form.name}; columns {listed}\n"
                       "name two of them: --arm-column and --reward-column")  # fmt: skip
        return
    seen = survey_report(log, session.look(log), Mode(options["mode"]), known)
    if options["as_json"]:
        echo_json(seen)
    else:
        click.echo(dry_text(seen))
