"""The image: runs as nobody, on a file system that it cannot write, with what a build may see."""

import fnmatch
import re
import tomllib

from stream_app.settings import Settings, load_settings
from tests.deploy.observing import ROOT

TEXT = (ROOT / "deploy" / "Dockerfile").read_text()
LINES = re.sub(r"\\\n\s*", " ", TEXT).splitlines()


def instructions(stage: int) -> list[tuple[str, str]]:
    """Instruction and arguments of one stage of the build; 0 is the first."""
    found: list[list[tuple[str, str]]] = []
    for line in LINES:
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            if word == "FROM":
                found.append([])
            found[-1].append((word, rest))
    return found[stage]


def values(word: str, stage: int = -1) -> list[str]:
    return [rest for name, rest in instructions(stage) if name == word]


def test_runs_as_nobody() -> None:
    """The last user is no name and not root, so that runAsNonRoot can check it."""
    (user,) = values("USER")

    assert user == "65534:65534"
    assert [name for name, _ in instructions(-1)].index("USER") < [
        name for name, _ in instructions(-1)
    ].index("ENTRYPOINT")


def test_needs_nothing_to_write_to() -> None:
    """No volume, no files made at run time, no byte code: a read-only root is enough."""
    (environment,) = values("ENV")

    assert "PYTHONDONTWRITEBYTECODE=1" in environment
    assert values("VOLUME") == values("RUN") == values("ADD") == []
    assert "COPY --from=build /opt/shufflebandit /opt/shufflebandit" in LINES


def test_settings_and_ports() -> None:
    """Its variables are settings, and what it exposes is what they say."""
    (environment,) = values("ENV")
    given = dict(pair.split("=", 1) for pair in environment.split())
    ours = {name: value for name, value in given.items() if name.startswith("SHUFFLEBANDIT_")}
    settings = load_settings(None, ours)
    plain = Settings()

    assert settings.monitor.host == settings.metrics.host == "0.0.0.0"  # noqa: S104
    assert settings != plain
    assert values("EXPOSE") == [f"{plain.monitor.port} {plain.metrics.port}"]
    (check,) = values("HEALTHCHECK")
    assert f":{plain.metrics.port}/readyz" in check


def test_what_it_copies_is_in_the_build_context() -> None:
    """The context has what the build needs and nothing else: no tests, no git, no secrets."""
    allowed = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")
    ]
    copied = [name for rest in values("COPY", 0) for name in rest.split()[:-1]]

    assert sorted(copied) == sorted(allowed)
    assert (ROOT / ".dockerignore").read_text().split()[0] == "*"
    for name in copied:
        assert (ROOT / name).exists()
    assert not any(fnmatch.fnmatch(name, "*secret*") for name in copied)


def test_its_python_is_one_that_we_support() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    for stage in (0, -1):
        assert values("FROM", stage)[0].startswith("python:3.11-slim")
    assert project["requires-python"] == ">=3.11"
