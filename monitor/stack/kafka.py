"""A real Apache Kafka broker on this machine: one node, KRaft, no Docker."""

from __future__ import annotations

import base64
import os
import socket
import struct
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from monitor.stack.process import ChildProcess, Service, StackError, find_binary, free_ports

LIBS_VARIABLE: Final = "AGENT_MONITOR_KAFKA_LIBS"
"""Names the folder of the broker's jars. Not `MONITOR_…`: those are the product's settings."""

_LIBS_FOLDER: Final = Path(".kafka/libs")
"""Where `make setup` puts the jars, under the repository's root."""

_LOG_CONFIGURATION: Final = Path(__file__).with_name("kafka-log4j2.xml")

_STARTED_LINE: Final = "Kafka Server started"

_JVM_FLAGS: Final = (
    "-Xms256m",
    # The page cache holds the records; the broker's own objects of a test need under 200 MB.
    "-Xmx512m",
    # One collector thread: on a small machine the collector must not take the workers' cores.
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
)

SINGLE_NODE: Final[Mapping[str, str]] = {
    # One node can hold one replica. Each of these defaults to 3 (or 2), and without them the first
    # transaction, group or share group waits for ever.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # 50 by default: the first group and the first transaction would wait for 50 new logs each.
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
    # A group's first member need not wait 3 s for others.
    "group.initial.rebalance.delay.ms": "0",
    # A misspelt topic is an error, as on a well-kept cluster.
    "auto.create.topics.enable": "false",
    # How often the coordinator looks for transactions past their timeout (default 10 s): until it has
    # aborted a dead worker's, every read_committed reader stands still.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
"""Broker properties of a cluster of one; deploy/compose.yaml has the same, and a test compares them."""


class KafkaBroker(Service):
    """One broker that is also its own controller, on free ports of the loopback address.

    ``with KafkaBroker() as broker: connect(broker.bootstrap)``

    After `stop()` it is back in 2 s, after `kill()` in 12 s: the controller lets a broker that did not
    say good-bye register again only once its session (9 s) is over. We leave that as it is, since a
    shorter session would fence the broker of a busy test machine.
    """

    name: ClassVar[str] = "kafka"
    start_timeout: ClassVar[float] = 60.0

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        overrides: Mapping[str, str] | None = None,
        port: int | None = None,
        jvm_flags: Sequence[str] = (),
    ) -> None:
        """`overrides` are broker properties and win over ours; `jvm_flags` come after ours and win too."""
        super().__init__(data_dir)
        self._libs = find_libs()
        self._overrides = dict(overrides or {})
        self._jvm_flags = (*_JVM_FLAGS, *jvm_flags)
        self.controller_port, *rest = free_ports(1 if port is not None else 2)
        self.port = port if port is not None else rest[0]
        owned = self._owned_properties()
        clash = sorted(owned.keys() & self._overrides.keys())
        if clash:
            raise ValueError(
                f"broker properties {', '.join(clash)} are set by KafkaBroker itself and cannot be "
                "overridden: it could not find its own broker; use data_dir and port"
            )
        self._properties = {**SINGLE_NODE, **self._overrides, **owned}

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _prepare(self) -> Sequence[str | Path]:
        configuration = self.data_dir / "server.properties"
        # Java's properties format: a backslash begins an escape.
        lines = (f"{key}={value}".replace("\\", "\\\\") for key, value in self._properties.items())
        configuration.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if not (self._log_dir / "meta.properties").exists():
            self._format_storage(configuration)
        return (*self._java(), *self._jvm_flags, "kafka.Kafka", configuration)

    def _is_ready(self, child: ChildProcess) -> bool:
        return _STARTED_LINE in child.log() and answers(self.port)

    @property
    def _log_dir(self) -> Path:
        return self.data_dir / "logs"

    def _owned_properties(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": (
                f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}"
            ),
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self._log_dir),
        }

    def _java(self) -> tuple[str | Path, ...]:
        return (
            find_binary("java"),
            "-cp",
            f"{self._libs}/*",
            f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION}",
        )

    def _format_storage(self, configuration: Path) -> None:
        command = [
            *(str(part) for part in self._java()),
            # It runs for a second: the optimising compiler would cost more than it gives.
            "-XX:TieredStopAtLevel=1",
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={_new_cluster_id()}",
            f"--config={configuration}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StackError(
                f"Kafka could not format its storage {self._log_dir} (exit code {done.returncode}):\n"
                f"{done.stdout}{done.stderr}"
            )


def find_libs() -> Path:
    """The folder with the broker's jars: the variable's, else the repository's that we run in or from."""
    named = os.environ.get(LIBS_VARIABLE)
    if named is not None:
        folder = Path(named).resolve()
        if not _holds_broker(folder):
            raise StackError(
                f"{LIBS_VARIABLE}={named} holds no kafka_*.jar: name the folder with the broker's "
                "jars, or unset it and run `make setup`"
            )
        return folder
    for root in _roots():
        if _holds_broker(root / _LIBS_FOLDER):
            return root / _LIBS_FOLDER
    raise StackError(
        f"the Kafka broker's jars are not here (looked for {_LIBS_FOLDER} in {Path.cwd()}, in "
        f"{Path(__file__).resolve().parent} and above them): run `make setup`, or name their folder in "
        f"{LIBS_VARIABLE}"
    )


def answers(port: int) -> bool:
    """Whether a Kafka broker on that port of the loopback address answers an ApiVersions request."""
    api_versions, version, correlation_id, no_client_id = 18, 0, 1, -1
    request = struct.pack(">hhih", api_versions, version, correlation_id, no_client_id)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    if len(answer) < 10:
        return False
    answered_id, error_code = struct.unpack(">4xih", answer)
    return bool(answered_id == correlation_id and error_code == 0)


def _roots() -> Iterator[Path]:
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        yield start
        yield from start.parents


def _holds_broker(folder: Path) -> bool:
    return any(folder.glob("kafka_*.jar"))


def _new_cluster_id() -> str:
    """Sixteen random bytes as Kafka writes them, never with a dash in front."""
    raw = uuid.uuid4().bytes
    # The first of the 22 characters shows the first byte's high six bits; 62 is the dash.
    return base64.urlsafe_b64encode(bytes([raw[0] & 0x7F]) + raw[1:]).decode().rstrip("=")
