"""What Prometheus, Alertmanager and our worker have in common: a port, a URL, and a path that says ready."""

from __future__ import annotations

import http.client
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar

from monitor.stack.process import ChildProcess, Service, free_ports


class HttpService(Service):
    """A server on a free loopback port that says at `ready_path` when it is."""

    ready_path: ClassVar[str] = "/-/ready"

    def __init__(self, data_dir: Path | None, port: int | None) -> None:
        super().__init__(data_dir)
        self.port = port if port is not None else free_ports(1)[0]

    @property
    def url(self) -> str:
        """Without a slash at its end."""
        return f"http://{self._address}"

    @property
    def _address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _is_ready(self, child: ChildProcess) -> bool:
        # Another process may hold the port and answer in its place: our own has then ended.
        return child.running and answers_ready(self.port, self.ready_path)


def answers_ready(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
