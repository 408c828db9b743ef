"""Who may do what on Kafka: each role's rights from acls.toml, and Kafka's rules made of them.

The numbers are Kafka's (https://kafka.apache.org/protocol). This module grants to principals what
it is told; which principal has which role is the administrator's to say.
"""

import asyncio
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import ClusterAuthorizationFailedError, NoError, SecurityDisabled, for_code
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from stream_app.errors import ConfigurationError, Unavailable
from stream_app.kafka.connection import admin
from stream_app.settings import KafkaSettings, Settings

EVERYBODY = "User:*"  # Kafka's own name for it
_ANY = 1  # of resource types, pattern types and operations
_ALLOW = 3  # of permission types


class Resource(IntEnum):
    """What a right is on, by its name in acls.toml."""

    topics = 2
    groups = 3
    transactional_ids = 5

    @property
    def flag(self) -> str:
        """As `kafka-acls.sh` calls it."""
        return self.name.removesuffix("s").replace("_", "-")


class Pattern(IntEnum):
    """How a rule's name is meant."""

    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is allowed."""

    All = 2
    Read = 3
    Write = 4
    Create = 5
    Delete = 6
    Alter = 7
    Describe = 8
    ClusterAction = 9
    DescribeConfigs = 10
    AlterConfigs = 11
    IdempotentWrite = 12


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One operation on one resource, or on all whose names begin so."""

    resource: Resource
    pattern: Pattern
    name: str
    operation: Operation

    def meets(self, other: "Right") -> bool:
        """Whether both are on some resource, whatever the operations."""
        if self.resource is not other.resource:
            return False
        prefixes = {right.name for right in (self, other) if right.pattern is Pattern.PREFIXED}
        return (
            self.name == other.name
            or "*" in (self.name, other.name)
            or any(
                name.startswith(p)
                for p in prefixes
                for name in (self.name, other.name)
                if name != p
            )
        )

    def __str__(self) -> str:
        star = "*" if self.pattern is Pattern.PREFIXED else ""
        return f"{self.operation.name} on {self.resource.flag} {self.name}{star}"


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """A right that somebody has."""

    principal: str
    right: Right
    host: str = "*"

    def __str__(self) -> str:
        return f"{self.principal}: {self.right}" + f" from {self.host}" * (self.host != "*")


@cache
def _table() -> dict[str, dict[str, dict[str, list[str]]]]:
    return tomllib.loads((Path(__file__).parent / "acls.toml").read_text(encoding="utf-8"))


def roles() -> list[str]:
    """The roles that there are."""
    return list(_table())


def rights(settings: Settings, role: str) -> list[Right]:
    """What a role may do in this deployment."""
    names = {
        "prefix": settings.kafka.topic_prefix,
        "shuffle": settings.shuffle.group,
        "agent": settings.agent.group,
        "gateway": settings.gateway.group,
    }
    found = []
    for kind, entries in _table()[role].items():
        for template, operations in entries.items():
            name = template.format_map(names)
            pattern = Pattern.PREFIXED if template.endswith("*") else Pattern.LITERAL
            for operation in operations:
                plain = name.removesuffix("*")
                found.append(Right(Resource[kind], pattern, plain, Operation[operation]))
    return found


def rules(settings: Settings, principals: Iterable[tuple[str, str]]) -> list[Rule]:
    """What these principals, each given with its role, may do; no rule twice."""
    return list(
        dict.fromkeys(
            Rule(principal, right)
            for role, principal in principals
            for right in rights(settings, role)
        )
    )


def principal(text: str) -> tuple[str, str]:
    """Role and principal of ROLE=User:NAME. Raises ConfigurationError."""
    role, _, name = text.partition("=")
    if role not in roles():
        raise ConfigurationError(
            f"--principal {text!r}: must be ROLE=User:NAME, the role one of {', '.join(roles())}"
        )
    if not name.startswith("User:") or name in ("User:", EVERYBODY):
        raise ConfigurationError(
            f"--principal {text!r}: must be ROLE=User:NAME, one user of Kafka's, as in "
            f"{role}=User:{role}"
        )
    return role, name


def command_lines(bootstrap: str, wanted: Iterable[Rule]) -> list[str]:
    """The same as calls of Kafka's own tool, one for each principal and resource."""
    calls: dict[tuple[str, Resource, Pattern, str], list[Operation]] = {}
    for rule in wanted:
        right = rule.right
        key = (rule.principal, right.resource, right.pattern, right.name)
        calls.setdefault(key, []).append(right.operation)
    return [
        f"kafka-acls.sh --bootstrap-server {bootstrap} --command-config admin.properties --add "
        f"--allow-principal {quote(who)} --{resource.flag} {quote(name)} "
        f"--resource-pattern-type {pattern.name.lower()} "
        + " ".join(f"--operation {operation.name}" for operation in operations)
        for (who, resource, pattern, name), operations in calls.items()
    ]


@dataclass(frozen=True, slots=True)
class AclChanges:
    """What `apply` did."""

    granted: list[Rule]
    present: list[Rule]
    removed: list[Rule]
    others: list[Rule]  # what the principals, or everybody, may do on our resources beside it


async def apply(given: Settings, wanted: list[Rule], *, remove_others: bool) -> AclChanges:
    """Grant what is missing, as a user who may change rules. Raises Unavailable."""
    settings = given.kafka
    named = {rule.principal for rule in wanted}
    async with admin(settings) as client:
        before = await _existing(client, settings)
        granted = [rule for rule in wanted if rule not in before]
        ours = [right for role in roles() for right in rights(given, role)]
        others = sorted(
            rule
            for rule in before.difference(wanted)
            if rule.principal in (*named, EVERYBODY) and any(map(rule.right.meets, ours))
        )
        removed = [rule for rule in others if remove_others and rule.principal in named]
        for rule in granted:
            created = await _send(client, CreateAclsRequest(*_fields(rule)))
            _check(settings, (code for code, *_ in created.creation_responses))
        for rule in removed:
            deleted = await _send(client, DeleteAclsRequest(*_fields(rule)))
            _check(settings, (code for code, *_ in deleted.filter_responses))
        await _until_seen(client, settings, granted, removed)
    return AclChanges(
        granted,
        [rule for rule in wanted if rule in before],
        removed,
        [rule for rule in others if rule not in removed],
    )


async def _until_seen(
    client: AIOKafkaAdminClient, settings: KafkaSettings, granted: list[Rule], removed: list[Rule]
) -> None:
    """A broker learns of a new rule a little after the controller has taken it."""
    async with asyncio.timeout(settings.connect_timeout_s):
        while True:
            seen = await _existing(client, settings)
            if seen.issuperset(granted) and seen.isdisjoint(removed):
                return
            await asyncio.sleep(0.05)


async def _existing(client: AIOKafkaAdminClient, settings: KafkaSettings) -> set[Rule]:
    """All rules that allow something on a kind of resource that we use."""
    every = DescribeAclsRequest(_ANY, None, _ANY, None, None, _ANY, _ALLOW)
    answer = await _send(client, every)
    _check(settings, [answer.error_code])
    found = set()
    for kind, name, pattern, entries in answer.resources:
        for who, host, operation, _ in entries:
            if kind in list(Resource):
                right = Right(Resource(kind), Pattern(pattern), name, Operation(operation))
                found.add(Rule(who, right, host))
    return found


def _fields(rule: Rule) -> tuple[int, str, int, str, str, int, int]:
    right = rule.right
    on = (int(right.resource), right.name, int(right.pattern))
    return (*on, rule.principal, rule.host, int(right.operation), _ALLOW)


async def _send(client: AIOKafkaAdminClient, request: Any) -> Any:
    """aiokafka has these requests, but no calls that send them."""
    return await client._send_request(request)


def _check(settings: KafkaSettings, codes: Iterable[int]) -> None:
    for error in map(for_code, codes):
        if error is SecurityDisabled:
            raise Unavailable(
                f"Kafka at {settings.bootstrap} has no rules: it needs an authorizer, see "
                "deploy/kafka/secured.properties"
            )
        if error is ClusterAuthorizationFailedError:
            raise Unavailable(
                f"kafka.sasl_username = {settings.sasl_username!r}: may not see or change rules; "
                "use the administrator's credentials"
            )
        if error is not NoError:
            raise Unavailable(f"rules on {settings.bootstrap}: {error.__name__}")
