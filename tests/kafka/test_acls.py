"""The roles' rights as data, and a connection that is never less safe than its settings say."""

import dataclasses
import logging
import ssl
import subprocess
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner

from stream_app import cli, kafka
from stream_app.errors import ConfigurationError, Unavailable
from stream_app.kafka import acls
from stream_app.local.broker import LocalBroker
from stream_app.settings import KafkaSettings, SecurityProtocol, Settings, load_settings

ROOT = Path(__file__).parents[2]
SECRET = "marked-secret"


def test_the_roles_cover_every_topic() -> None:
    """Each topic of the service is in the table, nothing else is, and only by its full name."""
    names = {
        right.name
        for role in acls.roles()
        for right in acls.rights(Settings(), role)
        if right.resource is acls.Resource.topics
    }

    assert {kafka.topic(KafkaSettings(), name) for name in kafka.TOPICS} == names


def test_the_data_are_where_the_deployment_looks_for_them() -> None:
    deployed = ROOT / "deploy" / "kafka" / "acls.toml"

    assert (ROOT / "stream_app" / "kafka" / "acls.toml").read_bytes() == deployed.read_bytes()


def test_names_follow_the_settings() -> None:
    """Prefix and groups are those of the deployment."""
    settings = load_settings(
        None, {"SHUFFLEBANDIT_KAFKA_TOPIC_PREFIX": "shop", "SHUFFLEBANDIT_SHUFFLE_GROUP": "mix"}
    )

    assert [
        "Read on topic shop.assignments",
        "Read on topic shop.reports",
        "Delete on topic shop.reports",
        "Read on topic shop.windows",
        "Write on topic shop.windows",
        "Read on topic shop.sums",
        "Write on topic shop.sums",
        "Read on group shop.mix",
        "Write on transactional-id shop.mix-*",
    ] == [str(right) for right in acls.rights(settings, "shuffle")]


def test_shown_as_calls_of_kafkas_tool() -> None:
    shown = CliRunner().invoke(cli.cli, ["acls", "show", "--principal", "client=User:web shop"])
    begin = (
        "kafka-acls.sh --bootstrap-server localhost:9092 --command-config admin.properties --add "
        "--allow-principal 'User:web shop' "
    )

    assert [
        f"{begin}--topic shufflebandit.assignments --resource-pattern-type literal "
        "--operation Read",
        f"{begin}--topic shufflebandit.reports --resource-pattern-type literal --operation Write",
    ] == shown.output.splitlines()


@pytest.mark.parametrize("text", ["web", "client", "client=", "client=web", "client=User:*", "x=y"])
def test_a_principal_is_one_user_with_a_role(text: str) -> None:
    """A rule for everybody, or for nobody, is a mistake."""
    with pytest.raises(ConfigurationError, match="ROLE=User:NAME"):
        acls.principal(text)


@pytest.mark.parametrize(
    ("name", "pattern", "meets"),
    [
        ("shop.reports", acls.Pattern.LITERAL, True),
        ("*", acls.Pattern.LITERAL, True),
        ("shop", acls.Pattern.PREFIXED, True),
        ("shop.reports.old", acls.Pattern.PREFIXED, False),
        ("shop.report", acls.Pattern.LITERAL, False),
        ("other.", acls.Pattern.PREFIXED, False),
    ],
)
def test_rules_that_reach_a_topic(name: str, pattern: acls.Pattern, meets: bool) -> None:
    """By its name, by a prefix of it, or by the star."""
    read = acls.Operation.Read
    topics = acls.Resource.topics
    ours = acls.Right(topics, acls.Pattern.LITERAL, "shop.reports", acls.Operation.Write)

    assert meets == acls.Right(topics, pattern, name, read).meets(ours)
    assert not acls.Right(acls.Resource.groups, pattern, name, read).meets(ours)


def secured(**changes: object) -> KafkaSettings:
    given = {
        "security_protocol": SecurityProtocol.SASL_SSL,
        "sasl_username": "web",
        "sasl_password": SECRET,
        **changes,
    }
    return dataclasses.replace(KafkaSettings(), **given)


def test_certificates_are_verified_whatever_the_settings() -> None:
    """With every value that the other settings can have; there is none that turns it off."""
    flags = {
        field.name
        for field in dataclasses.fields(KafkaSettings)
        if field.name.startswith(("tls", "ssl")) or "verify" in field.name
    }
    for mechanism, prefix in product(("PLAIN", "SCRAM-SHA-256"), ("shufflebandit", "x")):
        found = kafka.client_options(secured(sasl_mechanism=mechanism, topic_prefix=prefix))
        context = found["ssl_context"]

        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert {"tls_ca_file", "tls_certificate_file", "tls_key_file"} == flags


@pytest.mark.parametrize(
    "changes",
    [
        {"security_protocol": SecurityProtocol.PLAINTEXT},
        {"security_protocol": SecurityProtocol.SSL},
        {"security_protocol": SecurityProtocol.SASL_PLAINTEXT, "tls_ca_file": "ca.pem"},
        {"sasl_password": ""},
        {"sasl_username": ""},
        {"sasl_password_file": "/nowhere"},
        {"tls_ca_file": "/nowhere"},
        {"tls_certificate_file": "/nowhere"},
    ],
    ids=str,
)
def test_credentials_that_would_not_be_used_are_refused(changes: dict[str, object]) -> None:
    """Not a connection in the clear, or as nobody, that one took for a safe one."""
    with pytest.raises(ConfigurationError, match=r"^kafka\.[^\n]*$") as refused:
        kafka.client_options(secured(**changes))

    assert SECRET not in str(refused.value)


def test_an_encrypted_key_does_not_ask_for_its_password(tmp_path: Path) -> None:
    """A service has nobody to ask."""
    key = tmp_path / "key.pem"
    certificate = tmp_path / "certificate.pem"
    made = ["-keyout", key, "-out", certificate, "-passout", f"pass:{SECRET}", "-subj", "/CN=x"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", *made], check=True)
    with pytest.raises(ConfigurationError, match="encrypted"):
        kafka.client_options(secured(tls_certificate_file=str(certificate), tls_key_file=str(key)))


def test_the_password_file_is_read(tmp_path: Path) -> None:
    """It comes before the setting, and may end in a new line."""
    file = tmp_path / "password"
    file.write_text("from the file\n")
    found = kafka.client_options(secured(sasl_password_file=str(file)))

    assert "from the file" == found["sasl_plain_password"]


@pytest.mark.parametrize(
    "text",
    [
        f'[kafka]\nsasl_password = ["{SECRET}"]',
        f'[[kafka]]\nsasl_password = "{SECRET}"',
        f'[kafka]\nsasl_passwort = "{SECRET}"',
        f'[kafka]\nsasl_password = "{SECRET}',
        f'[kafka]\nsasl_password = "{SECRET}"\nport = 1',
    ],
)
def test_no_error_tells_the_password(tmp_path: Path, text: str) -> None:
    """However wrong the file is."""
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        load_settings(file)

    assert SECRET not in str(refused.value)


def test_neither_settings_nor_help_tell_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHUFFLEBANDIT_KAFKA_SASL_PASSWORD", SECRET)
    settings = load_settings(None)
    runner = CliRunner()
    shown = [runner.invoke(cli.cli, [name, "--help"]).output for name in cli.COMMANDS]

    assert SECRET == settings.kafka.sasl_password
    assert SECRET not in f"{settings!r} {settings} {settings.kafka}"
    assert SECRET not in "".join(shown)
    assert len(cli.COMMANDS) == sum("Usage:" in text for text in shown)


def test_requests_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At level debug aiokafka's connection would log them, with what is in them."""
    with caplog.at_level(logging.DEBUG):
        for name in ("aiokafka.conn", "aiokafka.producer.producer"):
            logging.getLogger(name).debug("Request %s", SECRET)
            logging.getLogger(name).info("said")

    assert ["said", "said"] == caplog.messages


@pytest.mark.kafka
async def test_a_broker_without_rules_is_named(broker: LocalBroker) -> None:
    """Rights that nobody checks are not granted."""
    connection = dataclasses.replace(KafkaSettings(), bootstrap=broker.bootstrap)
    settings = dataclasses.replace(Settings(), kafka=connection)
    wanted = acls.rules(settings, [("client", "User:web")])
    with pytest.raises(Unavailable, match="needs an authorizer"):
        await acls.apply(settings, wanted, remove_others=False)
