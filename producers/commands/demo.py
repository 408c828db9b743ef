"""`demo`: the whole service on a local Kafka, with simulated users and a live view."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from producers.simulated_users import UsersOutcome, run_users
from stream_app import registry
from stream_app.audit.recount import audit
from stream_app.audit.verify import verify
from stream_app.commands.checks import audited, verified
from stream_app.commands.output import console
from stream_app.core import simulation, wording
from stream_app.core.baselines import BASELINES
from stream_app.core.experiment import PRESETS, Experiment
from stream_app.definitions import resolve
from stream_app.errors import CheckFailed
from stream_app.local.stack import Stack, WorkerProcess, local_stack, on_free_ports
from stream_app.monitor.reader import following
from stream_app.monitor.terminal import headline, render
from stream_app.monitor.view import View
from stream_app.settings import KafkaSettings, Settings, ShuffleSettings

# Five banners; the best is better by .05, so that a decision takes seconds and is no accident.
DEMO: dict[str, Any] = {
    "name": "demo",
    "attribution_s": 0,  # simulated users click at once
    "arms": ["spring", "summer", "autumn", "winter", "plain"],
    "privacy": {"epsilon": 0.5, "delta": 1e-6},
    "simulation": {"means": [0.75, 0.70, 0.60, 0.60, 0.60]},
}
# Of each algorithm that is compared: the standard error is then 3.5 % at most, in 0.05 s.
_RUNS = 50
# The live view: fast enough to be watched, slow enough to cost nothing.
_LOOK_EVERY_S = 0.2


@click.command()
@click.option("--preset", type=click.Choice(list(PRESETS)), default="optimal", show_default=True)
@click.option(
    "--order",
    type=click.Choice(["sequential", "interleaved"]),
    default="interleaved",
    show_default=True,
)
@click.option("--horizon", type=click.IntRange(1000), default=100_000, show_default=True)
@click.option("--rate", type=float, help="Users per second. Default: as many as it takes.")
def demo(preset: str, order: str, horizon: int, rate: float | None) -> None:
    """Run everything once: local Kafka, service, simulated users, live view, checks."""
    raw = {**DEMO, "horizon": horizon, "agent": {"preset": preset, "order": order}}
    experiment = resolve(raw, "demo")
    # An outage is said once, by the client; aiokafka would say it dozens of times a second.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    out = console()
    # The audit at the end needs the reports, which the service deletes otherwise.
    wanted = Settings(shuffle=ShuffleSettings(retain_reports_for_audit=True))
    with local_stack(on_free_ports(wanted), starting=_clock(out)) as stack:
        asyncio.run(_play(stack, experiment, rate, out))


def _clock(out: Console) -> Callable[[str], None]:
    """Says what starts, and how many seconds after this call."""
    began = time.monotonic()
    return lambda part: out.print(f"[dim]{time.monotonic() - began:5.1f} s[/]  starting {part}")


async def _play(stack: Stack, experiment: Experiment, rate: float | None, out: Console) -> None:
    settings = stack.settings
    await registry.create(settings.kafka, experiment)
    page = f"http://{settings.monitor.host}:{settings.monitor.port}"
    out.print(f"live: {page}/experiments/{experiment.name}")
    view = View()
    sent = UsersOutcome()

    def progress(newest: UsersOutcome) -> None:
        nonlocal sent
        sent = newest

    async with following(settings.kafka, view):
        users = asyncio.ensure_future(
            run_users(
                settings, experiment.name, rate=rate, progress=progress, experiment=experiment
            )
        )
        try:
            await _watch(view, experiment.name, users, lambda: sent.reports, out, stack.worker)
        finally:
            users.cancel()
        # Before the view's end is waited for: it never comes if the users failed.
        outcome = users.result()
        shown = await _final(view, experiment.name)
    _summary(out, experiment, shown, outcome)
    await _checks(out, settings.kafka, experiment.name)


async def _watch(
    view: View,
    name: str,
    users: asyncio.Task[UsersOutcome],
    reports: Callable[[], int],
    out: Console,
    worker: WorkerProcess,
) -> None:
    """The live view until the users are done: redrawn on a terminal, else a line per phase."""
    started = time.monotonic()
    phase = None
    with (
        Live(console=out, auto_refresh=False)
        if out.is_terminal
        else contextlib.nullcontext() as live
    ):
        while not users.done():
            await asyncio.wait({users}, timeout=_LOOK_EVERY_S)
            worker.check()
            shown = view.snapshot(name)
            if shown is None:
                continue
            rate = reports() / (time.monotonic() - started)
            if live is not None:
                live.update(render(shown, f"{rate:,.0f} reports per second"), refresh=True)
            elif shown["phase"] != phase:
                out.print(headline(shown))
            phase = shown["phase"]


async def _final(view: View, name: str) -> dict[str, Any]:
    """The view once it has seen the end."""
    async with asyncio.timeout(10):
        while True:
            shown = view.snapshot(name)
            if shown is not None and shown["state"] != "running":
                return shown
            await asyncio.sleep(0.05)


def _summary(
    out: Console, experiment: Experiment, shown: dict[str, Any], outcome: UsersOutcome
) -> None:
    out.print()
    out.print(render(shown))
    verdict = {
        "decided": f"Winner: {shown['serve']}",
        "exhausted": f"Undecided when the horizon ended; leader: {shown['serve']}",
    }[shown["state"]]
    means = dict(zip(experiment.arms, DEMO["simulation"]["means"], strict=True))
    left = max(0, experiment.horizon - outcome.users)
    regret = outcome.regret + left * (max(means.values()) - means[shown["serve"]])
    out.print(
        f"{verdict}, after {outcome.users:,} users, {shown['users']:,} of them in released batches "
        f"({outcome.reports / outcome.seconds:,.0f} reports per second)."
    )
    out.print(f"Guarantee: {wording.guarantee(experiment.agent, experiment.horizon)}.")
    paper, bare = _comparison(experiment)
    out.print(
        f"True regret of the {experiment.horizon:,} users: {regret:,.0f}. By simulation "
        f"({_RUNS} runs): {paper:,.0f} with the paper's constants, {bare:,.0f} without privacy."
    )
    out.print(wording.promise(experiment.privacy, shown["certified_delta"]))
    out.print("Kept for the audit that follows: the reports. By default the service deletes them.")


def _comparison(experiment: Experiment) -> tuple[float, float]:
    """Regret with the paper's constants and without privacy, by simulation."""
    paper = resolve(
        {**DEMO, "horizon": experiment.horizon, "agent": {"preset": "vb-sdp-ae"}}, "demo"
    )
    jobs = (
        simulation.Job("paper", paper, simulation.private_runs),
        simulation.Job("bare", experiment, BASELINES["non-private-elimination"]),
    )
    paper_regret, bare_regret = (
        simulation.summarise(job, [job.block(1, 0, _RUNS)]).regret_mean for job in jobs
    )
    return paper_regret, bare_regret


async def _checks(out: Console, settings: KafkaSettings, name: str) -> None:
    found: list[str] = []
    for check, claim in ((verify, verified(name)), (audit, audited(name))):
        report = await check(settings, name)
        wrong = report.differences + report.unchecked
        found += wrong
        held = "holds" if not wrong else "FAILED"
        out.print(f"{check.__name__}: {held}: {claim} ({report.batches:,} batches)")
    if found:
        raise CheckFailed(f"demo: {len(found)} differences, first: {found[0]}")
