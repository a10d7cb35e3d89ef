from __future__ import annotations

import pytest

from monitor.model import ROLES, Score
from monitor.trace.config import DEFAULT_THRESHOLDS, FoldSettings, ThresholdOverride
from monitor.trace.thresholds import Thresholds
from tests.trace.truth import span

OVERRIDES = (
    ThresholdOverride("judge", "retrieval", 0.5),
    ThresholdOverride("judge", "retrieval", 0.6, service="shop"),
    ThresholdOverride("judge", "planner", 0.2, service="shop"),
)
OWN = Thresholds(FoldSettings(threshold_overrides=OVERRIDES))


@pytest.mark.parametrize("role", ROLES)
def test_defaults_are_by_role(role: str) -> None:
    assert Thresholds(FoldSettings()).value("any", "any", role) == DEFAULT_THRESHOLDS[role]


@pytest.mark.parametrize(
    ("service", "scorer", "role", "value"),
    [
        ("shop", "judge", "retrieval", 0.6),  # service + scorer + role
        ("mail", "judge", "retrieval", 0.5),  # scorer + role
        ("shop", "other", "retrieval", 0.8),  # role
        ("shop", "judge", "planner", 0.2),
        ("mail", "judge", "planner", 0.3),  # a rule of another service does not reach it
        ("shop", "judge", "tool_call", 0.3),
    ],
)
def test_the_more_particular_rule_wins(service: str, scorer: str, role: str, value: float) -> None:
    assert OWN.value(service, scorer, role) == value


def test_a_partial_table_keeps_the_other_defaults_and_a_strange_role_is_unknown() -> None:
    table = Thresholds(FoldSettings(thresholds={"planner": 0.9, "unknown": 0.4}))
    assert table.value("s", "j", "planner") == 0.9
    assert table.value("s", "j", "retrieval") == 0.8
    assert table.value("s", "j", "critic") == 0.4


@pytest.mark.parametrize(
    ("value", "reached"), [(0.2999999, False), (0.3, True), (0.30000001, True)]
)
def test_a_score_at_its_threshold_counts(value: float, reached: bool) -> None:
    one = span("a", role="tool_call", scores=value)
    assert Thresholds(FoldSettings()).reached_by(one, one.scores[0]) is reached
    assert Thresholds(FoldSettings()).elevated(one) is reached


def test_any_scorer_elevates_a_span() -> None:
    scores = (Score("lax", "1", 0.1), Score("judge", "1", 0.55))
    assert OWN.elevated(span("a", role="retrieval", scores=scores))
    assert not OWN.elevated(span("a", role="retrieval", scores=scores, service="shop"))


def test_lowest_is_below_every_threshold() -> None:
    assert OWN.lowest == 0.2
    assert Thresholds(FoldSettings(thresholds=dict.fromkeys(ROLES, 0.7))).lowest == 0.7
