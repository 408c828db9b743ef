"""The stack: workers get exactly the given settings, say when they are ready, and why they end."""

import dataclasses
from decimal import Decimal
from pathlib import Path

import pytest

from stream_app.core.terms import Limits
from stream_app.errors import Unavailable
from stream_app.local.broker import LocalBroker
from stream_app.local.stack import WorkerProcess, environment, local_stack, on_free_ports
from stream_app.settings import KafkaSettings, Settings, ShuffleSettings, load_settings


def test_a_worker_has_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of value comes through; no variable of this process does."""
    monkeypatch.setenv("SHUFFLEBANDIT_SHUFFLE_GROUP", "another")
    given = Settings(
        kafka=KafkaSettings(bootstrap="here:1", connect_timeout_s=2.5),
        limits=Limits(max_epsilon=Decimal("0.7")),
        shuffle=ShuffleSettings(retain_reports_for_audit=True),
    )

    assert load_settings(None, environment(given)) == given


def test_free_ports_differ() -> None:
    found = on_free_ports(Settings())

    assert found.monitor.port != found.metrics.port
    assert dataclasses.replace(found, monitor=Settings().monitor) != Settings()


def test_why_it_ended_by_itself(tmp_path: Path) -> None:
    """What waits for a worker that gave up says so in one line, with the worker's own reason."""
    with (
        WorkerProcess(on_free_ports(Settings()), "juggler", tmp_path / "log") as worker,
        pytest.raises(Unavailable, match=r"^the service ended by itself: [^\n]*'juggler'[^\n]*$"),
    ):
        worker.await_ready()


def test_a_worker_that_is_not_ready_in_time(tmp_path: Path) -> None:
    settings = dataclasses.replace(
        on_free_ports(Settings()), kafka=KafkaSettings("127.0.0.1:9", connect_timeout_s=60)
    )
    with (
        WorkerProcess(settings, "shuffle", tmp_path / "log") as worker,
        pytest.raises(Unavailable, match=r"^the service is not ready after 0 s: "),
    ):
        worker.await_ready(0.1)


@pytest.mark.kafka
def test_a_whole_service(broker: LocalBroker) -> None:
    """Its parts are told in order; it is ready when it is given; a kill is noticed; it restarts."""
    told: list[str] = []
    with local_stack(on_free_ports(Settings()), starting=told.append) as stack:
        worker = stack.worker
        was_ready = worker.ready()
        command = Path(f"/proc/{worker.pid}/cmdline").read_bytes()
        worker.kill()
        worker.kill()
        with pytest.raises(Unavailable, match="ended by itself"):
            worker.check()
        worker.start()
        worker.await_ready()
        took_s = worker.stop()

    assert told == ["local Kafka", "topics", "service"]
    assert was_ready
    assert b"stream_app\0run\0" in command
    assert took_s < 10
    assert not stack.folder.exists()
