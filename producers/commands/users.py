"""The command `users`: simulated users for a running experiment."""

import asyncio
import dataclasses
import logging
import sys

import click

from producers.simulated_users import Drift, UsersOutcome, run_users
from stream_app.commands.connection import with_settings
from stream_app.commands.output import echo_json, json_option
from stream_app.errors import ConfigurationError
from stream_app.settings import Settings


@click.command()
@click.argument("name")
@click.option(
    "--means",
    metavar="M,M,...",
    help="Each arm's true mean, from 0 to 1. Default: [simulation] means of the experiment.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 10_000_000, min_open=True),
    help="Users per second. Default: as many as the pipeline takes.",
)
@click.option("--users", type=click.IntRange(1), help="Stop after so many users.")
@click.option(
    "--drift",
    metavar="AMPLITUDE,PERIOD",
    help="All means move up and down together by AMPLITUDE, once in PERIOD users: 0.1,50000.",
)
@click.option(
    "--seed", default=1, show_default=True, type=click.IntRange(0), help="Of the rewards."
)
@json_option
@with_settings
def users(
    name: str,
    means: str | None,
    rate: float | None,
    users: int | None,
    drift: str | None,
    seed: int,
    as_json: bool,
    settings: Settings,
) -> None:
    """Simulated users for experiment NAME, until it ends: each sees an arm, clicks or not, reports.

    Example: shufflebandit users banners --means 0.75,0.7,0.7 --rate 2000
    """
    # An outage is said once, by the client; aiokafka would say it dozens of times a second.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    terminal = sys.stderr.isatty()
    outcome = asyncio.run(
        run_users(
            settings,
            name,
            _numbers("--means", means) if means is not None else None,
            rate=rate,
            users=users,
            drift=_drift(drift) if drift is not None else None,
            seed=seed,
            say=lambda line: click.echo(f"users: {line}", err=True),
            progress=_progress if terminal else lambda _: None,
        )
    )
    if terminal:
        click.echo("\r\033[K", nl=False, err=True)
    if as_json:
        echo_json(dataclasses.asdict(outcome))
    else:
        click.echo(_summary(name, outcome))


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(
            f"{option} {text}: must be numbers with commas between, as in 0.75,0.7"
        ) from None


def _drift(text: str) -> Drift:
    numbers = _numbers("--drift", text)
    if len(numbers) != 2 or not -1 <= numbers[0] <= 1 or not numbers[1] > 0:
        raise ConfigurationError(
            f"--drift {text}: must be AMPLITUDE,PERIOD, from -1 to 1 and above 0, as in 0.1,50000"
        )
    return Drift(*numbers)


def _progress(outcome: UsersOutcome) -> None:
    click.echo(f"\r\033[K{outcome.users:,} users, {outcome.reports:,} reports", nl=False, err=True)


def _summary(name: str, outcome: UsersOutcome) -> str:
    arms = ", ".join(f"{arm} {count:,}" for arm, count in sorted(outcome.shown.items()))
    served = f" ({outcome.serve})" if outcome.serve is not None else ""
    behind = f"; behind by up to {outcome.most_behind:,} users" if outcome.most_behind else ""
    return (
        f"{name}: {outcome.status}{served}; {outcome.users:,} users in {outcome.seconds:.1f} s "
        f"({arms}), {outcome.reports:,} reports, regret {outcome.regret:,.1f}{behind}"
    )
