"""What Prometheus and Alertmanager have in common: a port, a URL, and `/-/ready`."""

from __future__ import annotations

import http.client
from http import HTTPStatus
from pathlib import Path

from monitor.stack.process import ChildProcess, Service, free_ports


class HttpService(Service):
    """A server on a free loopback port that says at `/-/ready` when it is."""

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
        return child.running and answers_ready(self.port)


def answers_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", "/-/ready")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
