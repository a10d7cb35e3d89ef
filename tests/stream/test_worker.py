"""A worker before it works: waiting for Kafka, or not able to start."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
import structlog

from monitor import logs
from monitor.settings import Settings
from monitor.stream import worker
from monitor.stream.worker import MISFIT, OK, Worker

NOBODY = "127.0.0.1:1"  # a port on which nothing listens


def settings(**values: Any) -> Settings:
    return Settings(bootstrap_servers=(NOBODY,), token_key="k" * 40, **{"web_port": 0, **values})


@pytest.fixture
def logged() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


async def get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def test_a_worker_without_kafka_answers_probes_and_says_what_it_waits_for(
    logged: Callable[[], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A liveness probe that got no answer would kill it again and again."""
    monkeypatch.setattr(worker, "_FIRST_CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(worker, "_LAST_CONNECT_SECONDS", 0.15)
    waiting = Worker(settings())
    running = asyncio.create_task(waiting.run())
    while len(logged()) < 5:  # noqa: ASYNC110 - a log tells nobody
        await asyncio.sleep(0.02)
    assert await get(waiting.web.port, "/healthz") == (200, "healthy\n")
    assert await get(waiting.web.port, "/readyz") == (503, f"waiting for Kafka at {NOBODY}\n")
    status, metrics = await get(waiting.web.port, "/metrics")
    assert status == 200
    assert 'dead_letters_total{reason="not_json",topic="agent-spans"} 0.0' in metrics
    assert 'policy_incidents_total{policy="' in metrics
    waiting.stop()
    assert await running == OK
    started, *tries = logged()
    assert started["event"] == "worker started"
    assert [line["again_in"] for line in tries[:4]] == [0.05, 0.1, 0.15, 0.15]
    for line in tries:  # one line a try, and it is ours
        assert line["logger"] == "monitor.stream.worker"
        assert "MONITOR_BOOTSTRAP_SERVERS" in line["event"]
        assert line["servers"] == NOBODY
        assert "Connect call failed" in line["error"]
        assert "AddressFamily" not in line["error"]


async def test_a_port_that_is_taken_is_one_line_that_names_the_setting(
    logged: Callable[[], list[dict[str, Any]]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert await Worker(settings(web_port=port)).run() == MISFIT
    [line] = logged()
    assert (line["level"], line["event"]) == ("error", "worker does not fit")
    assert f"MONITOR_WEB_PORT: cannot listen on port {port}" in line["error"]
    assert "already in use" in line["error"]
    assert "exception" not in line


async def test_an_address_of_another_machine_is_one_line_that_names_the_setting(
    logged: Callable[[], list[dict[str, Any]]],
) -> None:
    assert await Worker(settings(web_host="192.0.2.1")).run() == MISFIT
    [line] = logged()
    assert "MONITOR_WEB_HOST 192.0.2.1" in line["error"]


async def test_more_lanes_than_partitions_is_said_at_start(
    logged: Callable[[], list[dict[str, Any]]],
) -> None:
    odd = Worker(settings(lanes=16, partitions=8))
    running = asyncio.create_task(odd.run())
    while len(logged()) < 2:  # noqa: ASYNC110 - a log tells nobody
        await asyncio.sleep(0.02)
    odd.stop()
    assert await running == OK
    assert "MONITOR_LANES: 16 is more than MONITOR_PARTITIONS (8)" in logged()[1]["event"]
