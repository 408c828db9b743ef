"""Kafka's jars: half a download is no download, and one version is meant everywhere."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from stream_app.errors import Unavailable
from stream_app.local.broker import LocalBroker
from stream_app.local.kafka_jars import KAFKA, MANIFEST, fetch

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.kafka
def test_fetch_is_idempotent(broker: LocalBroker) -> None:
    """What is there and whole is used as it is."""
    began = time.monotonic()
    folder = fetch()

    assert list(folder.glob("kafka_2.13-*.jar"))
    assert time.monotonic() - began < 0.5


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven that writes two jars, and a line per call; it fails if the file `broken` exists."""
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\necho called >> {tmp_path}/calls\nsleep 0.2\necho one > lib/one.jar\n"
        f"if [ -e {tmp_path}/broken ]; then echo '[ERROR] no network'; exit 1; fi\n"
        "echo two > lib/two.jar\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return tmp_path


def calls(maven: Path) -> int:
    return (maven / "calls").read_text().count("called")


def test_fetch_once(maven: Path) -> None:
    """Of several that fetch at the same time one downloads, and later ones find it."""
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(fetch, [maven / "cache"] * 4))
    folders.add(fetch(maven / "cache"))

    assert len(folders) == 1
    assert calls(maven) == 1


def test_failed_fetch_is_not_used(maven: Path) -> None:
    """A download that broke off says why and leaves no folder; the next one starts again."""
    (maven / "broken").touch()
    with pytest.raises(Unavailable, match="no network"):
        fetch(maven / "cache")
    assert not list((maven / "cache").glob("kafka-*[0-9]"))
    (maven / "broken").unlink()

    folder = fetch(maven / "cache")

    assert sorted(jar.name for jar in folder.glob("*.jar")) == ["one.jar", "two.jar"]


@pytest.mark.parametrize("damage", ["one.jar", "two.jar", "jars.txt"])
@pytest.mark.parametrize("content", [None, b"\n", b""])
def test_damaged_folder_is_fetched_again(maven: Path, damage: str, content: bytes | None) -> None:
    """A folder with a file missing, short or empty is not used."""
    broken = fetch(maven / "cache") / damage
    if content is None:
        broken.unlink()
    else:
        broken.write_bytes(content)

    folder = fetch(maven / "cache")

    assert calls(maven) == 2
    assert (folder / "two.jar").read_text() == "two\n"


def test_compose_has_the_same_version() -> None:
    """What is tried out with Docker is what the tests ran on."""
    composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text())

    assert composed["services"]["kafka"]["image"] == f"apache/kafka:{KAFKA}"


def ensure(cache: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    """`deploy/ensure maven`, where only these programs can be found."""
    return subprocess.run(
        ["/bin/sh", str(DEPLOY / "ensure"), "maven"],
        env={"SHUFFLEBANDIT_CACHE": str(cache), "PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_script_looks_where_fetch_puts_it(tmp_path: Path) -> None:
    """Maven is needed until the jars of this version are there."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sed", "dirname"):
        (programs / name).symlink_to(
            next(
                Path(folder) / name
                for folder in os.defpath.split(":")
                if (Path(folder) / name).exists()
            )
        )
    before = ensure(tmp_path, programs)
    (tmp_path / f"kafka-{KAFKA}").mkdir()
    (tmp_path / f"kafka-{KAFKA}" / MANIFEST).touch()
    after = ensure(tmp_path, programs)

    assert (3, "ensure: missing maven") == (before.returncode, before.stderr.partition(",")[0])
    assert (0, "") == (after.returncode, after.stderr)
