"""The command `simulate`: whole experiments without Kafka, over the machine's cores."""

import concurrent.futures
import dataclasses
import os
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stream_app.commands.output import console, echo_json, json_option
from stream_app.commands.plots import plot_regret
from stream_app.core import simulation, wording
from stream_app.core.baselines import BASELINES
from stream_app.core.experiment import PRESETS, Experiment
from stream_app.definitions import load_experiment
from stream_app.errors import ConfigurationError


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="EXPERIMENT.toml")
@click.option(
    "--preset",
    "presets",
    multiple=True,
    type=click.Choice(list(PRESETS)),
    help="Run this preset in place of the file's algorithm; may be given several times.",
)
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    type=click.Choice(list(BASELINES)),
    help="Run this algorithm of another privacy model beside it; may be given several times.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one setting of the file, as in agent.schedule=doubling.",
)
@click.option("--runs", default=200, show_default=True, type=click.IntRange(1, 1_000_000))
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0))
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw the regret curves: .svg or .png."
)
@json_option
def simulate(
    file: Path,
    presets: tuple[str, ...],
    baselines: tuple[str, ...],
    overrides: tuple[str, ...],
    runs: int,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Regret of an experiment file, its presets and baselines, without Kafka.

    Example: shufflebandit simulate deploy/experiments/five-arms.toml --preset optimal
    --preset vb-sdp-ae --baseline local --plot regret.svg
    """
    if plot is not None and plot.suffix not in (".svg", ".png"):
        raise ConfigurationError(f"--plot {plot}: must end in .svg or .png")
    jobs = simulation_jobs(file, presets, baselines, overrides)
    results = run_jobs(jobs, runs, seed, progress=not as_json)
    if plot is not None:
        plot_regret(results, plot, title=_title(jobs[0].experiment))
    if as_json:
        echo_json({"results": [_result_json(result) for result in results]})
    else:
        console().print(_result_table(results, jobs))
        for line in _stated(jobs):
            click.echo(line)


def simulation_jobs(
    file: Path, presets: tuple[str, ...], baselines: tuple[str, ...], overrides: tuple[str, ...]
) -> list[simulation.Job]:
    """One job per preset and baseline; the file as it stands if no preset is named."""
    jobs = []
    for preset in presets or (None,):
        experiment = load_experiment(file, preset, overrides)
        if experiment.simulation is None:
            raise ConfigurationError(f"{file}: simulation.means: missing; give one mean per arm")
        name = experiment.agent.preset
        jobs.append(simulation.Job(name, experiment, simulation.private_runs))
    jobs += [simulation.Job(name, jobs[0].experiment, BASELINES[name]) for name in baselines]
    return jobs


def run_jobs(
    jobs: list[simulation.Job], runs: int, seed: int, progress: bool
) -> list[simulation.Result]:
    """All jobs' blocks over the machine's cores, with a progress bar on a terminal."""
    sizes = simulation.blocks(runs)
    terminal = Console(stderr=True)
    with (
        concurrent.futures.ProcessPoolExecutor(min(os.cpu_count() or 1, len(sizes))) as pool,
        Progress(console=terminal, disable=not (progress and terminal.is_terminal)) as bar,
    ):
        task = bar.add_task("simulating", total=len(jobs) * len(sizes))
        futures = [
            [pool.submit(job.block, seed, i, size) for i, size in enumerate(sizes)] for job in jobs
        ]
        for row in futures:
            for future in row:
                future.add_done_callback(lambda _: bar.advance(task))
        return [
            simulation.summarise(job, [future.result() for future in row])
            for job, row in zip(jobs, futures, strict=True)
        ]


def _result_json(result: simulation.Result) -> dict[str, Any]:
    values = dataclasses.asdict(result)
    curve = {"users": values.pop("users"), "regret": values.pop("regret")}
    return {**values, "curve": curve}


def _result_table(results: list[simulation.Result], jobs: list[simulation.Job]) -> Table:
    table = Table(title=_title(jobs[0].experiment), box=None, pad_edge=False, title_justify="left")
    table.add_column("algorithm", no_wrap=True)
    for heading in ("regret", "std. error", "decided", "best arm kept", "users to decision"):
        table.add_column(heading, justify="right")
    table.add_column("guarantee", no_wrap=True)
    for result, job in zip(results, jobs, strict=True):
        own = job.simulate is simulation.private_runs
        to_decision = result.users_to_decision_mean
        table.add_row(
            result.name,
            f"{result.regret_mean:,.0f}",
            f"{result.regret_sem:,.0f}",
            f"{result.decided_fraction:.0%}",
            f"{result.best_arm_kept:.1%}",
            "-" if to_decision is None else f"{to_decision:,.0f}",
            str(job.experiment.agent.guarantee) if own else "baseline",
        )
    return table


def _stated(jobs: list[simulation.Job]) -> list[str]:
    """The guarantees in the table, each once, and the promise; a baseline has its own model's."""
    own = [job.experiment for job in jobs if job.simulate is simulation.private_runs]
    worth = {e.agent.guarantee: wording.guarantee(e.agent, e.horizon) for e in own}
    return [
        *(f"Guarantee {name}: {sentence}." for name, sentence in worth.items()),
        f"Promise, but for baselines: {wording.promise(own[0].privacy)}",
    ]


def _title(experiment: Experiment) -> str:
    privacy = experiment.privacy
    return (
        f"{experiment.name}: {len(experiment.arms)} arms, T = {experiment.horizon:,}, "
        f"eps = {privacy.epsilon}, delta = {privacy.delta}, "
        f"honest fraction {privacy.honest_fraction}"
    )
