"""Thresholds out of maxima that were seen: never more pages than wished, never fewer than could be had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.model import ROLES, Reduction, RoleReduction
from monitor.trace.config import DEFAULT_THRESHOLDS
from monitor.trace.suggest import (
    STEPS,
    exceedance,
    maxima_of,
    poisson,
    suggest,
    threshold_for,
    wilson,
)

SCORES = st.floats(0.0, 1.0)
TRACES = st.lists(st.dictionaries(st.sampled_from(ROLES), SCORES), min_size=1, max_size=30).map(
    lambda traces: {str(n): trace for n, trace in enumerate(traces)}
)


def over(trace: dict[str, float], thresholds: dict[str, float]) -> bool:
    return any(trace.get(role, -1.0) >= value for role, value in thresholds.items())


@given(TRACES, st.integers(0, 30))
def test_no_more_traces_page_than_wished_unless_they_score_1(
    traces: dict[str, dict[str, float]], wished: int
) -> None:
    found = suggest(traces, wished, DEFAULT_THRESHOLDS)
    chosen = {one.role: one.threshold for one in found.roles}
    paging = {role: value for role, value in chosen.items() if role != "retrieval"}
    pages = sum(over(trace, paging) for trace in traces.values())
    assert found.pages == pages
    certain = sum(over(trace, dict.fromkeys(paging, 1.0)) for trace in traces.values())
    assert pages <= max(wished, certain)
    if "retrieval" in chosen:
        warned = sum(t.get("retrieval", -1.0) >= chosen["retrieval"] for t in traces.values())
        assert warned <= max(wished, sum(t.get("retrieval") == 1.0 for t in traces.values()))


@given(st.lists(SCORES, min_size=1, max_size=40).map(sorted), st.integers(0, 40))
def test_a_threshold_is_the_lowest_that_keeps_the_count(values: list[float], count: int) -> None:
    threshold = threshold_for(values, count)
    assert 0.0 <= threshold <= 1.0
    assert exceedance(values, threshold) <= count or threshold == 1.0
    lower = threshold - 1 / STEPS
    if count < len(values) and lower >= 0.0:
        assert exceedance(values, lower - 1e-9) > count


def test_a_trace_over_several_roles_is_one_page() -> None:
    traces = {str(n): {"planner": n / 100, "tool_call": n / 100} for n in range(100)}
    found = suggest(traces, 10, DEFAULT_THRESHOLDS)
    assert found.pages == 10
    assert [one.over for one in found.roles] == [10, 10]
    apart = traces | {f"t{n}": {"tool_call": n / 100} for n in range(100)}
    found = suggest(apart, 10, DEFAULT_THRESHOLDS)
    assert found.pages <= 10


def test_labelled_traces_that_would_be_missed_are_counted() -> None:
    traces = {str(n): {"tool_call": n / 100, "retrieval": 0.5} for n in range(100)}
    found = suggest(traces, 10, DEFAULT_THRESHOLDS, frozenset({"99", "95", "50", "not here"}))
    tool_call = next(one for one in found.roles if one.role == "tool_call")
    assert (found.labelled, tool_call.labelled, tool_call.missed) == (3, 3, 1)
    assert found.missed == 1
    assert tool_call.over_now == 70
    assert not tool_call.doubts


def test_a_score_at_its_threshold_is_not_missed() -> None:
    found = suggest({"a": {"tool_call": 0.5}}, 5, DEFAULT_THRESHOLDS, frozenset({"a"}))
    assert (found.roles[0].threshold, found.roles[0].missed, found.missed) == (0.5, 0, 0)


@pytest.mark.parametrize(
    ("wished", "said"), [(0, "rests on 0"), (9, "rests on 9"), (60, "over half")]
)
def test_too_few_data_are_said_to_be_so(wished: int, said: str) -> None:
    traces = {str(n): {"tool_call": n / 100} for n in range(100)}
    (one,) = suggest(traces, wished, DEFAULT_THRESHOLDS).roles
    assert any(said in doubt for doubt in one.doubts)


def test_the_maxima_of_a_trace_are_over_all_its_scorers() -> None:
    def reduction(scorer: str, **roles: float | None) -> Reduction:
        of = {role: RoleReduction(1, 1, score) for role, score in roles.items()}
        return Reduction(scorer, "1", "undeclared", None, None, None, 1, 1, of)

    found = maxima_of([reduction("a", planner=0.2, retrieval=None), reduction("b", planner=0.1, tool_call=0.0)])  # fmt: skip
    assert found == {"planner": 0.2, "tool_call": 0.0}


def test_intervals_against_published_values() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=5e-4)  # Newcombe 1998, table I
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert poisson(0) == pytest.approx((0.0, 3.689), abs=5e-4)  # Garwood 1936
    assert poisson(10) == pytest.approx((4.795, 18.390), abs=5e-4)
