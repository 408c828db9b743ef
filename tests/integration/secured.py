"""A Kafka with TLS, users and rules as deploy/kafka/secured.properties has them, and what is tried
on it: one request of each kind, sent as it is, so that the answer is the broker's own."""

import asyncio
import contextlib
import dataclasses
import secrets
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    LeaderNotAvailableError,
    NoError,
    NotCoordinatorError,
    NotLeaderForPartitionError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeAclsRequest,
    DescribeConfigsRequest,
)
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from stream_app import kafka
from stream_app.kafka import acls
from stream_app.local.broker import LocalBroker
from stream_app.settings import KafkaSettings, SecurityProtocol, Settings, load_settings

PROPERTIES = Path(__file__).parents[2] / "deploy" / "kafka" / "secured.properties"
SECRETS = "/etc/kafka/secrets"
TOPIC_DELETION_DISABLED = 73

DENIED = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
# The broker looks at the rights first: whoever gets these answers has them.
ALLOWED = (NoError, TopicAlreadyExistsError, UnknownMemberIdError)
NOT_YET = (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    NotLeaderForPartitionError,
    UnknownTopicOrPartitionError,
)


def make_certificates(folder: Path) -> None:
    """ca.pem and broker.pem, which is for 127.0.0.1 and no name; stranger.pem is another CA."""

    def openssl(*arguments: str) -> None:
        new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        command = ["openssl", *new, "-days", "2", *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)

    for name in ("ca", "stranger"):
        openssl("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    extensions = ("subjectAltName=IP:127.0.0.1", "basicConstraints=critical,CA:FALSE")
    added = [word for extension in extensions for word in ("-addext", extension)]
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key")
    openssl("-subj", "/CN=kafka", *added, *signed, "-keyout", "key.pem", "-out", "broker.crt")
    both = (folder / "key.pem").read_text() + (folder / "broker.crt").read_text()
    (folder / "broker.pem").write_text(both)


@dataclasses.dataclass(frozen=True)
class Secured:
    """A running broker, and the files that its users need."""

    folder: Path
    broker: LocalBroker

    def settings(self, user: str, base: Settings | None = None) -> Settings:
        """How this user connects."""
        base = base or load_settings(None)
        connection = dataclasses.replace(
            base.kafka,
            bootstrap=self.broker.bootstrap,
            security_protocol=SecurityProtocol.SASL_SSL,
            sasl_username=user,
            sasl_password_file=str(self.folder / f"{user}.password"),
            tls_ca_file=str(self.folder / "ca.pem"),
            connect_timeout_s=60,  # of a crowded machine
        )
        return dataclasses.replace(base, kafka=connection)

    def password(self, user: str) -> str:
        return (self.folder / f"{user}.password").read_text()

    async def grant(self, base: Settings) -> None:
        """Give every role's user its rights in a deployment."""
        admin = self.settings("admin", base)
        wanted = acls.rules(admin, [(role, f"User:{role}") for role in acls.roles()])
        await acls.apply(admin, wanted, remove_others=False)


@contextlib.contextmanager
def secured_broker(folder: Path) -> Iterator[Secured]:
    """The broker of the sample settings, with a user for each role, `admin` and `stranger`.

    The monitor may also log in by PLAIN, which sends the password as it is: the worst for logs.
    """
    make_certificates(folder)
    users = {user: secrets.token_hex(12) for user in (*acls.roles(), "admin", "stranger")}
    for user, password in users.items():
        (folder / f"{user}.password").write_text(password)
    lines = PROPERTIES.read_text().replace(SECRETS, str(folder)).splitlines()
    properties = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    properties |= {
        "sasl.enabled.mechanisms": f"{properties['sasl.enabled.mechanisms']},PLAIN",
        "listener.name.client.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_monitor="{users["monitor"]}";'
        ),
    }
    with LocalBroker(properties=properties, users=users) as broker:
        yield Secured(folder, broker)


def _batch() -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1000)
    builder.append(0, int(time.time() * 1000), b"key", b"value", [])
    return bytes(builder.build())


TOPIC = int(ConfigResourceType.TOPIC)
Kind = tuple[Callable[[str], Any], tuple[str | int, ...]]
# Every kind of request on a name, and where its answer has the error code.
ON_TOPIC: dict[str, Kind] = {
    "describe": (lambda name: MetadataRequest([name]), ("topics", 0, 0)),
    "read": (
        lambda name: FetchRequest(1, 0, 1000, 0, [(name, [(0, 0, 1000)])]),
        ("topics", 0, 1, 0, 1),
    ),
    "write": (
        lambda name: ProduceRequest(None, -1, 5000, [(name, [(0, _batch())])]),
        ("topics", 0, 1, 0, 1),
    ),
    "delete-records": (
        lambda name: DeleteRecordsRequest([(name, [(0, 0)])], 5000),
        ("topics", 0, 1, 0, 2),
    ),
    "create": (
        lambda name: CreateTopicsRequest([(name, 1, 1, [], [])], 5000, True),
        ("topic_errors", 0, 1),
    ),
    "delete": (lambda name: DeleteTopicsRequest([name], 5000), ("topic_error_codes", 0, 1)),
    "alter": (
        lambda name: CreatePartitionsRequest([(name, (50, None))], 5000, True),
        ("topic_errors", 0, 1),
    ),
    "describe-configs": (
        lambda name: DescribeConfigsRequest([(TOPIC, name, None)]),
        ("resources", 0, 0),
    ),
    "alter-configs": (
        lambda name: AlterConfigsRequest([(TOPIC, name, [("retention.ms", "9999999")])], True),
        ("resources", 0, 0),
    ),
}
GROUP: Kind = (lambda name: HeartbeatRequest(name, 1, "nobody"), ("error_code",))
TRANSACTIONAL_ID: Kind = (lambda name: InitProducerIdRequest(name, 5000), ("error_code",))
RULES: Kind = (lambda _: DescribeAclsRequest(1, None, 1, None, None, 1, 1), ("error_code",))


class Visitor:
    """A user with an open connection, who tries things."""

    def __init__(self, client: AIOKafkaAdminClient) -> None:
        self._client = client

    async def answer(self, kind: Kind, name: str = "") -> int:
        """The broker's error code; while a topic or coordinator is not ready, ask again."""
        make, path = kind
        async with asyncio.timeout(120):
            while True:
                found: Any = await self._client._send_request(make(name))
                for step in path:
                    found = getattr(found, step) if isinstance(step, str) else found[step]
                if for_code(found) not in NOT_YET:
                    return int(found)
                await asyncio.sleep(0.1)

    async def may(self, kind: Kind, name: str = "") -> bool:
        """Whether the broker allows it; any answer that does not tell is an error."""
        error = for_code(await self.answer(kind, name))
        assert error in DENIED + ALLOWED, (error.__name__, name)
        return error in ALLOWED

    async def wake_coordinators(self) -> None:
        """Make the broker set up its topics of groups and transactions."""
        for kind in (0, 1):
            await self._client._send_request(FindCoordinatorRequest("any", kind))


@contextlib.asynccontextmanager
async def visitor(settings: KafkaSettings) -> AsyncIterator[Visitor]:
    async with kafka.admin(settings) as client:
        yield Visitor(client)
