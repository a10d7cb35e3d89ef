"""What a worker shows over HTTP: ``/metrics``, ``/healthz``, ``/readyz``. Read-only.

*Healthy* means that the process is worth keeping: not healthy gets it restarted. *Ready* means that it
has joined its group and every lane it was given (perhaps none) is restored or refused. Lag is neither:
a backlog is an alert, and must not keep the build that cures it from rolling out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from monitor.telemetry import Telemetry

_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


@dataclass(frozen=True)
class Readiness:
    """``waiting_for`` names what is still missing, a short line each; nothing: ready."""

    waiting_for: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        return not self.waiting_for


def create_web(
    telemetry: Telemetry,
    *,
    readiness: Callable[[], Readiness],
    faults: Callable[[], Sequence[str]] = tuple,
) -> web.Application:
    """The aiohttp application. ``faults`` says why the process is not healthy; nothing: it is."""

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        # Tens of thousands of lines: in a thread, so that the batch loops and heartbeats go on meanwhile.
        body = await asyncio.to_thread(encode, telemetry.registry)
        return web.Response(body=body, headers={**_HEADERS, "Content-Type": content_type})

    async def healthz(_: web.Request) -> web.Response:
        return _lines(list(faults()), "healthy")

    async def readyz(_: web.Request) -> web.Response:
        return _lines([f"waiting for {item}" for item in readiness().waiting_for], "ready")

    async def index(_: web.Request) -> web.Response:
        return web.Response(text="/metrics\n/healthz\n/readyz\n", headers=_HEADERS)

    app = web.Application()
    app.router.add_get("/", index)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


def _lines(against: Sequence[str], good: str) -> web.Response:
    if against:
        return web.Response(status=503, text="\n".join(against) + "\n", headers=_HEADERS)
    return web.Response(text=good + "\n", headers=_HEADERS)
