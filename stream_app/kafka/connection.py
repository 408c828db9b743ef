"""How clients connect to Kafka, and how they are stopped.

All of aiokafka's errors at start-up become one line with a remedy here.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError

from stream_app.errors import ConfigurationError
from stream_app.kafka.aiokafka_patch import PatchedConsumer
from stream_app.kafka.errors import unreachable
from stream_app.kafka.log_capture import STARTUP_LOG
from stream_app.settings import KafkaSettings, SecurityProtocol

_TLS = (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)
_SASL = (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


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
async def admin(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client; Unavailable in one line if the cluster does not answer."""
    client = AIOKafkaAdminClient(**client_options(settings), request_timeout_ms=10_000)
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
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer without a group, for reading given partitions."""
    client = make_consumer(settings, committed=committed, **options)
    await _start(client, settings)
    try:
        yield client
    finally:
        await stop(client)


@asynccontextmanager
async def producer(settings: KafkaSettings, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    """A plain, idempotent producer."""
    client = AIOKafkaProducer(
        **client_options(settings), enable_idempotence=True, acks="all", **options
    )
    await _start(client, settings)
    try:
        yield client
    finally:
        await stop(client)


def make_consumer(settings: KafkaSettings, *, committed: bool, **options: Any) -> AIOKafkaConsumer:
    """A consumer with the options that all readers share."""
    return PatchedConsumer(
        **client_options(settings),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed" if committed else "read_uncommitted",
        fetch_max_wait_ms=50,
        max_partition_fetch_bytes=4 << 20,
        **options,
    )


async def _start(client: Any, settings: KafkaSettings) -> None:
    """Start a client within the deadline, or say in one line what is wrong."""
    try:
        with STARTUP_LOG:
            async with asyncio.timeout(settings.connect_timeout_s):
                await client.start()
    except (TimeoutError, KafkaError, OSError, IncompatibleBrokerVersion) as error:
        await stop(client)
        raise unreachable(settings, error) from None


async def stop(client: Any) -> None:
    """Stop a client; give up after 5 s, since `stop()` can hang when the cluster is away."""
    closing = client.close if isinstance(client, AIOKafkaAdminClient) else client.stop
    task = asyncio.ensure_future(closing())
    done, _ = await asyncio.wait({task}, timeout=5)
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
