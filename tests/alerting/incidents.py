"""Incidents for tests: valid, with what a test cares about given by name."""

from __future__ import annotations

from typing import Any

from monitor.model import Forensics, Incident, Neighbourhood, Provenance


def incident(incident_id: str = "i-1", **changes: Any) -> Incident:
    fields: dict[str, Any] = {
        "incident_id": incident_id,
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "life": 7,
        "revision": 1,
        "service": "shop",
        "model_version": "m-1",
        "reason": "threshold",
        "policy": None,
        "policy_class": "prompt_injection",
        "scorer": "guard",
        "scorer_version": "1",
        "severity": "critical",
        "argmax_span_id": "00f067aa0ba902b7",
        "argmax_role": "tool_call",
        "max_score": 0.91,
        "threshold": 0.30,
        "forensics": Forensics("pending"),
        "neighbourhood": Neighbourhood("edges"),
        "span_ids": ("00f067aa0ba902b7",),
        "evidence": (),
        "others": {"count": 0, "digest": ""},
        "summary": "tool_call span scored 0.91",
        "caused_at_ms": 0,
        "opened_at_ms": 0,
        "provenance": Provenance(0, 7, (7,), 7, "s" * 64, {}, 1),
    }
    return Incident(**{**fields, **changes})
