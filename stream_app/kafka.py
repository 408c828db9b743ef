"""The edge to Kafka: how clients connect, which topics there are, where an experiment lives.

All of aiokafka's errors at start-up become one line with a remedy here.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    for_code,
)
from aiokafka.partitioner import murmur2

from stream_app import fetched
from stream_app.config import KafkaSettings, SecurityProtocol
from stream_app.errors import ConfigurationError, Unavailable
from stream_app.quiet import QUIET

DEFAULT_PARTITIONS = 8
_TLS = (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)
_SASL = (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
_NOT_ALLOWED = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
PUBLIC = ("experiments", "assignments", "sums")
# The broker unpacks what clients compress: no codec of theirs can stop a reader, and no length of
# a packed report tells what is in it.
_PLAIN = {"compression.type": "uncompressed"}
_COMPACT = {**_PLAIN, "cleanup.policy": "compact"}
_HOUR_MS = str(3600 * 1000)
# Every topic with its clean-up; `reports` is kept a week at most, `sums` for ever. Deleted reports
# and checkpoints leave the brokers' disks with their segment's file: it is closed after an hour.
TOPICS: dict[str, dict[str, str]] = {
    "experiments": _COMPACT,
    "assignments": {**_COMPACT, "min.cleanable.dirty.ratio": "0.1"},
    "reports": {
        **_PLAIN,
        "cleanup.policy": "delete",
        "retention.ms": str(7 * 24 * 3600 * 1000),
        "segment.ms": _HOUR_MS,
        "message.timestamp.type": "LogAppendTime",
    },
    "windows": {
        **_COMPACT,
        "min.cleanable.dirty.ratio": "0.1",
        "max.compaction.lag.ms": _HOUR_MS,
    },
    "sums": {**_PLAIN, "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
}


def topic(settings: KafkaSettings, name: str) -> str:
    """A topic's full name."""
    return f"{settings.topic_prefix}.{name}"


def partition_of(experiment: str, partitions: int) -> int:
    """The partition number that an experiment has in every topic: Kafka's default for its key."""
    return int(murmur2(experiment.encode()) & 0x7FFFFFFF) % partitions


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
    password, file = settings.sasl_password, settings.sasl_password_file
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
        # Quiet here too: only now are brokers called by the names that they advertise.
        with QUIET:
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
    fetched.install()
    return AIOKafkaConsumer(
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
        with QUIET:
            async with asyncio.timeout(settings.connect_timeout_s):
                await client.start()
    except (TimeoutError, KafkaError, OSError, IncompatibleBrokerVersion) as error:
        await stop(client)
        raise unreachable(settings, error) from None


def unreachable(settings: KafkaSettings, error: BaseException) -> Unavailable:
    """One line for a cluster that cannot be used."""
    if QUIET.refused or "uthentication" in f"{type(error).__name__} {error}":
        return Unavailable(
            f"kafka.sasl_username = {settings.sasl_username!r}: Kafka at {settings.bootstrap} "
            "refuses these credentials; check sasl_username, sasl_password and sasl_mechanism"
        )
    if QUIET.certificate:
        return Unavailable(
            f"kafka.bootstrap = {settings.bootstrap!r}: its certificate is refused "
            f"({QUIET.certificate}); check the address and kafka.tls_ca_file = "
            f"{settings.tls_ca_file!r}"
        )
    if isinstance(error, _NOT_ALLOWED):
        return Unavailable(
            f"kafka.sasl_username = {settings.sasl_username!r}: not allowed: "
            f"{error}; compare with: shufflebandit acls show"
        )
    if isinstance(error, TimeoutError | KafkaConnectionError | OSError):
        return Unavailable(
            f"kafka.bootstrap = {settings.bootstrap!r}: no Kafka answers there; check the address "
            "and security_protocol, or start a local one with: shufflebandit broker"
        )
    return Unavailable(f"kafka.bootstrap = {settings.bootstrap!r}: {type(error).__name__}: {error}")


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


async def create_topics(
    settings: KafkaSettings, partitions: int | None, replication: int
) -> list[str]:
    """Create the topics that are missing, wait until all are there; returns the new ones' names.

    `partitions` None means as many as the topics that exist, else DEFAULT_PARTITIONS.
    """
    async with admin(settings) as client:
        existing = await _partition_counts(client, settings, TOPICS)
        _same_count(existing)
        present = next(iter(existing.values()), None)
        wanted = partitions or present or DEFAULT_PARTITIONS
        if present is not None and wanted != present:
            raise ConfigurationError(
                f"--partitions {wanted}: the topics exist with {present}; adding partitions to a "
                "running system could release a batch twice, use the same number or another "
                "kafka.topic_prefix"
            )
        missing = [name for name in TOPICS if name not in existing]
        if missing:
            await _create(client, settings, missing, wanted, replication)
        return [topic(settings, name) for name in missing]


async def _create(
    client: AIOKafkaAdminClient,
    settings: KafkaSettings,
    names: list[str],
    partitions: int,
    replication: int,
) -> None:
    response = await client.create_topics(
        [
            NewTopic(topic(settings, name), partitions, replication, topic_configs=TOPICS[name])
            for name in names
        ]
    )
    for full_name, code, *message in response.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            raise Unavailable(f"topic {full_name}: {error.__name__}: {' '.join(map(str, message))}")
    async with asyncio.timeout(settings.connect_timeout_s):
        while len(await _partition_counts(client, settings, TOPICS)) < len(TOPICS):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def partition_count(settings: KafkaSettings, names: Iterable[str] = TOPICS) -> int:
    """How many partitions these topics have. Raises if one is missing or differs."""
    async with admin(settings) as client:
        existing = await _partition_counts(client, settings, names)
    missing = [topic(settings, name) for name in names if name not in existing]
    if missing:
        raise Unavailable(
            f"topics {', '.join(missing)}: missing on {settings.bootstrap}, or no right to see "
            "them; create them with: shufflebandit topics create"
        )
    _same_count(existing)
    return next(iter(existing.values()))


async def _partition_counts(
    client: AIOKafkaAdminClient, settings: KafkaSettings, names: Iterable[str]
) -> dict[str, int]:
    """Of the topics that are there; one that is just coming or going has no partitions yet."""
    present = set(await client.list_topics())
    full = {topic(settings, name): name for name in names}
    wanted = [name for name in full if name in present]
    described = await client.describe_topics(wanted) if wanted else []
    return {
        full[entry["topic"]]: len(entry["partitions"]) for entry in described if entry["partitions"]
    }


def _same_count(counts: dict[str, int]) -> None:
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ConfigurationError(
            f"topics have different partition counts ({listed}): an experiment must have the same "
            "partition in each; delete them, or use another kafka.topic_prefix, and then: "
            "shufflebandit topics create"
        )
