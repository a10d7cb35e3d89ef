"""Records what Alertmanager sends: the person on call, as a demo and the tests see them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

from monitor.stack.process import StackError

_LARGEST_BODY: Final = 16 * 1024 * 1024
"""Bytes; Alertmanager's webhook messages of some hundred alerts stay under 1 MB."""


@dataclass(frozen=True, slots=True)
class NotifiedAlert:
    """One alert of a notification, as Alertmanager sent it."""

    status: str
    """`firing` or `resolved`."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: str
    ends_at: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Notification:
    """One POST of Alertmanager's webhook receiver."""

    received_at: float
    """Unix seconds, our clock."""
    status: str
    group_labels: Mapping[str, str]
    alerts: tuple[NotifiedAlert, ...]


class WebhookReceiver:
    """An HTTP server on a free loopback port that keeps every notification it gets.

    ``receiver.wait_for(lambda alert: alert.labels["alertname"] == "X", timeout=10)``
    """

    def __init__(self) -> None:
        self._notifications: list[Notification] = []
        self._rejected: list[str] = []
        self._arrived = threading.Condition()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        if self._server is None:
            raise StackError("the webhook receiver has not been started: call start() first")
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    @property
    def notifications(self) -> tuple[Notification, ...]:
        """All so far, in the order of arrival."""
        with self._arrived:
            return tuple(self._notifications)

    @property
    def alerts(self) -> tuple[NotifiedAlert, ...]:
        """Of all notifications so far, repetitions included."""
        return tuple(alert for sent in self.notifications for alert in sent.alerts)

    def wait_for(
        self, wanted: Callable[[NotifiedAlert], bool], *, timeout: float
    ) -> tuple[Notification, NotifiedAlert]:
        """The first alert that is `wanted`, of those that came before or come within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        seen = 0
        with self._arrived:
            while True:
                for sent in self._notifications[seen:]:
                    for alert in sent.alerts:
                        if wanted(alert):
                            return sent, alert
                seen = len(self._notifications)
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._arrived.wait(left)
        raise TimeoutError(
            f"no such alert within {timeout:g} s; {seen} notifications came, with alerts "
            f"{[dict(alert.labels) for alert in self.alerts]}, and {len(self._rejected)} unreadable "
            f"requests {self._rejected[-3:]}"
        )

    def clear(self) -> None:
        with self._arrived:
            self._notifications.clear()
            self._rejected.clear()

    def start(self) -> Self:
        if self._server is not None:
            raise StackError(f"the webhook receiver is already running at {self.url}")
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                if size > _LARGEST_BODY:
                    receiver._reject(f"{size} bytes, over {_LARGEST_BODY}")
                    self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                    return
                try:
                    notification = _parse(self.rfile.read(size))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    receiver._reject(repr(error))
                    self._answer(HTTPStatus.BAD_REQUEST)
                    return
                receiver._accept(notification)
                self._answer(HTTPStatus.OK)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited name
                """No line for each request on the terminal of a demo."""

            def _answer(self, status: HTTPStatus) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="webhook-receiver", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _accept(self, notification: Notification) -> None:
        with self._arrived:
            self._notifications.append(notification)
            self._arrived.notify_all()

    def _reject(self, problem: str) -> None:
        with self._arrived:
            self._rejected.append(problem)


def _parse(body: bytes) -> Notification:
    message: Any = json.loads(body)
    return Notification(
        received_at=time.time(),
        status=message["status"],
        group_labels=dict(message["groupLabels"]),
        alerts=tuple(
            NotifiedAlert(
                status=alert["status"],
                labels=dict(alert["labels"]),
                annotations=dict(alert["annotations"]),
                starts_at=alert["startsAt"],
                ends_at=alert["endsAt"],
                fingerprint=alert["fingerprint"],
            )
            for alert in message["alerts"]
        ),
    )
