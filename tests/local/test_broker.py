"""The local Kafka: it answers, and it leaves nothing behind."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from stream_app.errors import Unavailable
from stream_app.local.broker import LocalBroker

ROOT = Path(__file__).parents[2]


def processes(word: str) -> list[str]:
    """The command lines of living processes that contain a word."""
    listed = subprocess.check_output(["ps", "-axww", "-o", "args="], text=True)
    return [line for line in listed.splitlines() if word in line]


def gone(word: str, within_s: float = 5) -> bool:
    deadline = time.monotonic() + within_s
    while processes(word) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not processes(word)


def python(code: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


async def create(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    finally:
        await admin.close()


async def send(bootstrap: str, topic: str, value: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, value)


async def first(bootstrap: str, topic: str) -> bytes | None:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    async with consumer:
        value: bytes | None = (await consumer.getone()).value
        return value


@pytest.mark.kafka
async def test_answers(broker: LocalBroker) -> None:
    """A topic can be created as soon as `start` returns, and a record comes back."""
    await create(broker.bootstrap, "broker-answers")
    await send(broker.bootstrap, "broker-answers", b"hello")

    assert await first(broker.bootstrap, "broker-answers") == b"hello"


@pytest.mark.kafka
async def test_frozen(broker: LocalBroker) -> None:
    """It answers nothing for so long, and then what it was asked meanwhile."""
    began = time.monotonic()
    frozen = asyncio.ensure_future(asyncio.to_thread(broker.freeze, 2))
    await asyncio.sleep(0.2)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap):
        assert time.monotonic() - began > 2
    await frozen


@pytest.mark.kafka
async def test_restart_keeps_records(broker: LocalBroker, tmp_path: Path) -> None:
    """After a clean stop, and after SIGKILL, the records are there again, in at most
    twice the time of the first start: nobody waits for the session of the broker that is gone.
    """
    local = LocalBroker(tmp_path)
    began = time.monotonic()
    local.start()
    first_took = time.monotonic() - began
    try:
        await create(local.bootstrap, "kept")
        await send(local.bootstrap, "kept", b"before")
        for end in (local.restart, local.kill):
            began = time.monotonic()
            end()
            local.start()
            took = time.monotonic() - began

            assert await first(local.bootstrap, "kept") == b"before"
            assert took < 2 * first_took
    finally:
        local.stop()

    assert gone(str(tmp_path))
    assert (tmp_path / "records").is_dir()


@pytest.mark.kafka
def test_stop_leaves_nothing(broker: LocalBroker) -> None:
    """A broker outlives the thread that started it, and `stop` removes process and data."""
    local = LocalBroker()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(local.start).result()
    time.sleep(0.5)
    data = local.data
    assert data is not None
    assert processes(f"{data}/server.properties")

    local.stop()

    assert not processes(str(data))
    assert not data.exists()


@pytest.mark.kafka
def test_dies_with_its_parent(broker: LocalBroker) -> None:
    """SIGKILL of the Python that started it leaves no Java and no temporary folder."""
    parent = python(
        "import time; from stream_app.local.broker import LocalBroker\n"
        "broker = LocalBroker(); broker.start(); print(broker.data, flush=True); time.sleep(600)"
    )
    with parent:
        assert parent.stdout is not None
        data = parent.stdout.readline().strip()
        alive = processes(f"{data}/server.properties")
        parent.kill()

    assert data
    assert alive
    assert gone(data)
    assert not Path(data).exists()


@pytest.mark.kafka
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_foreground(broker: LocalBroker, tmp_path: Path, number: signal.Signals) -> None:
    """The command prints where Kafka is, and ends cleanly when it is told to."""
    parent = python(
        "from pathlib import Path; from stream_app.local.broker import run_foreground\n"
        f"run_foreground(data=Path({str(tmp_path)!r}))"
    )
    with parent:
        assert parent.stdout is not None
        line = parent.stdout.readline()
        parent.send_signal(number)
        code = parent.wait(10)

    assert "ready at 127.0.0.1:" in line
    assert code == 0
    assert not processes(str(tmp_path))


@pytest.mark.kafka
def test_failure_is_one_line(broker: LocalBroker, tmp_path: Path) -> None:
    """A broker that cannot run says why, and leaves nothing running."""
    with pytest.raises(Unavailable, match=r"^[^\n]*num\.io\.threads[^\n]*$"):
        LocalBroker(tmp_path, properties={"num.io.threads": "many"}).start()

    assert not processes(str(tmp_path))


def test_port_in_use(tmp_path: Path) -> None:
    """A taken port is named at once, before anything is fetched or written."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(Unavailable, match=f"port {port} "):
            LocalBroker(tmp_path, port).start()

    assert not list(tmp_path.iterdir())
