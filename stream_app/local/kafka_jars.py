"""Kafka's jars and a Java to run them: found, or fetched with Maven into a cache."""

import fcntl
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from stream_app.errors import Unavailable
from stream_app.local.processes import complaints, run

# The one version of Kafka: deploy/ensure reads it from this line, a test compares compose.yaml.
KAFKA: Final = "4.3.1"
# What Kafka 4's broker needs at least.
JAVA: Final = 17
# Said with everything that is missing.
REMEDY: Final = "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless maven)"

# The broker, and what its archive has beside its dependencies by Maven's rules: a log4j to write
# with, and jackson for its YAML, in the version of the jackson that the broker does ask for.
DEPENDENCIES: Final = (
    ("org.apache.kafka", "kafka_2.13", KAFKA),
    ("org.apache.logging.log4j", "log4j-core", "2.25.3"),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.3"),
    ("com.fasterxml.jackson.dataformat", "jackson-dataformat-yaml", "2.21.2"),
)
# Named with its version: Maven would take another one whenever it likes.
COPY_JARS: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
# The jars and their sizes, written last: without it, or with one jar short, a folder is not used.
MANIFEST: Final = "jars.txt"

# 44 MB: seconds on a good line. The limit is for a Maven that hangs, not for a slow line.
FETCH_S: Final = 600.0

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where fetched files are kept, outside the project."""
    if own := os.environ.get("SHUFFLEBANDIT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shufflebandit"


def find_java() -> str:
    """The path of a Java that can run Kafka."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    if java is None:
        raise Unavailable(f"Java is missing: install Java {JAVA} or newer {REMEDY}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version[1]) < JAVA:
        found = version[0] if version else "no version"
        raise Unavailable(f"{java} says {found}: install Java {JAVA} or newer {REMEDY}")
    return java


def fetch(cache: Path | None = None) -> Path:
    """The folder of Kafka's jars, downloaded with Maven unless it is there and whole.

    Processes that fetch at the same time wait for one another.
    """
    cache = cache or cache_folder()
    folder = cache / f"kafka-{KAFKA}"
    if _whole(folder):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _whole(folder):
                _download(folder)
    except OSError as error:
        raise Unavailable(
            f"cannot write the cache {cache} ({error.strerror}): set SHUFFLEBANDIT_CACHE"
        ) from error
    return folder


def _whole(folder: Path) -> bool:
    try:
        manifest = (folder / MANIFEST).read_text()
        jars = [folder / line.split()[0] for line in manifest.splitlines()]
        return bool(jars) and manifest == _manifest(jars)
    except (FileNotFoundError, IndexError):
        return False


def _manifest(jars: Iterable[Path]) -> str:
    return "".join(f"{jar.name} {jar.stat().st_size}\n" for jar in jars)


def _download(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"Maven is missing, which fetches Kafka: install it {REMEDY}")
    logger.info("fetching Kafka %s to %s", KAFKA, folder)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    (part / "lib").mkdir(parents=True)
    (part / "pom.xml").write_text(_pom())
    command = [maven, "-q", "-B", COPY_JARS, "-DincludeScope=runtime", "-DoutputDirectory=lib"]
    if not run(command, part / "maven.log", FETCH_S):
        raise Unavailable(
            f"Maven could not fetch Kafka {KAFKA}: check the network and Maven's settings "
            f"({complaints(part / 'maven.log')[0]})"
        )
    (part / "lib" / MANIFEST).write_text(_manifest((part / "lib").glob("*.jar")))
    shutil.rmtree(folder, ignore_errors=True)
    (part / "lib").rename(folder)
    shutil.rmtree(part, ignore_errors=True)


def _pom() -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>\n"
        for group, artifact, version in DEPENDENCIES
    )
    return (
        "<project>\n<modelVersion>4.0.0</modelVersion>\n"
        "<groupId>shufflebandit</groupId><artifactId>local-kafka</artifactId>"
        "<version>1</version><packaging>pom</packaging>\n"
        f"<dependencies>\n{dependencies}</dependencies>\n</project>\n"
    )
