"""What a person sees of incident records."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from monitor.cli.incidents import incident_table, print_incident
from monitor.model import Edge, Neighbourhood, Source, SpanEvidence
from tests.alerting.incidents import incident

ID = "b7e2c0de" * 4


def shown(thing: Any, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    if isinstance(thing, str):
        raise TypeError
    console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def printed(width: int = 200, **changes: Any) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_incident(incident(ID, **changes), console, "https://runbooks.example/")
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def evidence(**changes: Any) -> SpanEvidence:
    fields: dict[str, Any] = {
        "span_id": "00f067aa0ba902b7",
        "parent_span_id": None,
        "role": "tool_call",
        "service": "shop",
        "name": "run_shell",
        "model_version": "m-1",
        "score": 0.91,
        "content_hash": "",
        "source": Source("agent-spans", 2, 7),
    }
    return SpanEvidence(**{**fields, **changes})


def test_an_incident_says_alert_runbook_and_dates_and_no_python() -> None:
    text = printed(
        evidence=(evidence(), evidence(span_id=None)),
        neighbourhood=Neighbourhood(
            "edges", edges=(Edge("a", "b", "parent"),), gaps=("p never came",)
        ),
        caused_at_ms=1_796_095_371_210,
        opened_at_ms=1_796_095_372_000,
    )
    assert text.startswith(f"incident {ID}, revision 1")
    for words in (
        "AgentMonitorSpanOverThreshold",
        "https://runbooks.example/AgentMonitorSpanOverThreshold.md",
        "2026-12-01 03:22:51 UTC",
        "agent-spans[2]@7",
        "a → b  parent",
        "gap: p never came",
        "fragments partition 0, offset 7",
    ):
        assert words in text
    for python in ("('", "{'", "None", "_ms", "179609537"):
        assert python not in text


def test_an_incident_of_a_reason_that_this_build_does_not_know_has_a_runbook_too() -> None:
    assert "AgentMonitorIncident.md" in printed(reason="news")


@pytest.mark.parametrize("ms", [-1, 1 << 62])
def test_a_date_that_no_calendar_has_ends_nothing(ms: int) -> None:
    assert "caused_at" in printed(caused_at_ms=ms)


def test_names_that_a_sender_chose_cannot_steer_the_terminal() -> None:
    hostile = "x\x1b[2J\u202e[red]"
    text = printed(service=hostile, summary=hostile, evidence=(evidence(name=hostile),))
    text += shown(incident_table([incident(ID, service=hostile)]))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count("[red]") == 4


def test_the_list_has_ids_and_times_worst_first_and_says_what_is_left_out() -> None:
    some = [
        incident(f"{n:032x}", severity=severity, max_score=score, opened_at_ms=1_796_095_371_210)
        for n, (severity, score) in enumerate(
            [("warning", 0.99), ("critical", 0.5), ("critical", 0.9), ("info", None)]
        )
    ]
    text = shown(incident_table(some, limit=3), width=100)
    rows = text.splitlines()[1:4]
    assert [row.split()[-1] for row in rows] == [f"{n:032x}" for n in (2, 1, 0)]
    assert all("2026-12-01 03:22" in row for row in rows)
    assert "and 1 more" in text
    assert max(map(len, text.splitlines())) <= 100
