"""Records as the fold publishes them, for tests of what is counted."""

from __future__ import annotations

from typing import Any

from monitor.drift.report import (
    Composition,
    DriftReport,
    GateState,
    MixEvidence,
    MixReport,
    Sizes,
    Split,
)
from monitor.model import (
    DeadLetter,
    Forensics,
    Incident,
    Neighbourhood,
    Provenance,
    Reduction,
    RoleReduction,
    Scalar,
    Source,
    Verdict,
)

_PROVENANCE = Provenance(0, 7, (7,), 9, "0" * 64, {}, 1)


def reduction(
    scorer: str = "judge", scalar: Scalar | None = None, **roles: float | None
) -> Reduction:
    table = {role: RoleReduction(1, int(top is not None), top) for role, top in roles.items()}
    tops = [top for top in roles.values() if top is not None]
    return Reduction(
        scorer,
        "1",
        "per_unit",
        max(tops),
        "a" * 16,
        "planner",
        len(table),
        len(tops),
        table,
        scalar,
    )


def verdict(**changed: Any) -> Verdict:
    values: dict[str, Any] = {
        "trace_id": "a" * 32,
        "life": 7,
        "revision": 1,
        "service": "shop",
        "model_version": "m-1",
        "closed_by": "root_complete",
        "root_seen": True,
        "cut": False,
        "continues": None,
        "span_count": 41,
        "redelivered": 0,
        "forensics": Forensics("complete"),
        "reductions": (reduction(tool_call=0.91, retrieval=0.07),),
        "closed_at_ms": 1,
        "provenance": _PROVENANCE,
    }
    return Verdict(**{**values, **changed})


def incident(**changed: Any) -> Incident:
    values: dict[str, Any] = {
        "incident_id": "i",
        "trace_id": "a" * 32,
        "life": 7,
        "revision": 1,
        "service": "shop",
        "model_version": "m-1",
        "reason": "threshold",
        "policy": None,
        "policy_class": None,
        "scorer": "judge",
        "scorer_version": "1",
        "severity": "critical",
        "argmax_span_id": "b" * 16,
        "argmax_role": "tool_call",
        "max_score": 0.91,
        "threshold": 0.3,
        "forensics": Forensics("pending"),
        "neighbourhood": Neighbourhood("edges"),
        "span_ids": (),
        "evidence": (),
        "others": {},
        "summary": "",
        "caused_at_ms": 1,
        "opened_at_ms": 1,
        "provenance": _PROVENANCE,
    }
    return Incident(**{**values, **changed})


def dead_letter(reason: str = "not_json", topic: str = "agent-spans") -> DeadLetter:
    return DeadLetter(reason=reason, detail="", source=Source(topic, 0, 1))


def drift_report(**changed: Any) -> DriftReport:
    values: dict[str, Any] = {
        "report_id": "r",
        "service": "shop",
        "scorer": "judge",
        "scorer_version": "1",
        "role": "planner",
        "reference": "m-1",
        "current": "m-2",
        "decision": "not_yet",
        "reason": "",
        "why": "",
        "traces": Sizes(200, 50),
        "spans": Sizes(800, 200),
        "d": 0.1,
        "log_e": 1.0,
        "threshold": 7.4,
    }
    return DriftReport(**{**values, **changed})


def mix_report(**changed: Any) -> MixReport:
    evidence = MixEvidence(d=0.5, log_e=9.0, radius=0.1, phi=1.0, decision="shifted", reason="")
    split = Split(0.5, 0.4, 0.1)
    values: dict[str, Any] = {
        "report_id": "m",
        "service": "shop",
        "scorer": "judge",
        "reference": "m-1",
        "current": "m-2",
        "gate": "shifted",
        "reason": "",
        "why": "",
        "traces": Sizes(200, 50),
        "composition": Composition(share=0.9, at=0.1, cdf=split, mean=split),
        "length": evidence,
        "roles": None,
    }
    return MixReport(**{**values, **changed})


def gate(service: str = "shop", state: Any = "shifted") -> GateState:
    return GateState(service=service, scorer="judge", state=state, why="", source_offset=1)
