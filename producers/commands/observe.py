"""`observe`: the service on a local Kafka, one demo experiment after the other, Prometheus.

Grafana too where a `grafana` program is installed. Prints the addresses; Ctrl-C ends everything.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import click

import producers
from producers.commands.demo import DEMO
from producers.simulated_users import run_users
from stream_app import registry
from stream_app.definitions import resolve
from stream_app.errors import ConfigurationError, Unavailable
from stream_app.local.broker import HOST, free_port
from stream_app.local.processes import Program
from stream_app.local.stack import Stack, local_stack
from stream_app.settings import KafkaSettings, MetricsSettings, MonitorSettings, Settings

# Prometheus' and Grafana's files are the repository's: no wheel has them.
_DEPLOY = Path(producers.__file__).parents[1] / "deploy"
# Each program's own usual port: bookmarks stay good.
_PORTS = {
    "page": MonitorSettings().port,
    "metrics": MetricsSettings().port,
    "prometheus": 9090,
    "grafana": 3000,
}
# What to open there; the dashboard's uid is that of deploy/grafana, the time that of a few runs.
_PATHS = {"metrics": "/metrics", "grafana": "/d/shufflebandit?from=now-15m&to=now"}
# Wrong options end a program at once: within this time.
_SETTLE_S = 1.0
# All programs start at the same time, so Kafka may be slow to answer.
_CONNECT_S = 60.0
# Between two experiments, so that a dashboard shows the end of one.
_PAUSE_S = 20


@click.command()
@click.option("--rate", type=float, default=100.0, show_default=True, help="Users per second.")
@click.option("--free-ports", is_flag=True, help="Any ports instead of the usual ones.")
@click.option("--interval", default="5s", show_default=True, help="Between two scrapes.")
@click.option(
    "--deploy",
    type=click.Path(file_okay=False, path_type=Path),
    default=_DEPLOY,
    help="The repository's folder deploy/; default: that around this code.",
)
def observe(rate: float, free_ports: bool, interval: str, deploy: Path) -> None:
    """Keep the demo running with Prometheus, and Grafana where it is installed. Until Ctrl-C."""
    # An outage is said once, by the client; aiokafka would say it dozens of times a second.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    ports = {name: free_port() for name in _PORTS} if free_ports else _PORTS
    # A shell starts what runs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        _observe(rate, ports, interval, deploy)
    except KeyboardInterrupt:
        click.echo("ended")


def _observe(rate: float, ports: dict[str, int], interval: str, deploy: Path) -> None:
    if not (deploy / "prometheus" / "prometheus.yml").is_file():
        raise ConfigurationError(
            f"--deploy {deploy}: has no prometheus/prometheus.yml; give the folder deploy/ of a "
            "copy of the repository"
        )
    if shutil.which("prometheus") is None:
        raise Unavailable("prometheus: not found; install it with: deploy/ensure prometheus")
    settings = Settings(
        kafka=KafkaSettings(connect_timeout_s=_CONNECT_S),
        monitor=MonitorSettings(port=ports["page"]),
        metrics=MetricsSettings(port=ports["metrics"]),
    )
    with local_stack(settings) as stack, _watching(stack.folder, ports, interval, deploy) as shown:
        for name in shown:
            click.echo(f"{name:<11} http://{HOST}:{ports[name]}{_PATHS.get(name, '/')}")
        if "grafana" not in shown:
            click.echo("grafana     not installed; deploy/compose.yaml has it")
        click.echo(f"kafka       {stack.settings.kafka.bootstrap}    Ctrl-C ends everything")
        asyncio.run(_experiments(stack, rate))


@contextlib.contextmanager
def _watching(
    folder: Path, ports: dict[str, int], interval: str, deploy: Path
) -> Iterator[list[str]]:
    """Prometheus, and Grafana if it is there; gives the names of all that has an address."""
    with contextlib.ExitStack() as ends:
        started = [ends.enter_context(_prometheus(folder, ports, interval, deploy))]
        if shutil.which("grafana") is not None:
            started.append(ends.enter_context(_grafana(folder, ports, deploy)))
        time.sleep(_SETTLE_S)
        for program in started:
            program.check()
        yield ["page", "metrics", *(program.name for program in started)]


def _prometheus(folder: Path, ports: dict[str, int], interval: str, deploy: Path) -> Program:
    """With the project's own configuration and this machine's target."""
    (folder / "targets").mkdir()
    text = (deploy / "prometheus" / "prometheus.yml").read_text().replace("15s", interval)
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(deploy / "prometheus" / "rules.yml", folder)
    target = f'- targets: ["{HOST}:{ports["metrics"]}"]\n'
    (folder / "targets" / "local.yml").write_text(target)
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={HOST}:{ports['prometheus']}",
    ]
    return Program("prometheus", command, folder / "prometheus.log")


def _grafana(folder: Path, ports: dict[str, int], deploy: Path) -> Program:
    """With the project's provisioning."""
    program = shutil.which("grafana")
    assert program is not None
    environment = {
        "SHUFFLEBANDIT_PROMETHEUS_URL": f"http://{HOST}:{ports['prometheus']}",
        "SHUFFLEBANDIT_DASHBOARDS": str(deploy.resolve() / "grafana" / "dashboards"),
        "GF_PATHS_PROVISIONING": str(deploy.resolve() / "grafana" / "provisioning"),
        "GF_PATHS_DATA": str(folder / "grafana"),
        "GF_PATHS_LOGS": str(folder / "grafana" / "log"),
        "GF_PATHS_PLUGINS": str(folder / "grafana" / "plugins"),
        "GF_SERVER_HTTP_ADDR": HOST,
        "GF_SERVER_HTTP_PORT": str(ports["grafana"]),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    }
    return Program(
        "grafana",
        [program, "server", "--homepath", str(grafana_home(Path(program)))],
        folder / "grafana.log",
        environment={**os.environ, **environment},
    )


def grafana_home(program: Path) -> Path:
    """Grafana's files: around its bin/ as in the archive, or in share/ as packages have them."""
    above = program.resolve().parents[1]
    return above if (above / "conf" / "defaults.ini").is_file() else above / "share" / "grafana"


async def _experiments(stack: Stack, rate: float) -> None:
    """One after the other, for ever."""
    for number in itertools.count(1):
        order = "interleaved" if number % 2 else "sequential"
        raw = {**DEMO, "name": f"demo-{number}", "horizon": 100_000, "agent": {"order": order}}
        definition = resolve(raw, "observe")
        await registry.create(stack.settings.kafka, definition)
        outcome = await run_users(stack.settings, definition.name, rate=rate, experiment=definition)
        click.echo(f"{definition.name}: {outcome.status} after {outcome.users:,} users")
        await asyncio.sleep(_PAUSE_S)
