"""Claims hold only where the monitor's output shows them: "could not tell" is never a tick."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from monitor.demo.story import BEHAVIOUR_ROLES, Claim, Story, _incident_rate_unchanged
from monitor.demo.traffic import UPGRADED
from monitor.drift.report import DriftReport, IncidentRates, MixReport, Sizes


def report(role: str, decision: Any, **more: Any) -> DriftReport:
    return DriftReport(
        report_id="r", service="s", scorer="s", scorer_version="1", role=role, reference="a", current=UPGRADED.name,
        decision=decision, reason="x", why="y", traces=Sizes(1, 1), spans=Sizes(1, 1), **more,
    )  # fmt: skip


def claim(*reports: DriftReport) -> Claim:
    watch = SimpleNamespace(drift={(r.current, r.role): r for r in reports})
    story = Story(cast(Any, None), cast(Any, watch), print)
    return story._same_behaviour("same", UPGRADED, BEHAVIOUR_ROLES)


@pytest.mark.parametrize("decision", ["equivalent", "explained_by_counts"])
def test_behaviour_is_the_same_where_that_is_shown_of_every_role(decision: str) -> None:
    reports = [report(role, decision, d=0.01) for role in BEHAVIOUR_ROLES]
    assert claim(*reports).holds
    assert not claim(*reports[1:]).holds
    assert "no report" in claim(*reports[1:]).seen


@pytest.mark.parametrize("decision", ["not_yet", "not_comparable", "drift"])
def test_anything_else_in_one_role_is_no_tick(decision: str) -> None:
    reports = [report(role, "equivalent", d=0.01) for role in BEHAVIOUR_ROLES[1:]]
    one = report(BEHAVIOUR_ROLES[0], decision, more_traces=800, toward="equivalent")
    found = claim(one, *reports)
    assert not found.holds
    assert decision in found.seen
    assert ("800 more traces" in found.seen) == (decision == "not_yet")


@pytest.mark.parametrize(
    ("rates", "holds"),
    [
        ({"difference": 0.001, "radius": 0.02, "log_e": -1.0}, True),
        ({"difference": -0.001, "radius": 0.06, "log_e": -1.0}, False),  # too little is known
        ({"difference": -0.04, "radius": 0.02, "log_e": 1.0}, False),
        ({"difference": 0.01, "radius": 0.01, "log_e": 5.0}, False),  # a change, if a small one
        ({"difference": 0.0, "radius": None, "log_e": None}, False),
    ],
)
def test_the_incident_rate_is_the_same_only_within_its_margin(
    rates: dict[str, Any], holds: bool
) -> None:
    mix = MixReport(
        report_id="r", service="s", scorer="s", reference="a", current="b", gate="shifted", reason="x", why="y",
        traces=Sizes(1, 1),
        incidents=IncidentRates(reference=0.01, current=0.01, incidents=Sizes(1, 1), statement="", **rates),
    )  # fmt: skip
    assert _incident_rate_unchanged(mix).holds is holds
    assert not _incident_rate_unchanged(None).holds
