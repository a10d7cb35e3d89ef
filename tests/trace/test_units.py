"""A score says which unit of its span it judged: a tool's result is a retrieval, its arguments a tool call."""

from __future__ import annotations

import msgspec

from monitor.model import Score, Span, SpanScore
from monitor.trace.config import FoldSettings, ScorerRule
from tests.trace.folding import Log, scored
from tests.trace.truth import sid


def call(key: int, *scores: tuple[float, str], role: str = "tool_call") -> Span:
    return msgspec.structs.replace(
        scored(key, 0, None, role=role),
        scores=tuple(Score("judge", "1", value, judged) for value, judged in scores),
    )


def test_a_tools_result_pages_by_the_threshold_of_a_retrieval() -> None:
    log = Log()
    assert log.spans("a", call(1, (0.5, "output"))) == []
    [page] = log.spans("a", call(2, (0.85, "output")))
    assert (page.argmax_role, page.threshold, page.severity) == ("retrieval", 0.8, "warning")


def test_a_retrievals_query_pages_by_the_threshold_of_a_tool_call() -> None:
    log = Log()
    [page] = log.spans("a", call(1, (0.5, "input"), role="retrieval"))
    assert (page.argmax_role, page.threshold) == ("tool_call", 0.3)


def test_a_reduction_counts_the_unit_that_was_judged() -> None:
    log = Log()
    log.spans("a", scored(0, role="planner"), call(1, (0.5, "output")), call(2, (0.1, "input")))
    log.until(10)
    [reduction] = log.verdicts[0].reductions
    assert (reduction.argmax_span_id, reduction.argmax_role) == (sid(1), "retrieval")
    counts = {role: (r.count, r.scored) for role, r in reduction.roles.items()}
    assert counts == {"planner": (1, 1), "retrieval": (1, 1), "tool_call": (1, 1)}
    assert reduction.span_count == 3


def test_both_units_of_a_span_stay_scored_and_count_once() -> None:
    """A later score of the result says nothing of the arguments."""
    log = Log()
    log.spans("a", scored(0, role="planner"), call(1, (0.25, "input")), at=0)
    late = SpanScore(sid(1), Score("judge", "1", 0.1, "output"), role="tool_call")
    log.scores("a", late, at=1)
    log.until(12)
    [reduction] = log.verdicts[-1].reductions
    assert (reduction.max_score, reduction.argmax_role) == (0.25, "tool_call")
    assert (reduction.span_count, reduction.scored_count) == (2, 2)


def test_drift_sums_hold_a_result_as_a_retrieval() -> None:
    log = Log()
    log.spans("a", scored(0, role="planner"), call(1, (0.1, "output")), call(2, (0.2, "")))
    log.until(10)
    part = next(life.part for life in log.fold._lives.memory.closed.values())  # type: ignore[union-attr]
    assert part is not None
    scored_in = {
        part.names[group.role]: len(group.bins) // 2 for group in part.groups if group.bins
    }
    assert scored_in == {"planner": 1, "retrieval": 1, "tool_call": 1}
    assert part.spans == 3
    assert sum(part.role_counts) == 3


def test_a_per_unit_scorers_mean_does_not_change_with_the_unit() -> None:
    settings = FoldSettings(scorers={"judge": ScorerRule("per_unit", independent=True)})
    log = Log(settings)
    log.spans("a", scored(0, None, 0.1, role="planner"), call(1, (0.2, "output")))
    log.until(10)
    scalar = log.verdicts[0].reductions[0].scalar
    assert scalar is not None
    assert abs(scalar.value - 0.15) < 1e-12
    assert scalar.denominator == 2
