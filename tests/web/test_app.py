"""The HTTP side of a worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from monitor.telemetry import Telemetry
from monitor.web import Readiness, WebServer, create_web


@dataclass
class Worker:
    waiting_for: tuple[str, ...] = ()
    faults: list[str] = field(default_factory=list)
    telemetry: Telemetry = field(default_factory=Telemetry)
    url: str = ""


@pytest_asyncio.fixture
async def worker() -> AsyncIterator[Worker]:
    state = Worker()
    app = create_web(
        state.telemetry, readiness=lambda: Readiness(state.waiting_for), faults=lambda: state.faults
    )
    async with WebServer(app, "127.0.0.1", 0) as server:
        state.url = f"http://127.0.0.1:{server.port}"
        yield state


async def get(url: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, headers=headers) as answer,
    ):
        return answer.status, answer.headers.get("Content-Type", ""), await answer.text()


async def test_metrics_in_the_format_that_is_asked_for(worker: Worker) -> None:
    status, kind, body = await get(worker.url + "/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    assert any(family.name == "agent_monitor_build_info" for family in parse_text(body))
    status, kind, body = await get(
        worker.url + "/metrics", Accept="application/openmetrics-text; version=1.0.0"
    )
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")
    assert any(family.name == "agent_monitor_build_info" for family in parse_openmetrics(body))


async def test_ready_only_when_nothing_is_waited_for(worker: Worker) -> None:
    worker.waiting_for = ("lane 3 of assemble",)
    assert await get(worker.url + "/readyz") == (
        503,
        "text/plain; charset=utf-8",
        "waiting for lane 3 of assemble\n",
    )
    assert (await get(worker.url + "/healthz"))[0] == 200  # not ready is no reason to be restarted
    worker.waiting_for = ()
    assert (await get(worker.url + "/readyz"))[0] == 200


async def test_not_healthy_says_why(worker: Worker) -> None:
    worker.faults.append("stage ingest has ended")
    status, _, body = await get(worker.url + "/healthz")
    assert (status, body) == (503, "stage ingest has ended\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_nothing_can_be_changed(worker: Worker, method: str) -> None:
    for path in ("/", "/metrics", "/healthz", "/readyz"):
        assert (await get(worker.url + path, method))[0] == 405
    assert (await get(worker.url + "/table"))[0] == 404


class Slow(Collector):
    """A page that takes until the loop has gone round meanwhile."""

    def __init__(self) -> None:
        self.loop_went_on = threading.Event()
        self.in_time: bool | None = None

    def describe(self) -> Iterable[Metric]:
        return ()  # else the registry collects to learn the names

    def collect(self) -> Iterable[Metric]:
        self.in_time = self.loop_went_on.wait(10)
        return ()


async def test_the_loop_goes_on_while_a_page_is_rendered(worker: Worker) -> None:
    slow = Slow()
    worker.telemetry.registry.register(slow)
    scrape = asyncio.create_task(get(worker.url + "/metrics"))
    asyncio.get_running_loop().call_later(0.1, slow.loop_went_on.set)
    assert (await scrape)[0] == 200
    assert slow.in_time is True
