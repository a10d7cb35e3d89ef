"""How the incident agent handles its messages, without a broker: table writes are acknowledged at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from monitor import codec
from monitor.alerting import board, groups
from monitor.model import Incident, Source
from monitor.settings import Settings
from monitor.stream.agents_incidents import IncidentAgent
from monitor.stream.app import create_app
from monitor.telemetry import Telemetry
from tests.alerting.incidents import incident
from tests.alerting.test_words import span

NOW = 1_800_000_000_000
OLD = NOW - 2 * 3_600_000


def _acknowledged(*_args: Any, **_named: Any) -> asyncio.Future[None]:
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    written.set_result(None)
    return written


class Bench:
    """The agent and its log. ``restart``: another one from the table, which is given some of the log again."""

    def __init__(self) -> None:
        self.settings = Settings.load({"MONITOR_STAGES": "agents"})
        self.log: list[Any] = []
        self.agent = self._agent()

    def _agent(self) -> IncidentAgent:
        self.telemetry = Telemetry()
        app = create_app(self.settings, self.telemetry)
        app.lease.renew()
        agent = next(a for a in app.keyed if isinstance(a, IncidentAgent))
        agent._clock = lambda: NOW
        agent.table.send_changelog = _acknowledged
        return agent

    async def send(self, made: Incident) -> None:
        await self._handle(groups.group_of(made), made)

    async def leave(self, made: Incident, severity: str) -> None:
        """To the group of another severity, which it leaves."""
        group = groups.group_of(made)
        await self._handle(msgspec.structs.replace(group, severity=severity), made)

    async def _handle(self, group: groups.GroupKey, made: Incident) -> None:
        key = groups.encode_key(group)
        message = SimpleNamespace(
            key=key, value=codec.encode_json(made), offset=len(self.log), partition=0
        )
        self.log.append(message)
        await self.agent.handle(message)

    async def restart(self, again: int) -> None:
        rows = list(self.agent.table.rows.held())
        self.agent = self._agent()
        for key, partition, value in rows:
            self.agent.table.rows.hold(partition, key, value)
        await self.agent.on_recovered()
        for message in self.log[len(self.log) - again :]:
            await self.agent.handle(message)

    def alerts(self) -> dict[tuple[str, str], str]:
        return {
            (a.labels["alertname"], a.labels["service"]): a.annotations["count"]
            for a in self.agent.board.alerts(NOW)
        }

    def refused(self, why: str) -> float:
        counter = self.telemetry.incidents_not_pushed_total.labels(why)
        return float(counter._value.get())


async def test_an_old_incident_that_becomes_a_page_is_one_page_over_redelivery_and_restart() -> (
    None
):
    bench = Bench()
    await bench.send(incident("i", service="attacker", max_score=0.3, caused_at_ms=OLD))
    assert list(bench.alerts()) == [("AgentMonitorOldIncidents", "attacker")]
    assert bench.refused("age") == 1
    fresh = span("00f067aa0ba902b7", service="payments", source=Source("s", 0, 1, 0, NOW))
    await bench.send(
        incident("i", service="attacker", revision=2, caused_at_ms=NOW, evidence=(fresh,))
    )
    page = {("AgentMonitorSpanOverThreshold", "attacker"): "1"}
    assert bench.alerts() == page
    assert len(bench.agent._observer._awaited) == 1  # its way to the page is timed
    await bench.restart(again=2)
    assert bench.alerts() == page
    await bench.send(incident("i", service="attacker", revision=3, caused_at_ms=OLD))
    assert bench.alerts() == page
    assert bench.refused("age") == 0  # the one since the restart


async def test_a_full_board_makes_room_for_a_page_in_the_table_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board, "GROUP_LIMIT", 5)
    monkeypatch.setattr(board, "ALERT_LIMIT", 5)
    bench = Bench()
    for n in range(7):
        await bench.send(
            incident(
                f"o-{n}", service=f"made-up-{n}", reason="identity", trace_id=None, max_score=0.31
            )
        )
    assert bench.refused("groups") == 2
    await bench.send(incident("p", service="payments", max_score=0.99))
    assert ("AgentMonitorSpanOverThreshold", "payments") in bench.alerts()
    assert bench.alerts()["AgentMonitorMoreIncidents", "other"] == "3"
    assert len(bench.agent.table.rows.data) == len(bench.agent.board) == 5
    await bench.restart(again=1)
    assert bench.alerts()["AgentMonitorSpanOverThreshold", "payments"] == "1"


async def test_what_only_leaves_a_group_that_has_no_row_takes_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board, "GROUP_LIMIT", 1)
    bench = Bench()
    await bench.send(incident("a", severity="info", caused_at_ms=OLD))
    await bench.leave(incident("b", revision=2, rose_from="warning"), "warning")
    assert list(bench.alerts()) == [("AgentMonitorOldIncidents", "shop")]
    assert bench.refused("groups") == 0
