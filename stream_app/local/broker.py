"""The local Kafka: one broker as a child process, which never outlives this one.

For development and tests; production uses the user's own cluster. This module knows Java and
ports. It must not know topics, experiments or stages, and needs no Kafka client.
Everything here blocks: from a coroutine, call it with `asyncio.to_thread`.
"""

import atexit
import base64
import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from stream_app.errors import Unavailable
from stream_app.local.kafka_jars import KAFKA, fetch, find_java
from stream_app.local.processes import complaints, end, run, supervised

# Nothing of a development broker, which asks for no password, is for other machines.
HOST: Final = "127.0.0.1"
START_S: Final = 120.0  # 3 s on an idle machine; a crowded one only needs longer
STOP_S: Final = 5.0  # 1 s as a rule; what it has not written by then, a restart finds in its log

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


def free_port(*other_than: int) -> int:
    """A free port below Linux's range for outgoing connections, so that a restart finds it free."""
    while True:
        # Linux gives outgoing connections ports from 32768 on (ip_local_port_range).
        port = 20_000 + secrets.randbelow(12_000)
        with contextlib.suppress(Unavailable):
            _check_port(port)
            if port not in other_than:
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


def listens(port: int) -> bool:
    """Whether something accepts connections on a port; Kafka does so last in its start."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


class LocalBroker:
    """One Kafka node in KRaft mode, reachable from this machine only.

    Without `data` it keeps its records in a temporary folder that `stop` deletes. `users` are
    SCRAM-SHA-512 users with their passwords, made with the storage; the process list shows them
    for that moment. Listeners of other names than CLIENT in `properties` get free ports.
    """

    def __init__(
        self,
        data: Path | None = None,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        heap: str = "512m",
        users: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port or free_port()
        self.bootstrap = f"{HOST}:{self.port}"
        self.data = data.resolve() if data else None
        self._temporary = data is None
        self._properties = dict(properties or {})
        self._heap = heap
        self._users = dict(users or {})
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

    def freeze(self, seconds: float) -> None:
        """For so long it answers nothing, while its connections stay: as a machine that stalls."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.killpg(self._process.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stops the broker if it runs, and starts it on the same data and port."""
        self._end(STOP_S)
        self.start()

    def wait(self) -> None:
        """Blocks until the broker ends by itself."""
        if self._process is not None:
            self._process.wait()

    def _end(self, patience_s: float) -> None:
        process = self._process
        self._process = None
        if process is not None:
            end(process, patience_s)

    def _launch(self, data: Path, java: list[str]) -> None:
        data.mkdir(parents=True, exist_ok=True)
        (data / "log4j2.properties").write_text(LOG4J)
        log = data / "server.log"
        records = data / "records"
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
            # Under another name, then renamed: the storage is never half formatted.
            part = data / "records.part"
            shutil.rmtree(part, ignore_errors=True)
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}"]
            for name, password in self._users.items():
                tool += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]"]
            if not run([*java, *tool, "-c", self._configure(data, part)], log, START_S):
                raise Unavailable(f"Kafka cannot format {records}: {complaints(log, offset)[-1]}")
            part.rename(records)
        self._process = supervised(
            [*java, "kafka.Kafka", self._configure(data, records)],
            log,
            data if self._temporary else None,
        )
        found = re.search(r"cluster\.id=(\S+)", (records / "meta.properties").read_text())
        self._await_answer(self._process, found[1] if found else "", log, offset)

    def _configure(self, data: Path, records: Path) -> str:
        """Writes the server's properties and returns their file. All ports but one are ours."""
        properties = {**PROPERTIES, "log.dirs": str(records), **self._properties}
        addresses = {"CLIENT": self.bootstrap}
        taken = {self.port}
        for listener in properties["listener.security.protocol.map"].split(","):
            name = listener.split(":")[0]
            if name not in addresses:
                port = free_port(*taken)
                taken.add(port)
                addresses[name] = f"{HOST}:{port}"
        listeners = ",".join(f"{name}://{address}" for name, address in addresses.items())
        voters = f"{properties['node.id']}@{addresses['CONTROLLER']}"
        properties |= {"listeners": listeners, "controller.quorum.voters": voters}
        file = data / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return str(file)

    def _await_answer(
        self, process: subprocess.Popen[bytes], cluster: str, log: Path, offset: int
    ) -> None:
        deadline = time.monotonic() + START_S
        # A listener that asks for credentials or TLS does not answer a stranger: it only listens.
        secured = "listener.security.protocol.map" in self._properties
        while not (listens(self.port) if secured else answers(self.port, cluster)):
            if process.poll() is not None:
                raise Unavailable(f"Kafka did not start: {complaints(log, offset)[-1]}")
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"Kafka does not answer on {self.bootstrap} after {START_S:.0f} s: "
                    f"{complaints(log, offset)[-1]}"
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
