"""Delivery: to a real Alertmanager, and to a false one that misbehaves."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from monitor.alerting import endpoints
from monitor.alerting.alert import Alert
from monitor.alerting.alertmanager import Alertmanagers, wall_clock
from monitor.alerting.endpoints import Endpoint, UnresolvedError, resolve
from monitor.stack import Alertmanager, WebhookReceiver
from monitor.stack.process import free_ports
from tests.alerting.test_board import HOSTILE, hostile_alert


class Seen:
    """A DeliveryObserver that remembers."""

    def __init__(self) -> None:
        self.posts: Counter[str] = Counter()
        self.took: list[Alert] = []
        self.refused: list[Alert] = []

    def posted(self, replica: str, outcome: str) -> None:
        assert replica
        self.posts[outcome] += 1

    def taken(self, alerts: Sequence[Alert]) -> None:
        self.took += alerts

    def invalid(self, alert: Alert) -> None:
        self.refused.append(alert)


def alert(name: str = "A", *, count: int = 1, ended_ms: int | None = None, **labels: str) -> Alert:
    return Alert(
        {"alertname": f"AgentMonitor{name}", **labels},
        {"count": str(count)},
        wall_clock(),
        ended_ms,
        None,
        count,
    )


@asynccontextmanager
async def delivering(
    urls: Sequence[str], alerts: list[Alert], **options: Any
) -> AsyncIterator[tuple[Alertmanagers, Seen]]:
    seen = Seen()
    delivery = Alertmanagers(urls, lambda _: list(alerts), observer=seen, **options)
    await delivery.start()
    try:
        yield delivery, seen
    finally:
        await delivery.stop()


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        await asyncio.sleep(0.02)


class FalseAlertmanager:
    """Takes what `answer` says: a status for the alerts of a post."""

    def __init__(self, answer: Callable[[list[dict[str, Any]]], int] = lambda _: 200) -> None:
        self.answer = answer
        self.posts: list[list[dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.port = free_ports(1)[0]
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def names(self) -> list[str]:
        return [a["labels"]["alertname"] for post in self.posts for a in post]

    async def __aenter__(self) -> FalseAlertmanager:
        async def take(request: web.Request) -> web.Response:
            alerts = json.loads(await request.read())
            status = self.answer(alerts)
            if status == 200:
                self.posts.append(alerts)
                self.headers.append(dict(request.headers))
            return web.Response(status=status, text="as told")

        app = web.Application()
        app.router.add_post("/api/v2/alerts", take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()


# --- the real one ---------------------------------------------------------------------------------------


async def test_a_real_alertmanager_gets_updates_and_resolves(
    alertmanager: Alertmanager, webhook: WebhookReceiver, unique: str
) -> None:
    alerts = [alert("X", test=unique, service="shop")]
    async with delivering([alertmanager.url], alerts, resend_seconds=1.0) as (delivery, seen):
        begun = time.monotonic()
        _, first = await asyncio.to_thread(
            webhook.wait_for, lambda a: a.labels.get("test") == unique, timeout=10
        )
        assert time.monotonic() - begun < 2.0
        assert first.status == "firing"
        assert first.annotations["count"] == "1"

        alerts[0] = Alert(alerts[0].labels, {"count": "2"}, alerts[0].started_ms, None, None, 2)
        delivery.wake()
        await until(lambda: any(a.count == 2 for a in seen.took))
        async with (
            aiohttp.ClientSession() as session,
            session.get(
                f"{alertmanager.url}/api/v2/alerts", params={"filter": f'test="{unique}"'}
            ) as got,
        ):
            (held,) = await got.json()
        assert held["annotations"]["count"] == "2"

        taken = len(seen.took)
        await until(lambda: len(seen.took) > taken)  # again after the interval, unchanged

        alerts[0] = Alert(
            alerts[0].labels, {"count": "2"}, alerts[0].started_ms, wall_clock(), None, 2
        )
        delivery.wake()
        _, resolved = await asyncio.to_thread(
            webhook.wait_for,
            lambda a: a.labels.get("test") == unique and a.status == "resolved",
            timeout=10,
        )
        assert resolved.fingerprint == first.fingerprint


async def test_a_real_alertmanager_lets_it_end_when_it_is_no_longer_sent(
    alertmanager: Alertmanager, webhook: WebhookReceiver, unique: str
) -> None:
    async with delivering([alertmanager.url], [alert("X", test=unique)], resend_seconds=0.5) as (
        _,
        seen,
    ):
        await until(lambda: seen.took)
    _, ended = await asyncio.to_thread(
        webhook.wait_for,
        lambda a: a.labels.get("test") == unique and a.status == "resolved",
        timeout=10,
    )
    assert ended.labels["alertname"] == "AgentMonitorX"


async def test_a_real_alertmanager_takes_every_hostile_name_as_it_is_shown(
    alertmanager: Alertmanager, webhook: WebhookReceiver, unique: str
) -> None:
    made = [hostile_alert(name, name, name, name) for name in HOSTILE]
    alerts = [msgspec.structs.replace(a, labels={**a.labels, "test": unique}) for a in made]
    async with delivering([alertmanager.url], alerts) as (_, seen):
        await until(lambda: len(seen.took) >= len(alerts))
        assert seen.posts == {"ok": 1}
        assert not seen.refused
        for sent in alerts:
            _, got = await asyncio.to_thread(
                webhook.wait_for, lambda a, sent=sent: dict(a.labels) == sent.labels, timeout=10
            )
            assert dict(got.annotations) == sent.annotations


# --- a false one ----------------------------------------------------------------------------------------


async def test_the_first_push_waits_for_no_timer() -> None:
    alerts: list[Alert] = []
    async with FalseAlertmanager() as server, delivering([server.url], alerts) as (delivery, _):
        for n in range(5):
            await asyncio.sleep(0.25)
            alerts.append(alert(f"N{n}"))
            delivery.wake()
            begun = time.monotonic()
            await until(lambda n=n: f"AgentMonitorN{n}" in server.names)
            assert time.monotonic() - begun < 0.25


async def test_every_replica_gets_every_alert_and_a_dead_one_delays_nobody() -> None:
    dead = f"http://127.0.0.1:{free_ports(1)[0]}"
    alerts = [alert("A"), alert("B")]
    async with (
        FalseAlertmanager() as one,
        FalseAlertmanager() as two,
        delivering([dead, one.url, two.url], alerts) as (delivery, seen),
    ):
        await until(lambda: len(one.names) == len(two.names) == 2, 2.0)
        await until(lambda: seen.posts["failed"] >= 2)
        assert seen.posts["ok"] == 2
        assert delivery.owed == 2


async def test_what_happened_during_an_outage_arrives_once_as_it_is_at_its_end() -> None:
    server = FalseAlertmanager()
    alerts = [alert("A", count=1)]
    async with delivering([server.url], alerts) as (delivery, seen):
        await until(lambda: seen.posts["failed"] >= 2)
        alerts[:] = [alert("A", count=9), alert("B")]
        delivery.wake()
        async with server:
            await until(lambda: len(server.names) >= 2)
            await asyncio.sleep(0.6)
            assert sorted(server.names) == ["AgentMonitorA", "AgentMonitorB"]
            counts = {
                a["labels"]["alertname"]: a["annotations"]["count"] for p in server.posts for a in p
            }
            assert counts["AgentMonitorA"] == "9"
            assert delivery.owed == 0


async def test_one_refused_alert_does_not_take_the_others_with_it() -> None:
    def answer(posted: list[dict[str, Any]]) -> int:
        return 400 if any(a["labels"]["alertname"] == "AgentMonitorBad" for a in posted) else 200

    alerts = [alert("A"), alert("Bad"), alert("C")]
    async with (
        FalseAlertmanager(answer) as server,
        delivering([server.url], alerts) as (delivery, seen),
    ):
        await until(lambda: len(server.names) == 2)
        assert sorted(server.names) == ["AgentMonitorA", "AgentMonitorC"]
        await asyncio.sleep(0.6)
        assert (
            seen.posts["rejected"] == 2
        )  # the batch, and the bad one alone: then it is left alone
        assert delivery.owed == 0


async def test_an_invalid_alert_is_told_once_and_never_sent() -> None:
    alerts = [Alert({"service": "nameless"}, {}, 0), alert("A")]
    async with FalseAlertmanager() as server, delivering([server.url], alerts) as (delivery, seen):
        for _ in range(4):
            delivery.wake()
            await asyncio.sleep(0.1)
        assert server.names == ["AgentMonitorA"]
        assert len(seen.refused) == 1


@pytest.mark.parametrize("status", [302, 401, 404, 429, 500, 503])
async def test_any_other_answer_is_tried_again(status: int) -> None:
    left = [2]

    def answer(_: list[dict[str, Any]]) -> int:
        left[0] -= 1
        return status if left[0] >= 0 else 200

    async with (
        FalseAlertmanager(answer) as server,
        delivering([server.url], [alert("A")]) as (_, seen),
    ):
        await until(lambda: server.names)
        assert seen.posts == {"failed": 2, "ok": 1}


async def test_a_batch_of_hundreds_is_divided_and_complete() -> None:
    alerts = [alert("A", n=str(n)) for n in range(200)]
    async with FalseAlertmanager() as server, delivering([server.url], alerts):
        await until(lambda: len(server.names) == 200)
        assert max(len(post) for post in server.posts) <= 64


async def test_a_dns_name_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FalseAlertmanager() as one:
        addresses: list[str] = []

        async def lookup(self: object, host: str, port: int, **_: object) -> list[Any]:
            if host != "am.example":
                return await original(asyncio.get_running_loop(), host, port)
            if not addresses:
                raise socket.gaierror("no such name")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in addresses]

        loop = type(asyncio.get_running_loop())
        original = loop.getaddrinfo
        monkeypatch.setattr(loop, "getaddrinfo", lookup)
        url = f"dns+http://am.example:{one.port}"
        with pytest.raises(UnresolvedError, match=r"am\.example"):
            await resolve(url)
        async with delivering([url], [alert("A")], resolve_seconds=0.1) as (delivery, _):
            assert delivery.owed in (0, 1)
            assert delivery.replicas == ()
            addresses.append("127.0.0.1")
            await until(lambda: one.names)
            assert one.headers[0]["Host"] == f"am.example:{one.port}"
            addresses.append("127.0.0.2")
            await until(lambda: len(delivery.replicas) == 2)
            addresses.clear()  # the name server is away: what was found stays
            await asyncio.sleep(0.3)
            assert len(delivery.replicas) == 2
            addresses.append("127.0.0.2")
            await until(lambda: delivery.replicas == (f"127.0.0.2:{one.port}",))


async def test_credentials_and_paths_of_a_url() -> None:
    (endpoint,) = await resolve("http://me:p%40ss@am.example:9093/prefix/")
    assert endpoint == Endpoint(
        "am.example:9093",
        "http://am.example:9093/prefix/api/v2/alerts",
        username="me",
        password="p@ss",
    )
    (endpoint,) = await resolve("https://[::1]")
    assert endpoint.url == "https://[::1]:443/api/v2/alerts"
    assert endpoints.DNS_PREFIX == "dns+"
