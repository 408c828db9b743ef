"""The local Kafka: fetches the jars with Maven and runs one broker as a child process.

For development and tests; production uses the user's own cluster. This module knows Java, Maven,
ports and processes. It must not know topics, experiments or stages, and needs no Kafka client.
Everything here blocks: from a coroutine, call it with `asyncio.to_thread`.

No Java outlives its Python: each runs under a small supervisor process, which kills it when the
pipe from the parent closes, however the parent ended; and the kernel kills it with the supervisor.
"""

import atexit
import base64
import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Self

from stream_app.errors import Unavailable

KAFKA: Final = "4.3.1"
JAVA: Final = 17
HOST: Final = "127.0.0.1"
REMEDY: Final = "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless maven)"

DEPENDENCIES: Final = (
    ("org.apache.kafka", "kafka_2.13", KAFKA),
    ("org.apache.logging.log4j", "log4j-core", "2.25.3"),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.3"),
    ("com.fasterxml.jackson.dataformat", "jackson-dataformat-yaml", "2.21.2"),
)
COPY_JARS: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
# The jars and their sizes, written last: without it, or with one jar short, a folder is not used.
MANIFEST: Final = "jars.txt"

START_S: Final = 30.0
STOP_S: Final = 5.0
FETCH_S: Final = 600.0

# One node, few partitions and little memory. The two broker timeouts make a restart on old data
# take seconds: the controller must first give up the session of the broker that was killed.
PROPERTIES: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "CLIENT",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "8",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "8",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "num.network.threads": "2",
    "num.io.threads": "4",
}
# To standard output, which is the file server.log: what the JVM itself prints is then there too.
LOG4J: Final = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c{1})%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""

# Arguments: the parent's process id, a folder to delete if the parent vanishes (or ""), a command.
# One byte on standard input: kill the command. End of file, or another parent: the parent is gone.
# A process forked from the parent may hold the pipe open, hence the look at getppid.
SUPERVISOR: Final = """\
import ctypes, os, select, shutil, signal, subprocess, sys, threading
parent, scratch, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
this, orphaned = os.getpid(), False
prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: None

def die_with_supervisor():
    prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; tied to the forking thread, here the main one
    if os.getppid() != this:
        os._exit(1)

def watch():
    global orphaned
    while os.getppid() == parent and not select.select([0], [], [], 1)[0]:
        pass
    orphaned = os.getppid() != parent or not os.read(0, 1)
    os.kill(child.pid, signal.SIGKILL)

# SIGTERM comes to the whole group and is the command's to obey. Not SIG_IGN: it would inherit that.
signal.signal(signal.SIGTERM, lambda *_: None)
child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_supervisor)
threading.Thread(target=watch, daemon=True).start()
code = child.wait()
if orphaned and scratch:
    shutil.rmtree(scratch, ignore_errors=True)
os._exit(code if code >= 0 else 128 - code)
"""
COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
NOISE: Final = re.compile(r"\s|$|Picked up|Error: (A fatal|Could not create)")
COMPLAINT: Final = re.compile("ERROR|Error|Exception|Caused by")

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
    if not _run(command, part / "maven.log", FETCH_S):
        raise Unavailable(
            f"Maven could not fetch Kafka {KAFKA}: check the network and Maven's settings "
            f"({_complaints(part / 'maven.log')[0]})"
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
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n<modelVersion>4.0.0</modelVersion>\n'
        "<groupId>shufflebandit</groupId><artifactId>local-kafka</artifactId>"
        "<version>1</version><packaging>pom</packaging>\n"
        f"<dependencies>\n{dependencies}</dependencies>\n</project>\n"
    )


def _supervised(
    command: list[str], log: Path, scratch: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts a command that dies with this process, in its own group: no Ctrl-C reaches it."""
    supervisor = [sys.executable, "-I", "-S", "-c", SUPERVISOR, str(os.getpid())]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*supervisor, str(scratch or ""), *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            start_new_session=True,
        )


def _run(command: list[str], log: Path, limit_s: float) -> bool:
    """Whether a command succeeded in time; it is over when this returns."""
    process = _supervised(command, log)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
        return process.returncode == 0
    finally:
        _end(process, 0)


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Ends a supervised command: SIGTERM if there is patience, then SIGKILL."""
    assert process.stdin is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        if patience_s and process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(patience_s)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(b"k")
    process.stdin.close()
    process.wait()


def _complaints(log: Path, offset: int = 0) -> list[str]:
    """The lines of a log that say what went wrong, else all; never none."""
    with log.open("rb") as file:
        file.seek(offset)
        text = COLOUR.sub("", file.read().decode(errors="replace"))
    lines = [line for line in text.splitlines() if not NOISE.match(line)]
    lines = [line for line in lines if COMPLAINT.search(line)] or lines or ["it wrote nothing"]
    return [line if len(line) < 300 else f"{line[:100]} ... {line[-190:]}" for line in lines]


def free_port(other_than: int = 0) -> int:
    """A free port below Linux's range for outgoing connections, so that a restart finds it free."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with contextlib.suppress(Unavailable):
            _check_port(port)
            if port != other_than:
                return port


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise Unavailable(
                f"port {port} cannot be used ({error.strerror}): "
                "stop what listens there or choose another port"
            ) from error


def answers(port: int, cluster: str) -> bool:
    """Whether the broker of this cluster answers on a port and counts itself as alive.

    Asks for metadata, version 2, of no topics: the reply is its length, the correlation id, the
    number of live brokers, and after them the cluster's id (https://kafka.apache.org/protocol).
    """
    request = struct.pack(">hhihi", 3, 2, 1, -1, 0)
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            reply = connection.makefile("rb")
            (length,) = struct.unpack(">i", reply.read(4))
            body = reply.read(length)
    except (OSError, struct.error):
        return False
    return struct.unpack_from(">i", body, 4) > (0,) and cluster.encode() in body


class LocalBroker:
    """One Kafka node in KRaft mode, reachable from this machine only.

    Without `data` it keeps its records in a temporary folder that `stop` deletes.
    """

    def __init__(
        self,
        data: Path | None = None,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        heap: str = "512m",
    ) -> None:
        self.port = port or free_port()
        self.bootstrap = f"{HOST}:{self.port}"
        self.data = data.resolve() if data else None
        self._temporary = data is None
        self._properties = dict(properties or {})
        self._heap = heap
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns once the broker answers; if it does not, nothing is left running."""
        if self._process is not None and self._process.poll() is None:
            return
        self._end(0)
        _check_port(self.port)
        java = [find_java(), "-cp", f"{fetch().resolve()}/*"]
        atexit.register(self.stop)
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            try:
                if self.data is None:
                    self.data = Path(tempfile.mkdtemp(prefix="shufflebandit-kafka-")).resolve()
                self._launch(self.data, java)
            except OSError as error:
                raise Unavailable(
                    f"cannot use the data folder {self.data} ({error.strerror}): choose another"
                ) from error
            undo.pop_all()

    def stop(self) -> None:
        """Ends the broker in good order, by force after 5 s; deletes a temporary data folder."""
        self._end(STOP_S)
        atexit.unregister(self.stop)
        if self._temporary and self.data is not None:
            shutil.rmtree(self.data, ignore_errors=True)
            self.data = None

    def kill(self) -> None:
        """SIGKILL, as in a crash: the data stay for the next `start`."""
        self._end(0)

    def restart(self) -> None:
        """Stops the broker if it runs, and starts it on the same data and port."""
        self._end(STOP_S)
        self.start()

    def wait(self) -> None:
        """Blocks until the broker ends by itself."""
        if self._process is not None:
            self._process.wait()

    def _end(self, patience_s: float) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process, patience_s)

    def _launch(self, data: Path, java: list[str]) -> None:
        data.mkdir(parents=True, exist_ok=True)
        (data / "log4j2.properties").write_text(LOG4J)
        log, records = data / "server.log", data / "records"
        log.touch()
        offset = log.stat().st_size
        java = [
            *java,
            f"-Xmx{self._heap}",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            f"-Dlog4j2.configurationFile={data / 'log4j2.properties'}",
        ]
        if not records.exists():
            # Beside its place, then moved there: the storage is never half formatted.
            part = data / "records.part"
            shutil.rmtree(part, ignore_errors=True)
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c"]
            if not _run([*java, *tool, self._configure(data, part)], log, START_S):
                raise Unavailable(f"Kafka cannot format {records}: {_complaints(log, offset)[-1]}")
            part.rename(records)
        self._process = _supervised(
            [*java, "kafka.Kafka", self._configure(data, records)],
            log,
            data if self._temporary else None,
        )
        found = re.search(r"cluster\.id=(\S+)", (records / "meta.properties").read_text())
        self._await_answer(self._process, found[1] if found else "", log, offset)

    def _configure(self, data: Path, records: Path) -> str:
        """Writes the server's properties and returns their file. The controller's port is ours."""
        controller = f"{HOST}:{free_port(other_than=self.port)}"
        properties = {
            **PROPERTIES,
            "listeners": f"CLIENT://{self.bootstrap},CONTROLLER://{controller}",
            "controller.quorum.voters": f"{PROPERTIES['node.id']}@{controller}",
            "log.dirs": str(records),
            **self._properties,
        }
        file = data / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return str(file)

    def _await_answer(
        self, process: subprocess.Popen[bytes], cluster: str, log: Path, offset: int
    ) -> None:
        deadline = time.monotonic() + START_S
        while not answers(self.port, cluster):
            if process.poll() is not None:
                raise Unavailable(f"Kafka did not start: {_complaints(log, offset)[-1]}")
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"Kafka does not answer on {self.bootstrap} after {START_S:.0f} s: "
                    f"{_complaints(log, offset)[-1]}"
                )
            time.sleep(0.05)


def run_foreground(port: int | None = None, data: Path | None = None) -> None:
    """Runs a broker until SIGINT or SIGTERM; prints one line when it is ready."""
    # Both end as KeyboardInterrupt, so that they also end a start that is still under way.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), LocalBroker(data, port) as broker:
        print(f"Kafka {KAFKA} is ready at {broker.bootstrap}; Ctrl-C stops it", flush=True)
        broker.wait()
        raise Unavailable(f"Kafka on {broker.bootstrap} ended by itself: start it again")
