"""How many traces as long scored as high before: counted, each life once."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.cli.commonness import commonness_line
from monitor.model import Fault, Forensics, Provenance, Reduction, RoleReduction, Verdict
from monitor.trace.commonness import Common, Commonness
from tests.alerting.incidents import incident

AT = 1_000_000


def verdict(name: str, score: float | None, spans: int = 10, **changes: Any) -> Verdict:
    scorer = changes.pop("scorer", "guard")
    role = changes.pop("role", "tool_call")
    reductions = (
        Reduction(
            scorer, "1", "undeclared", score, "a", role, spans, 1,
            {role: RoleReduction(spans, 1, score, "a"), "planner": RoleReduction(1, 1, 1.0, "b")},
        ),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "trace_id": name,
        "life": 1,
        "revision": 1,
        "service": "shop",
        "model_version": "m-1",
        "closed_by": "idle",
        "root_seen": True,
        "cut": False,
        "continues": None,
        "span_count": spans,
        "redelivered": 0,
        "forensics": Forensics("complete"),
        "reductions": reductions,
        "closed_at_ms": AT - 1,
        "provenance": Provenance(0, 1, (1,), 1, "s" * 64, {}, 1),
    }
    return Verdict(**{**fields, **changes})


THE_INCIDENT = incident(trace_id="own", life=7, opened_at_ms=AT, max_score=0.5)
OWN = verdict("own", 0.5, 12, life=7, closed_at_ms=AT + 5)


def counted(*verdicts: Verdict) -> Common | None:
    count = Commonness(THE_INCIDENT)
    for one in verdicts:
        count.add(one)
    return count.found()


def test_traces_of_the_same_length_bucket_are_counted() -> None:
    others = [verdict(str(n), n / 10, spans) for n, spans in enumerate((8, 15, 9, 10, 11, 12, 13))]
    longer, shorter = verdict("longer", 0.9, 16), verdict("shorter", 0.9, 7)
    assert counted(*others, longer, OWN, shorter) == Common(8, 15, 7, 2)  # .5 and .6 are as high


@pytest.mark.parametrize(
    "other",
    [
        verdict("later", 0.9, closed_at_ms=AT + 1),
        verdict("other service", 0.9, service="bank"),
        verdict("other scorer", 0.9, scorer="judge"),
        verdict("other role", 0.9, role="retrieval"),
        verdict("cut", 0.9, cut=True),
        verdict("unscored", None),
        verdict("own", 0.9, life=8),
        verdict("rejected", 0.9, forensics=Forensics("rejected", (Fault("cycle", (), 2),))),
    ],
    ids=lambda other: other.trace_id,
)
def test_what_is_no_baseline_is_left_out(other: Verdict) -> None:
    assert counted(OWN, other) == Common(8, 15, 0, 0)


def test_a_life_counts_once_by_its_last_revision_in_whatever_order_they_come() -> None:
    first, second = verdict("a", 0.9), verdict("a", 0.1, revision=2)
    assert counted(OWN, first, second) == counted(second, first, OWN) == Common(8, 15, 1, 0)


def test_before_its_own_trace_has_closed_nothing_can_be_said() -> None:
    assert counted(verdict("a", 0.9)) is None
    line = commonness_line(THE_INCIDENT, Commonness(THE_INCIDENT))
    assert line is not None
    assert "not known" in line.plain


def test_the_line_says_count_length_role_and_scorer() -> None:
    count = Commonness(THE_INCIDENT)
    for one in (OWN, verdict("a", 0.9), verdict("b", 0.1)):
        count.add(one)
    line = commonness_line(THE_INCIDENT, count)
    assert line is not None
    assert "1 of 2 earlier traces of shop with 8 to 15 spans" in line.plain
    assert "in tool_call by guard 1 (counted over the latest verdicts, not modelled)" in line.plain


def test_an_incident_without_a_score_has_no_line() -> None:
    fault = incident(trace_id=None, max_score=None, argmax_role=None)
    assert commonness_line(fault, Commonness(fault)) is None
