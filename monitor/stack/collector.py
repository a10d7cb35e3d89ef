"""A real OpenTelemetry Collector on this machine: OTLP in, Kafka out."""

from __future__ import annotations

import http.client
import os
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar, Final

from monitor.stack.process import ChildProcess, MissingBinaryError, Service, free_ports

_REPOSITORY: Final = Path(__file__).resolve().parents[2]

CONFIG: Final = _REPOSITORY / "deploy" / "collector" / "collector.yaml"

_BINARY: Final = _REPOSITORY / ".collector" / "otelcol"
"""Where `make collector` builds it."""


class Collector(Service):
    """One Collector with deploy/collector/collector.yaml, on free ports of the loopback address.

    ``with Collector({"KAFKA_BROKER": broker.bootstrap}) as collector: export_to(collector.url)``
    """

    name: ClassVar[str] = "collector"
    start_timeout: ClassVar[float] = 20.0

    def __init__(
        self, variables: Mapping[str, str], data_dir: Path | None = None, *, config: Path = CONFIG
    ) -> None:
        """`variables`: what the configuration takes from its environment, but for ports."""
        self._binary = find_collector()
        super().__init__(data_dir)
        self._config = config
        self._grpc_port, self.port, self._metrics_port = free_ports(3)
        self._variables = {
            **variables,
            "OTLP_GRPC_ENDPOINT": f"127.0.0.1:{self._grpc_port}",
            "OTLP_HTTP_ENDPOINT": f"127.0.0.1:{self.port}",
            "METRICS_PORT": str(self._metrics_port),
        }

    @property
    def url(self) -> str:
        """Of OTLP over HTTP, as in OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def metrics_url(self) -> str:
        """What it counts of itself, in Prometheus' format."""
        return f"http://127.0.0.1:{self._metrics_port}/metrics"

    def _prepare(self) -> Sequence[str | Path]:
        return (self._binary, "--config", self._config)

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, **self._variables}

    def _is_ready(self, child: ChildProcess) -> bool:
        # Another process may hold the port and answer in its place: our own has then ended.
        return child.running and accepts(self.port)


def find_collector() -> Path:
    """The program that `make collector` builds, or a `MissingBinaryError` that says so."""
    if not _BINARY.is_file():
        raise MissingBinaryError(
            f"OpenTelemetry's Collector is not built ({_BINARY} is missing): run `make collector`, which needs Go"
        )
    return _BINARY


def accepts(port: int) -> bool:
    """Whether a Collector on that port of the loopback address takes OTLP; an empty request sends nothing on."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("POST", "/v1/traces", "{}", {"Content-Type": "application/json"})
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
