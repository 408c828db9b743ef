"""The manifests: settings that exist, ports that match, probes, limits, no rights, no secrets."""

from dataclasses import fields
from typing import Any

import pytest
import yaml

from stream_app.app import Role
from stream_app.metrics import endpoint
from stream_app.settings import Settings, load_settings
from tests.deploy.observing import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
DOCUMENTS: list[dict[str, Any]] = [
    document for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]  # fmt: skip
# Kafka's principal of each role, as in the rights of `shufflebandit acls`.
USERS = {"shuffle": "shuffle", "agent": "agent", "monitor": "monitor", "gateway": "gateway"}


def kind(*names: str) -> list[dict[str, Any]]:
    return [document for document in DOCUMENTS if document["kind"] in names]


WORKLOADS = {
    workload["spec"]["template"]["spec"]["containers"][0]["name"]: workload
    for workload in kind("StatefulSet", "Deployment")
}
ROLES = list(WORKLOADS)


def pod(role: str) -> dict[str, Any]:
    return WORKLOADS[role]["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def container(role: str) -> dict[str, Any]:
    (one,) = pod(role)["containers"]
    return one  # type: ignore[no-any-return]


def environment(role: str) -> dict[str, str]:
    """What the process sees; a pod's own name stands for what Kubernetes fills in."""
    (shared,) = kind("ConfigMap")
    assert container(role)["envFrom"] == [{"configMapRef": {"name": shared["metadata"]["name"]}}]
    own = {entry["name"]: entry.get("value", "pod-0") for entry in container(role)["env"]}
    return {**shared["data"], **own}


def settings(role: str) -> Settings:
    return load_settings(None, environment(role))


def ports(role: str) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(role)["ports"]}


def test_every_role_runs_somewhere() -> None:
    assert {str(role) for role in Role} == set(ROLES)
    for role in ROLES:
        assert container(role)["args"] == ["run", "--roles", role]


@pytest.mark.parametrize("role", ROLES)
def test_settings_exist_and_are_valid(role: str) -> None:
    """Every variable is a setting, and the settings load."""
    known = {
        f"SHUFFLEBANDIT_{section.name}_{option.name}".upper()
        for section in fields(Settings)
        for option in fields(getattr(Settings(), section.name))
    }

    assert set(environment(role)) <= known
    assert settings(role).kafka.sasl_username == USERS[role]
    assert settings(role).kafka.security_protocol == "SASL_SSL"


@pytest.mark.parametrize("role", ROLES)
def test_ports_are_those_of_the_settings(role: str) -> None:
    """And each is bound to the pod's address, not to localhost."""
    given = settings(role)
    expected = {"metrics": given.metrics}
    expected |= {"page": given.monitor} if role == "monitor" else {}
    expected |= {"http": given.gateway} if role == "gateway" else {}

    assert ports(role) == {name: section.port for name, section in expected.items()}
    assert {section.host for section in expected.values()} == {"0.0.0.0"}  # noqa: S104
    # A service named like a section would set variables that are settings.
    assert pod(role)["enableServiceLinks"] is False


@pytest.mark.parametrize("role", ROLES)
def test_probes(role: str) -> None:
    """Alive and ready, by paths that the worker's endpoint has."""
    served = {route.resource.canonical for route in endpoint._pages("", None, list).router.routes()}  # type: ignore[arg-type, union-attr]
    probes = {
        name: container(role)[name]["httpGet"]
        for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }

    assert {probe["path"] for probe in probes.values()} <= served
    assert {probe["port"] for probe in probes.values()} == {"metrics"}
    assert probes["livenessProbe"]["path"] == "/healthz"
    assert probes["readinessProbe"]["path"] == "/readyz"


@pytest.mark.parametrize("role", ROLES)
def test_no_rights(role: str) -> None:
    """Not root, nothing to write to, no way to more rights, no token, limits."""
    whole = pod(role)["securityContext"]
    own = container(role)["securityContext"]

    assert whole["runAsNonRoot"] is True
    assert whole["runAsUser"] == 65534
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(role)["automountServiceAccountToken"] is False
    for group in ("requests", "limits"):
        assert {"cpu", "memory"} == set(container(role)["resources"][group])


@pytest.mark.parametrize("role", ROLES)
def test_secrets_are_files(role: str) -> None:
    """The password is read from a file of the role's own secret; no variable holds one."""
    mount, *other = container(role)["volumeMounts"]
    volume = pod(role)["volumes"][0]
    kafka = settings(role).kafka

    assert volume["secret"]["secretName"] == f"shufflebandit-{USERS[role]}"
    assert mount == {"name": volume["name"], "mountPath": "/etc/shufflebandit", "readOnly": True}
    assert kafka.sasl_password == ""
    # Public keys are no secret: the gateway has those of the tokens beside its credentials.
    assert [entry["name"] for entry in other] == (["token-keys"] if role == "gateway" else [])
    for path in (kafka.sasl_password_file, kafka.tls_ca_file):
        assert path.startswith(mount["mountPath"] + "/")
    assert all("secretKeyRef" not in str(entry) for entry in container(role)["env"])


@pytest.mark.parametrize("role", ["shuffle", "agent"])
def test_stages_keep_their_partitions(role: str) -> None:
    """A stage's pods have lasting names, and are known to the group by them."""
    variable = f"SHUFFLEBANDIT_{role}_INSTANCE_ID".upper()
    (entry,) = [entry for entry in container(role)["env"] if entry["name"] == variable]

    assert WORKLOADS[role]["kind"] == "StatefulSet"
    assert entry["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}


@pytest.mark.parametrize("role", ROLES)
def test_services_and_budgets_find_their_pods(role: str) -> None:
    labels = WORKLOADS[role]["spec"]["template"]["metadata"]["labels"]
    name = WORKLOADS[role]["metadata"]["name"]
    (service,) = [one for one in kind("Service") if one["metadata"]["name"] == name]
    (budget,) = [one for one in kind("PodDisruptionBudget") if one["metadata"]["name"] == name]

    assert WORKLOADS[role]["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["maxUnavailable"] == 1
    for port in service["spec"]["ports"]:
        assert port["port"] == ports(role)[port["targetPort"]]


def test_network() -> None:
    """Into all pods only scrapes and probes; requests into the gateway only."""
    for policy in kind("NetworkPolicy"):
        wanted = policy["spec"]["podSelector"]["matchLabels"]
        chosen = [
            role
            for role, workload in WORKLOADS.items()
            if wanted.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
        ]
        opened = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}

        assert (chosen, opened) in [(ROLES, {"metrics"}), (["gateway"], {"http"})]
        assert all(name in ports(role) for name in opened for role in chosen)
