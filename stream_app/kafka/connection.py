"""How clients connect to Kafka, and how they are stopped.

All of aiokafka's errors at start-up become one line with a remedy here.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IncompatibleBrokerVersion

from stream_app.errors import ConfigurationError
from stream_app.kafka.aiokafka_patch import PatchedConsumer
from stream_app.kafka.clients import (
    GroupReader,
    PartitionReader,
    Startable,
    TransactionalWriter,
    Writer,
)
from stream_app.kafka.errors import FAILED, KafkaError, unreachable
from stream_app.kafka.log_capture import STARTUP_LOG
from stream_app.kafka.record_batches import BATCH_BYTES
from stream_app.settings import KafkaSettings, SecurityProtocol

# Protocols with a certificate, and protocols with a user name.
_TLS = (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)
_SASL = (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

# How long Kafka may hold back the answer to a fetch without records: a reader's latency at most.
_FETCH_WAIT_MS = 50
# Of one partition in one fetch. Throughput against a bare loop: 0.52 to 0.66 at 1 MB, 0.64 to 0.75
# at this.
_FETCH_BYTES = 4 << 20
# A worker that is silent for so long is taken for dead; it says that it lives six times in it.
_SESSION_MS = 6_000
_HEARTBEAT_MS = 1_000
# So long may all members take to give up their partitions; a join waits for that, so a request
# must be allowed to take longer.
_REBALANCE_MS = 30_000
_REQUEST_MS = 40_000
# The broker ends a transaction that was left open after so long. Until then readers of committed
# records wait: short, but longer than a broker's restart.
_TRANSACTION_MS = 10_000
# Between tries; a transaction's requests find their coordinator busy for some ms after each commit.
_RETRY_MS = 10
# A request takes all outputs of a chunk: several batches.
_REQUEST_BYTES = 4 << 20
# `stop()` can hang while the cluster is unreachable.
_STOP_S = 5
# An admin client's requests are small; a cluster that takes longer is unreachable.
_ADMIN_REQUEST_MS = 10_000


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """Connection options for aiokafka's clients."""
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap,
        "security_protocol": str(settings.security_protocol),
    }
    _refuse_unused(settings)
    if settings.security_protocol in _TLS:
        options["ssl_context"] = _tls(settings)
    if settings.security_protocol in _SASL:
        options |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": _password(settings),
        }
    return options


def _refuse_unused(settings: KafkaSettings) -> None:
    """Credentials that the protocol leaves unused would mean a connection in the clear."""
    tls = (settings.tls_ca_file, settings.tls_certificate_file, settings.tls_key_file)
    sasl = (settings.sasl_username, settings.sasl_password, settings.sasl_password_file)
    for what, given, protocols in (("tls", tls, _TLS), ("sasl", sasl, _SASL)):
        if any(given) and settings.security_protocol not in protocols:
            raise ConfigurationError(
                f"kafka.security_protocol = {str(settings.security_protocol)!r}: does not use the "
                f"kafka.{what}_* settings that are given; it must be {' or '.join(protocols)}"
            )


def _tls(settings: KafkaSettings) -> ssl.SSLContext:
    """Certificate and host name are always verified, from TLS 1.2 on; no setting changes it."""
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file or None)
        if settings.tls_certificate_file:
            key = settings.tls_key_file or None
            context.load_cert_chain(settings.tls_certificate_file, key, password=_no_prompt)
    except OSError as error:
        raise ConfigurationError(
            f"kafka.tls_ca_file = {settings.tls_ca_file!r}, kafka.tls_certificate_file = "
            f"{settings.tls_certificate_file!r}, kafka.tls_key_file = {settings.tls_key_file!r}: "
            f"cannot be used: {error.strerror or error}"
        ) from None
    return context


def _no_prompt() -> str:
    """OpenSSL would ask on the terminal, for which a service would wait for ever."""
    raise ConfigurationError("kafka.tls_key_file: the key is encrypted; it must not be")


def _password(settings: KafkaSettings) -> str:
    password = settings.sasl_password
    file = settings.sasl_password_file
    try:
        if file:
            password = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigurationError(
            f"kafka.sasl_password_file = {file!r}: cannot be read: {reason}"
        ) from None
    if not settings.sasl_username or not password:
        raise ConfigurationError(
            f"kafka.security_protocol = {str(settings.security_protocol)!r}: needs "
            "kafka.sasl_username, and kafka.sasl_password_file or kafka.sasl_password"
        )
    return password


@asynccontextmanager
async def admin(settings: KafkaSettings) -> AsyncIterator[Any]:
    """An admin client; Unavailable in one line if the cluster does not answer."""
    client = AIOKafkaAdminClient(**client_options(settings), request_timeout_ms=_ADMIN_REQUEST_MS)
    await _start(client, settings)
    try:
        # Captured here too: only now are brokers called by the names that they advertise.
        with STARTUP_LOG:
            yield client
    except (KafkaError, TimeoutError) as error:
        raise unreachable(settings, error) from None
    finally:
        await stop(client)


@asynccontextmanager
async def consumer(
    settings: KafkaSettings, *, committed: bool = True, **options: Any
) -> AsyncIterator[PartitionReader]:
    """A reader without a group, of given partitions."""
    client = make_reader(settings, committed=committed, **options)
    await _start(client, settings)
    try:
        yield client
    finally:
        await stop(client)


@asynccontextmanager
async def producer(settings: KafkaSettings, **options: Any) -> AsyncIterator[Writer]:
    """A plain, idempotent writer."""
    client = AIOKafkaProducer(
        **client_options(settings), enable_idempotence=True, acks="all", **options
    )
    await _start(client, settings)
    try:
        yield client
    finally:
        await stop(client)


@asynccontextmanager
async def transactional_writer(
    settings: KafkaSettings, transactional_id: str
) -> AsyncIterator[TransactionalWriter]:
    """A writer that has fenced all others with this id."""
    async with producer(settings, transactional_id=transactional_id) as client:
        fencing: Any = client
        yield fencing


def make_reader(settings: KafkaSettings, *, committed: bool, **options: Any) -> PartitionReader:
    """A reader, not started, with the options that all share (RULES 5)."""
    made: PartitionReader = PatchedConsumer(
        **client_options(settings),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed" if committed else "read_uncommitted",
        fetch_max_wait_ms=_FETCH_WAIT_MS,
        max_partition_fetch_bytes=_FETCH_BYTES,
        **options,
    )
    return made


def make_group_reader(
    settings: KafkaSettings,
    group: str,
    instance_id: str,
    *,
    committed: bool,
    value_bytes: int | None,
) -> GroupReader:
    """A reader, not started, of the partitions that a group gives it."""
    made: Any = make_reader(
        settings,
        committed=committed,
        group_id=group,
        group_instance_id=instance_id or None,
        session_timeout_ms=_SESSION_MS,
        heartbeat_interval_ms=_HEARTBEAT_MS,
        rebalance_timeout_ms=_REBALANCE_MS,
        request_timeout_ms=_REQUEST_MS,
        value_bytes=value_bytes,
    )
    return cast(GroupReader, made)


def make_transactional_writer(
    settings: KafkaSettings, transactional_id: str
) -> TransactionalWriter:
    """A writer of a stage's outputs, not started (RULES 2)."""
    made: TransactionalWriter = AIOKafkaProducer(
        **client_options(settings),
        transactional_id=transactional_id,
        transaction_timeout_ms=_TRANSACTION_MS,
        retry_backoff_ms=_RETRY_MS,
        max_request_size=_REQUEST_BYTES,
        max_batch_size=BATCH_BYTES,  # the sums of a chunk in one request
    )
    return made


def make_admin(settings: KafkaSettings) -> Startable:
    """An admin client, not started; see `clients.delete_before`."""
    made: Startable = AIOKafkaAdminClient(**client_options(settings))
    return made


async def _start(client: Any, settings: KafkaSettings) -> None:
    """Start a client within the deadline, or say in one line what is wrong."""
    try:
        with STARTUP_LOG:
            async with asyncio.timeout(settings.connect_timeout_s):
                await client.start()
    except (*FAILED, IncompatibleBrokerVersion) as error:
        await stop(client)
        raise unreachable(settings, error) from None


async def stop(client: Any) -> None:
    """Stop a client; give up after 5 s (RULES 3)."""
    closing = client.close if isinstance(client, AIOKafkaAdminClient) else client.stop
    task = asyncio.ensure_future(closing())
    done, _ = await asyncio.wait({task}, timeout=_STOP_S)
    if not done:
        task.cancel()
        if isinstance(client, AIOKafkaProducer):
            await _abandon(client)
    elif not task.cancelled():
        task.exception()  # seen; nothing is left to be done about it


async def _abandon(producer: AIOKafkaProducer) -> None:
    """End what `stop()` leaves behind: its sender would try to connect for ever, every moment.

    A cancelled sender waits for the requests under way; cancelled again, it cancels one of them.
    """
    sender = producer._sender.sender_task
    for _ in range(20):
        if sender is None or sender.done():  # None: it was never started
            break
        sender.cancel()
        await asyncio.wait({sender}, timeout=0.1)
    await producer.client.close()
