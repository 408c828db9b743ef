"""A broker with TLS, users and rules: what each role may do, the whole service so, and refusals."""

import asyncio
import contextlib
import dataclasses
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from click.testing import CliRunner, Result

from producers.simulated_users import run_users
from stream_app import cli, kafka, registry
from stream_app.audit.recount import audit
from stream_app.audit.verify import verify
from stream_app.core.state import Status
from stream_app.kafka import acls
from stream_app.local.broker import free_port
from stream_app.settings import Settings, load_settings
from tests.integration.secured import (
    GROUP,
    ON_TOPIC,
    RULES,
    TOPIC_DELETION_DISABLED,
    TRANSACTIONAL_ID,
    Secured,
    secured_broker,
    visitor,
)
from tests.integration.service import environment, experiment

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

# Topic by topic, what the broker lets each user do: describe, read, write, delete-records (x),
# create (c). Of altering, deleting a topic, and reading or changing its configuration nobody may
# do anything, so they have no letter.
LETTERS = {"describe": "d", "read": "r", "write": "w", "delete-records": "x", "create": "c"}
MATRIX = """
             client  gateway  shuffle  agent  monitor  operator  auditor  stranger
experiments  -       -        -        dr     dr       drwc      dr       -
assignments  dr      dr       dr       drw    dr       drc       dr       -
reports      dw      dw       drx      -      -        dc        dr       -
held         -       drwx     -        -      -        c         -        -
windows      -       -        drw      -      -        dc        d        -
sums         -       -        drw      dr     dr       drc       dr       -
"""
# The names of groups and transactional ids, after the prefix, that each user may use.
GROUPS = {"shuffle": {".shuffle"}, "agent": {".agent"}, "gateway": {".gateway"}}
TRANSACTIONAL_IDS = {
    "shuffle": {".shuffle-0"},
    "agent": {".agent-0"},
    "operator": {"-experiments-spring"},
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("secrets")) as running:
        yield running


async def deployment(secured: Secured) -> Settings:
    """Topics of the test's own, made by the operator, with every role's rights."""
    base = load_settings(None)
    prefix = f"t{secrets.token_hex(4)}"
    base = dataclasses.replace(base, kafka=dataclasses.replace(base.kafka, topic_prefix=prefix))
    await secured.grant(base)
    await kafka.create_topics(secured.settings("operator", base).kafka, 2, 1)
    return base


def table() -> dict[str, dict[str, str]]:
    """The matrix by user and topic."""
    header, *rows = [line.split() for line in MATRIX.strip().splitlines()]
    return {user: {row[0]: row[i + 1].strip("-") for row in rows} for i, user in enumerate(header)}


async def test_every_role_on_every_topic_and_operation(secured: Secured) -> None:
    """The matrix is all that the broker allows: not an operation more, on no topic."""
    base = await deployment(secured)
    found: dict[str, dict[str, str]] = {}
    for user in table():
        async with visitor(secured.settings(user, base).kafka) as someone:
            found[user] = {}
            for name in kafka.TOPICS:
                full = kafka.topic(base.kafka, name)
                allowed = [
                    operation
                    for operation, kind in ON_TOPIC.items()
                    if operation != "delete" and await someone.may(kind, full)
                ]
                found[user][name] = "".join(LETTERS.get(o, f"<{o}>") for o in allowed)
                # Not even those who may delete records can delete the topic.
                code = await someone.answer(ON_TOPIC["delete"], full)
                assert code == TOPIC_DELETION_DISABLED
            for name in ("__consumer_offsets", "__transaction_state", "another.reports"):
                assert not [o for o in LETTERS if await someone.may(ON_TOPIC[o], name)]

    assert {*table()} == {*acls.roles(), "stranger"}
    assert table() == found


async def test_every_role_on_groups_transactions_and_rules(secured: Secured) -> None:
    """Each stage its own group and transactional ids, the operator the registry's; rules nobody."""
    base = await deployment(secured)
    prefix = base.kafka.topic_prefix
    groups = {".shuffle", ".agent", ".gateway", "", ".shuffle-0", ".other"}
    ids = {".shuffle-0", ".agent-0", "-experiments-spring", "", ".other", "-experiments"}
    async with visitor(secured.settings("admin", base).kafka) as admin:
        await admin.wake_coordinators()
    for user in table():
        async with visitor(secured.settings(user, base).kafka) as someone:
            joined = {name for name in groups if await someone.may(GROUP, prefix + name)}
            used = {name for name in ids if await someone.may(TRANSACTIONAL_ID, prefix + name)}

            assert (user, joined) == (user, GROUPS.get(user, set()))
            assert (user, used) == (user, TRANSACTIONAL_IDS.get(user, set()))
            assert not await someone.may(RULES)


async def test_rights_are_granted_once_and_taken_only_on_request(secured: Secured) -> None:
    """What is there stays; what is there beside a role is told, and removed if that is asked."""
    base = await deployment(secured)
    admin = secured.settings("admin", base)
    once = acls.rules(admin, [("shuffle", "User:moved")])
    moved = acls.rules(admin, [("agent", "User:moved")])
    first = await acls.apply(admin, once, remove_others=False)
    again = await acls.apply(admin, once, remove_others=False)
    other = await acls.apply(admin, moved, remove_others=False)
    taken = await acls.apply(admin, moved, remove_others=True)
    last = await acls.apply(admin, moved, remove_others=True)

    assert (once, []) == (first.granted, first.present)
    assert ([], once) == (again.granted, again.present)
    assert sorted(set(once) - set(moved)) == other.others == taken.removed
    assert [] == other.removed == taken.others == last.granted == last.removed == last.others


def test_the_command_grants_as_the_administrator_only(secured: Secured) -> None:
    """It says what it did; to others that they may not."""

    def apply(user: str) -> Result:
        arguments = ["acls", "apply", "--principal", "client=User:web"]
        return CliRunner().invoke(cli.cli, arguments, env=environment(secured.settings(user)))

    refused = apply("operator")
    first = apply("admin")
    again = apply("admin")

    assert "may not see or change rules" in str(refused.exception)
    assert [
        "granted User:web: Read on topic shufflebandit.assignments",
        "granted User:web: Write on topic shufflebandit.reports",
        "2 rights granted, 0 were there already",
    ] == first.output.splitlines()
    assert "0 rights granted, 2 were there already\n" == again.output


# `shufflebandit`, but every logger says all it can.
TALKATIVE = (
    "import logging; from stream_app import cli, logs; "
    "logs.setup = lambda: logging.basicConfig(level=logging.DEBUG); cli.main()"
)


@dataclasses.dataclass
class Started:
    """A worker that logs all it can."""

    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, settings: Settings, role: str, log: Path, **variables: str) -> "Started":
        with log.open("wb") as out:
            return cls(
                subprocess.Popen(
                    [sys.executable, "-c", TALKATIVE, "run", "--roles", role],
                    env={**environment(settings), **variables},
                    stdout=out,
                    stderr=out,
                ),
                log,
            )

    def command_line(self) -> bytes:
        return Path(f"/proc/{self.process.pid}/cmdline").read_bytes()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


async def until(holds: Callable[[], Awaitable[bool]], limit_s: float = 180) -> None:
    async with asyncio.timeout(limit_s):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.5)


async def says(port: int, path: str, word: str) -> bool:
    """Whether a page is there and has a word."""

    def body() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read())

    with contextlib.suppress(OSError):
        return word in await asyncio.to_thread(body)
    return False


async def test_the_service_with_a_user_for_each_role(secured: Secured, tmp_path: Path) -> None:
    """Everybody has all the rights that are needed; and no log, however talkative, has a secret."""
    base = await deployment(secured)
    ports = {"MONITOR_PORT": free_port(), "GATEWAY_PORT": free_port()}
    given = {f"SHUFFLEBANDIT_{name}": str(port) for name, port in ports.items()}
    retain = "SHUFFLEBANDIT_SHUFFLE_RETAIN_REPORTS_FOR_AUDIT"
    users = {"shuffle": "shuffle", "agent": "agent", "monitor": "monitor", "gateway": "gateway"}
    definition = experiment("guarded", horizon=1500)
    operator, client, auditor, monitor = (
        secured.settings(user, base) for user in ("operator", "client", "auditor", "monitor")
    )

    def start(role: str, name: str, **more: str) -> Started:
        settings = secured.settings(users[role], base)
        log = tmp_path / f"{name}.log"
        worker = Started.start(settings, role, log, **{**given, retain: "true", **more})
        running.callback(worker.kill)
        return worker

    with contextlib.ExitStack() as running:
        plain = {"SHUFFLEBANDIT_KAFKA_SASL_MECHANISM": "PLAIN"}
        workers = {r: start(r, r, **(plain if r == "monitor" else {})) for r in users}
        await registry.create(operator.kafka, definition)
        await until(lambda: _assigned(operator, "guarded"))
        async with asyncio.timeout(240):
            outcome = await run_users(client, "guarded", seed=1, experiment=definition)
        verified = await verify(monitor.kafka, "guarded")
        audited = await audit(auditor.kafka, "guarded")
        ended = f'"state":"{outcome.status}"'
        await until(lambda: says(ports["GATEWAY_PORT"], "/v1/experiments/guarded", ended))
        await until(lambda: says(ports["MONITOR_PORT"], "/api/experiments/guarded", ended))
        lines = b"".join(worker.command_line() for worker in workers.values())
        workers["shuffle"].stop()
        start("shuffle", "deleting", **{retain: "false"})
        await until(lambda: _emptied(auditor, "guarded"))

    assert outcome.status is not Status.RUNNING
    assert verified.differences == audited.differences == audited.unchecked == ()
    assert verified.batches == audited.batches > 0
    _no_secret(secured, lines.decode())
    _check_logs(secured, tmp_path)


def _check_logs(secured: Secured, folder: Path) -> None:
    """They say much, but nobody lacked a right, and neither a password nor a report is in them."""
    for log in folder.glob("*.log"):
        said = log.read_text()
        assert "DEBUG" in said
        assert "uthoriz" not in said
        assert '"ones"' not in said
        _no_secret(secured, said)


async def _assigned(operator: Settings, name: str) -> bool:
    return (await registry.find(operator.kafka, name)).assignment is not None


async def _emptied(auditor: Settings, name: str) -> bool:
    """Whether the experiment's reports are gone from the log."""
    count = await kafka.partition_count(auditor.kafka, ("reports",))
    place = TopicPartition(kafka.topic(auditor.kafka, "reports"), kafka.partition_of(name, count))
    async with kafka.consumer(auditor.kafka) as consumer:
        begin, end = await asyncio.gather(
            consumer.beginning_offsets([place]), consumer.end_offsets([place])
        )
    return bool(begin[place] == end[place] > 0)


def _no_secret(secured: Secured, text: str) -> None:
    """No password of anybody, as it is or as it goes into a request."""
    for file in secured.folder.glob("*.password"):
        assert file.read_text() not in text


FAULTS = {
    "wrong password": ("SASL_PASSWORD", "wrong-secret", "refuses these credentials"),
    "untrusted certificate": ("TLS_CA_FILE", "{folder}/stranger.pem", "certificate is refused"),
    "wrong host name": (
        "BOOTSTRAP",
        "localhost:{port}",
        "certificate is not valid for 'localhost'",
    ),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_refusal_is_one_line(secured: Secured, fault: str) -> None:
    """For a worker and for a command: exit code 3, what is wrong, and no secret in it."""
    setting, value, said = FAULTS[fault]
    value = value.format(folder=secured.folder, port=secured.broker.port)
    settings = secured.settings("operator")
    changed = {
        **environment(settings),
        "SHUFFLEBANDIT_KAFKA_SASL_PASSWORD_FILE": "",
        "SHUFFLEBANDIT_KAFKA_SASL_PASSWORD": secured.password("operator"),
        f"SHUFFLEBANDIT_KAFKA_{setting}": value,
    }
    calls = {
        "worker": ["-m", "stream_app", "run", "--roles", "agent"],
        "command": ["-m", "stream_app", "topics", "create"],
    }
    if fault == "wrong password":
        calls["talkative"] = ["-c", TALKATIVE, "run", "--roles", "agent"]
    started = {
        name: subprocess.Popen(
            [sys.executable, *arguments], env=changed, stderr=subprocess.PIPE, text=True
        )
        for name, arguments in calls.items()
    }
    for name, process in started.items():
        _, printed = process.communicate(timeout=60)
        assert process.returncode == 3, printed
        assert said in printed
        assert printed.count("\n") == 1 or name == "talkative", printed
        assert "wrong-secret" not in printed
        _no_secret(secured, printed)
