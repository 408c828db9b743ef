"""Every private part of aiokafka, faust and mode that is used, and what it looked like when it was.

A failure here means: the library has changed what we rely on. Read the new source, see whether what
we do with it still holds, run the tests of the module that is named, then note the new digest.
"""

import hashlib
import inspect
import logging
import pydoc

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.consumer import fetcher
from aiokafka.record.memory_records import MemoryRecords
from faust.web.drivers.aiohttp import Web

# The first characters of the sha256 of a source, by the module that relies on it.
SOURCES = {
    "stream_app.kafka.aiokafka_patch": {
        # Looks up MemoryRecords and PartitionRecords among its globals.
        "aiokafka.consumer.fetcher.Fetcher._proc_fetch_request": "59bf948fff47",
        # Calls self._proc_fetch_request, so that an instance can have its own.
        "aiokafka.consumer.fetcher.Fetcher._fetch_requests_routine": "2a8ec5932644",
        # Makes self._fetcher, and fetches nothing before a partition is assigned.
        "aiokafka.consumer.consumer.AIOKafkaConsumer.start": "2f1ba7044332",
        # Take batches apart by `has_next`, `next_batch`; give each record to `_consumer_record`.
        "aiokafka.consumer.fetcher.PartitionRecords": "94aa0da0dbec",
    },
    "stream_app.kafka.record_batches": {
        # `RecordBatch` is one without a builder: what it overrides is all that reads the builder.
        "aiokafka.producer.message_accumulator.BatchBuilder": "8050802ca751",
    },
    "stream_app.kafka.connection": {
        # A producer that cannot stop is ended by its sender's task.
        "aiokafka.producer.sender.Sender.start": "ef0a0cbbf1f6",
        "aiokafka.producer.sender.Sender.close": "f60b3d023d25",
        "aiokafka.producer.producer.AIOKafkaProducer.stop": "43ef97147111",
    },
    "stream_app.kafka.acls": {
        "aiokafka.admin.client.AIOKafkaAdminClient._send_request": "1ed126f126dd",
    },
    "stream_app.app": {
        "faust.app.base.App.on_init_dependencies": "7621a70a9b01",
        "faust.app.base.App.on_first_start": "ec655d9c2234",
        "faust.app.base.App.on_start": "480d70c6c72d",
        "faust.app.base.BootStrategy": "ecc05db10abc",
        "faust.web.drivers.aiohttp.Web.start_server": "b0c4f1049182",
        "faust.web.drivers.aiohttp.Web.stop_server": "f116ad97488e",
        "faust.web.base.BlueprintManager": "9e9b78727520",
        "faust.worker.Worker.on_startup_finished": "60faa1ca4af7",
        "mode.worker.Worker.install_signal_handlers": "5cb3d584d58f",
        "mode.services.Service.crash": "14980000465d",
    },
}


@pytest.mark.parametrize(
    ("user", "name"), [(user, name) for user, parts in SOURCES.items() for name in parts]
)
def test_sources_are_those_that_were_read(user: str, name: str) -> None:
    source = inspect.getsource(pydoc.locate(name))  # type: ignore[arg-type]

    assert SOURCES[user][name] == hashlib.sha256(source.encode()).hexdigest()[:12]


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
