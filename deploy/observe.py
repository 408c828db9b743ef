"""`make observe`: service, local Kafka, one demo experiment after the other, Prometheus.

Grafana too where a `grafana` program is installed. Prints the addresses; Ctrl-C ends everything.
"""

import argparse
import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from producers.simulated_users import run_users
from stream_app import kafka, registry
from stream_app.definitions import resolve
from stream_app.errors import ShufflebanditError, Unavailable
from stream_app.local.broker import LocalBroker, free_port
from stream_app.local.processes import complaints, end, supervised
from stream_app.settings import KafkaSettings, Settings

HERE = Path(__file__).parent
GRAFANA = "/d/shufflebandit?from=now-15m&to=now"
_PAUSE_S = 20


@contextlib.contextmanager
def running(name: str, command: list[str], folder: Path) -> Iterator[None]:
    """A child process that ends with the block."""
    log = folder / f"{name}.log"
    process = supervised(command, log)
    try:
        time.sleep(1)
        if process.poll() is not None:
            raise Unavailable(f"{name} does not start: {complaints(log)[-1]}")
        yield
    finally:
        end(process, 3)


def prometheus(folder: Path, port: int, metrics_port: int, interval: str) -> list[str]:
    """The command, with the project's own configuration and this machine's target."""
    program = shutil.which("prometheus")
    if program is None:
        raise Unavailable("prometheus: not found; install it with: deploy/ensure prometheus")
    (folder / "targets").mkdir()
    text = (HERE / "prometheus" / "prometheus.yml").read_text().replace("15s", interval)
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(HERE / "prometheus" / "rules.yml", folder)
    (folder / "targets" / "local.yml").write_text(f'- targets: ["127.0.0.1:{metrics_port}"]\n')
    return [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]


def grafana(folder: Path, port: int, prometheus_port: int) -> list[str] | None:
    """The command, with the project's provisioning; None where it is not installed."""
    program = shutil.which("grafana")
    if program is None:
        return None
    os.environ |= {
        "SHUFFLEBANDIT_PROMETHEUS_URL": f"http://127.0.0.1:{prometheus_port}",
        "SHUFFLEBANDIT_DASHBOARDS": str(HERE / "grafana" / "dashboards"),
        "GF_PATHS_PROVISIONING": str(HERE / "grafana" / "provisioning"),
        "GF_PATHS_DATA": str(folder / "grafana"),
        "GF_PATHS_LOGS": str(folder / "grafana" / "log"),
        "GF_PATHS_PLUGINS": str(folder / "grafana" / "plugins"),
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    }
    return [program, "server", "--homepath", str(home(Path(program)))]


def home(program: Path) -> Path:
    """Grafana's files: around its bin/ as in the archive, or in share/ as packages have them."""
    above = program.resolve().parents[1]
    return above if (above / "conf" / "defaults.ini").is_file() else above / "share" / "grafana"


async def experiments(settings: Settings, rate: float) -> None:
    """One after the other, for ever."""
    for number in itertools.count(1):
        definition = resolve(
            {
                "name": f"demo-{number}",
                "arms": ["spring", "summer", "autumn", "winter", "plain"],
                "horizon": 100_000,
                "privacy": {"epsilon": 0.5, "delta": 1e-6},
                "agent": {"order": "interleaved" if number % 2 else "sequential"},
                "simulation": {"means": [0.75, 0.70, 0.60, 0.60, 0.60]},
            },
            "observe",
        )
        await registry.create(settings.kafka, definition)
        outcome = await run_users(settings, definition.name, rate=rate, experiment=definition)
        print(f"{definition.name}: {outcome.status} after {outcome.users:,} users", flush=True)
        await asyncio.sleep(_PAUSE_S)


def observe(rate: float, ports: dict[str, int], interval: str) -> None:
    """All of it, until Ctrl-C."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(LocalBroker())
        # All start at the same time: Kafka may be slow to answer.
        settings = Settings(kafka=KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_s=60))
        asyncio.run(kafka.create_topics(settings.kafka, 4, 1))
        worker = [
            sys.executable, "-m", "stream_app", "run", "--bootstrap", broker.bootstrap,
            "--web-port", str(ports["page"]), "--metrics-port", str(ports["metrics"]),
        ]  # fmt: skip
        watching = prometheus(folder, ports["prometheus"], ports["metrics"], interval)
        stack.enter_context(running("service", worker, folder))
        stack.enter_context(running("prometheus", watching, folder))
        shown = grafana(folder, ports["grafana"], ports["prometheus"])
        if shown is not None:
            stack.enter_context(running("grafana", shown, folder))
        for name, port in ports.items():
            if name != "grafana" or shown is not None:
                path = {"metrics": "/metrics", "grafana": GRAFANA}.get(name, "/")
                print(f"{name:<11} http://127.0.0.1:{port}{path}")
        if shown is None:
            print("grafana     not installed; deploy/compose.yaml has it")
        print(f"kafka       {broker.bootstrap}    Ctrl-C ends everything", flush=True)
        asyncio.run(experiments(settings, rate))


def main() -> None:
    """Read the options, run, end quietly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=100.0, help="users per second")
    parser.add_argument("--free-ports", action="store_true", help="any ports instead of the usual")
    parser.add_argument("--interval", default="5s", help="between scrapes")
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    ports = {"page": 6066, "metrics": 9108, "prometheus": 9090, "grafana": 3000}
    if options.free_ports:
        ports = {name: free_port() for name in ports}
    # A shell starts what runs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        observe(options.rate, ports, options.interval)
    except KeyboardInterrupt:
        print("ended")
    except ShufflebanditError as error:
        sys.exit(f"observe: {error}")


if __name__ == "__main__":
    main()
