"""Settings of a process: TOML and environment in, frozen values out, read once.

The types say what is allowed; this module only reads, merges and turns a validation error into
one line that names the setting, its value and the remedy. An option is declared once, as a field:
files, `SHUFFLEBANDIT_<SECTION>_<FIELD>` variables and the documentation derive from it.
"""

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from stream_app.core.terms import Limits
from stream_app.errors import ConfigurationError

# An unknown key of a file is refused: a limit that is mistyped would not exist.
_FORBID: dict[str, Any] = {"extra": "forbid"}


class SecurityProtocol(StrEnum):
    """Kafka's names for how a client connects."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where Kafka is, and as whom we connect. The password is never printed."""

    # Kafka's bootstrap servers, host:port, with commas between.
    bootstrap: str = "localhost:9092"
    # PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. Credentials that it would not use are refused.
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    # How Kafka checks the password.
    sasl_mechanism: str = "SCRAM-SHA-512"
    # The user of Kafka that this process is.
    sasl_username: str = ""
    # Its password. A file is better: `sasl_password_file`.
    sasl_password: str = field(default="", repr=False)
    # A file with the password; it goes before `sasl_password`.
    sasl_password_file: str = ""
    # The authority that signed the brokers' certificates; empty: those that the system knows.
    tls_ca_file: str = ""
    # The client's own certificate, where the brokers ask for one.
    tls_certificate_file: str = ""
    # Its key, not encrypted; empty: the key is in the certificate's file.
    tls_key_file: str = ""
    # What the names of all topics and consumer groups begin with.
    topic_prefix: str = "shufflebandit"
    # How long Kafka may take to answer at the start.
    connect_timeout_s: float = 10.0
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID


@dataclass(frozen=True, slots=True)
class ShuffleSettings:
    """The shuffle stage."""

    # The consumer group, with the topics' prefix before it.
    group: str = "shuffle"
    # A restart rereads at most about this many records of a partition of `reports`.
    max_reread_records: int = 500_000
    # Reports that an open window has held longer are saved to `windows`; far below the retention
    # of `reports`, so that retention never eats an open window.
    max_unsaved_s: int = 3600
    # Names this worker to the group so that it gets its partitions back at once after a restart.
    # Only where names are unique (a StatefulSet).
    instance_id: str = ""
    # Keep reports after their batch is released, until the topic's retention ends, so that an
    # auditor can count the sums again. The monitor shows what its own settings say of this: the
    # same in all workers.
    retain_reports_for_audit: bool = False
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID


@dataclass(frozen=True, slots=True)
class AgentRoleSettings:
    """The elimination stage."""

    # The consumer group, with the topics' prefix before it.
    group: str = "agent"
    # As `shuffle.instance_id`, for the agent's group.
    instance_id: str = ""
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What a client lets one user spend, over all experiments."""

    # The epsilons of a user's experiments, added up, reach at most this.
    max_user_epsilon: Decimal = Decimal(4)
    # The deltas of a user's experiments, added up, reach at most this.
    max_user_delta: Decimal = Decimal("0.001")
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """The monitor's web server."""

    # The address that it listens on.
    host: str = "127.0.0.1"
    # Its port; `run --web-port` goes before it.
    port: int = 6066
    # Pages that are open at once, each with its stream of events.
    max_streams: int = 100
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The worker's own endpoint: /metrics, /healthz, /readyz."""

    # The address that it listens on.
    host: str = "127.0.0.1"
    # Its port; 0: no endpoint. `run --metrics-port` goes before it.
    port: int = 9108
    # Which experiments have series of their own: names or patterns (* ?), with commas between.
    experiments: str = "*"
    # Of those at most so many: running ones and the newest first.
    max_experiments: int = 100
    # And at most so many arms in all; an experiment whose arms do not fit keeps its other series.
    max_arms: int = 1000
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID


class AdmissionRule(StrEnum):
    """Who may send reports to a gateway."""

    UNSET = ""
    TOKENS = "tokens"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Admission tokens, for the gateway and the shuffle stage."""

    # Public keys of the issuers: experiment=file, with commas between. An experiment that stands
    # there twice has two, for the time of a change. Never what the agent says: each verifier's own.
    keys: str = ""
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The HTTP edge for devices."""

    # The address that it listens on.
    host: str = "127.0.0.1"
    # Its port.
    port: int = 6067
    # Whose pages may use it, separated by spaces: "https://shop.example https://m.shop.example".
    origins: str = ""
    # Who may report: "tokens" (one report per user of yours, see `tokens.keys`) or "open" (anybody,
    # any number). It must be set unless the address is a loopback one, where empty means open.
    admission: AdmissionRule = AdmissionRule.UNSET
    # The consumer group of all gateways, with the topics' prefix before it: it shares out `held`.
    group: str = "gateway"
    # Reports of pages that were left, in memory until they are due; more wait in `held`.
    max_held_reports: int = 500_000
    # Reports wait until so many requests have come, and leave together in random order.
    hold_requests: int = 64
    # They wait at most so long.
    hold_ms: int = 100
    # More reports than this are not held: 503.
    max_waiting_reports: int = 100_000
    # How long Kafka may take to acknowledge: then 503.
    acknowledge_s: float = 5.0
    # More reports than this from all senders together get 429.
    max_reports_per_s: float = 50_000.0
    # More reports than this on one connection get 429.
    max_connection_reports_per_s: float = 5_000.0
    # A longer request is refused.
    max_body_bytes: int = 262_144
    # How long a request's body may take to arrive.
    body_timeout_s: float = 10.0
    # Connections; when there are more, the one that has been idle longest is closed.
    max_connections: int = 10_000
    # A connection without a request is closed after this.
    idle_timeout_s: float = 30.0
    # Connections of these that may be streams of changes.
    max_streams: int = 5_000
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a process."""

    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    limits: Limits = field(default_factory=Limits)
    shuffle: ShuffleSettings = field(default_factory=ShuffleSettings)
    agent: AgentRoleSettings = field(default_factory=AgentRoleSettings)
    client: ClientSettings = field(default_factory=ClientSettings)
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    tokens: TokenSettings = field(default_factory=TokenSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID


_SETTINGS: TypeAdapter[Settings] = TypeAdapter(Settings)


# Variables with our prefix that are no settings of a worker: the settings' file, the folder of the
# local Kafka, and what Grafana's provisioning reads.
_OTHER_VARIABLES = frozenset(
    f"SHUFFLEBANDIT_{name}" for name in ("CONFIG", "CACHE", "PROMETHEUS_URL", "DASHBOARDS")
)
# What Kubernetes sets for a service that is called shufflebandit-something (service links).
_SERVICE_LINK = re.compile(
    r"SHUFFLEBANDIT_\w*?(_SERVICE_HOST|_SERVICE_PORT(_\w+)?"
    r"|_PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)"
)
_LINK_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def load_settings(path: Path | None, environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from a TOML file, then the environment over it.

    A variable with our prefix that names no setting is refused, as an unknown key of a file is: a
    limit that is mistyped would silently not exist.
    """
    raw = read_toml(path) if path is not None else {}
    source = str(path) if path is not None else "settings"
    options = _options()
    given = os.environ if environment is None else environment
    for variable, value in given.items():
        if not variable.startswith("SHUFFLEBANDIT_") or variable in _OTHER_VARIABLES:
            continue
        if _SERVICE_LINK.fullmatch(variable) or (
            variable.endswith("_PORT") and _LINK_ADDRESS.match(value)
        ):
            continue
        if variable not in options:
            raise ConfigurationError(_unknown_variable(variable, [*options, *_OTHER_VARIABLES]))
        section, option = options[variable]
        table(raw, section)[option] = value
    try:
        settings = _SETTINGS.validate_python(raw)
    except ValidationError as error:
        raise ConfigurationError(f"{source}: {describe(error)}") from None
    return settings


def _options() -> dict[str, tuple[str, str]]:
    """Section and field of every setting, by its variable."""
    found: dict[str, tuple[str, str]] = {}
    for section in dataclasses.fields(Settings):
        assert isinstance(section.default_factory, type)
        for option in dataclasses.fields(section.default_factory):
            variable = f"SHUFFLEBANDIT_{section.name}_{option.name}".upper()
            found[variable] = (section.name, option.name)
    return found


def _unknown_variable(variable: str, known: Sequence[str]) -> str:
    # Without its value: a password may be in it.
    near = difflib.get_close_matches(variable, known, n=1, cutoff=0.0)[0]
    return f"{variable}: names no setting; the nearest is {near}; correct it, or unset it"


def describe(error: ValidationError) -> str:
    """The first problem in one line: setting, value, what is allowed."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "value"
    if first["type"] == "missing":
        return f"{where}: missing; it must be set"
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{where}: unknown setting; check its spelling against deploy/OPERATING.md, Settings"
    if "password" in f"{where} {first['input']}":  # a whole section is an input, too
        return f"{where}: {first['msg'].lower()}"
    return f"{where} = {str(first['input'])[:80]!r}: {first['msg'][:1].lower()}{first['msg'][1:]}"


def read_toml(path: Path) -> dict[str, Any]:
    """A file's content. Raises ConfigurationError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not a TOML file: {error}") from None


def table(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table of a file, made if it is not there. Raises ConfigurationError."""
    found = raw.get(key)
    if found is None and isinstance(raw, dict):
        found = raw[key] = {}
    if not isinstance(found, dict):
        # Without its value: a password may be in it.
        raise ConfigurationError(f"{key}: must be a table, [{key}]")
    return found
