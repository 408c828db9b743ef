"""Every private part of aiokafka, faust and mode that is used, and what it looked like when it was.

A failure here means: the library has changed what we rely on. Read the new source, see whether what
we do with it still holds, run the tests of the module that is named, then note the new digest.
"""

import hashlib
import inspect
import logging
import pydoc
import re

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.consumer import fetcher
from aiokafka.record.memory_records import MemoryRecords
from faust.web.drivers.aiohttp import Web

# The first characters of the sha256 of a source without comments, by the module that relies on it.
SOURCES = {
    "stream_app.kafka.aiokafka_patch": {
        # Looks up MemoryRecords and PartitionRecords among its globals.
        "aiokafka.consumer.fetcher.Fetcher._proc_fetch_request": "821724536262",
        # Calls self._proc_fetch_request, so that an instance can have its own.
        "aiokafka.consumer.fetcher.Fetcher._fetch_requests_routine": "cda3d393fc19",
        # Makes self._fetcher, and fetches nothing before a partition is assigned.
        "aiokafka.consumer.consumer.AIOKafkaConsumer.start": "8178b717d8e2",
        # Take batches apart by `has_next`, `next_batch`; give each record to `_consumer_record`.
        "aiokafka.consumer.fetcher.PartitionRecords": "b0c2550bd1c6",
    },
    "stream_app.kafka.record_batches": {
        # `RecordBatch` is one without a builder: what it overrides is all that reads the builder.
        "aiokafka.producer.message_accumulator.BatchBuilder": "f44806d4545d",
    },
    "stream_app.kafka.connection": {
        # A producer that cannot stop is ended by its sender's task.
        "aiokafka.producer.sender.Sender.start": "d9a38cc61e09",
        "aiokafka.producer.sender.Sender.close": "50d22d1a094f",
        "aiokafka.producer.producer.AIOKafkaProducer.stop": "b0b210bb3842",
    },
    "stream_app.kafka.acls": {
        "aiokafka.admin.client.AIOKafkaAdminClient._send_request": "f531870d099b",
    },
    "stream_app.app": {
        "faust.app.base.App.on_init_dependencies": "c7fceb7e5ecb",
        "faust.app.base.App.on_first_start": "b7070bd2e5c0",
        "faust.app.base.App.on_start": "ea588947087d",
        "faust.app.base.BootStrategy": "8b6c410d6bb4",
        "faust.web.drivers.aiohttp.Web.start_server": "1c48a7d54b59",
        "faust.web.drivers.aiohttp.Web.stop_server": "5b405061b7cc",
        "faust.web.base.BlueprintManager": "2478cb7c0116",
        "faust.worker.Worker.on_startup_finished": "efdc23f53962",
        "mode.worker.Worker.install_signal_handlers": "eaab0b7559d3",
        "mode.services.Service.crash": "b8da99f3fcaa",
    },
}


def digest(name: str) -> str:
    """Of the source without its comments and empty lines."""
    source = inspect.getsource(pydoc.locate(name))  # type: ignore[arg-type]
    lines = [re.sub(r"\s*#.*", "", line) for line in source.splitlines()]
    code = "\n".join(line for line in lines if line.strip())
    return hashlib.sha256(code.encode()).hexdigest()[:12]


@pytest.mark.parametrize(
    ("user", "name"), [(user, name) for user, parts in SOURCES.items() for name in parts]
)
def test_sources_are_those_that_were_read(user: str, name: str) -> None:
    assert SOURCES[user][name] == digest(name)


def test_the_names_that_a_fetcher_looks_up() -> None:
    """Ours stand for these two in a consumer of ours."""
    names = fetcher.Fetcher._proc_fetch_request.__code__.co_names

    assert {"MemoryRecords", "PartitionRecords"} <= set(names)
    assert not fetcher.Fetcher._proc_fetch_request.__code__.co_freevars


def test_what_batches_have() -> None:
    """Read from compiled code, so there is no source to compare."""
    assert all(map(callable, (MemoryRecords.has_next, MemoryRecords.next_batch)))
    assert callable(MemoryRecords.size_in_bytes)


def test_an_admin_client_sends_any_request() -> None:
    parameters = inspect.signature(AIOKafkaAdminClient._send_request).parameters

    assert ["self", "request", "node_id"] == list(parameters)


def test_faust_s_web_server_has_a_runner() -> None:
    """Ours takes its place before the server starts."""
    assert "self._runner" in inspect.getsource(Web.__init__)


@pytest.mark.parametrize("name", ["aiokafka.conn", "aiokafka.producer.producer"])
def test_loggers_that_show_requests(name: str) -> None:
    """They are where `log_capture` keeps whole requests out of every log."""
    module = pydoc.locate(name)

    assert isinstance(module.log, logging.Logger)  # type: ignore[union-attr]
    assert name == module.log.name  # type: ignore[union-attr]
