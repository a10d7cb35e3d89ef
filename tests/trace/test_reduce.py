from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.model import (
    EVALUATOR,
    GUARDRAIL,
    PLAIN,
    RELATIONAL_POLICY_CLASSES,
    ROLES,
    WRAPPER,
    Reduction,
    RoleReduction,
    Score,
    Span,
)
from monitor.trace.config import FoldSettings, ScorerRule
from monitor.trace.identity import examine
from monitor.trace.reduce import (
    CARDINALITY_STATIONARY,
    IDENTITY_UNIQUE,
    SCORES_INDEPENDENT,
    reduce_scores,
)
from tests.trace.truth import sid, span

PER_UNIT = FoldSettings(scorers={"judge": ScorerRule("per_unit", independent=True)})
STATIONARY = {("agents", "judge"): "stationary"}
ROOT = span("root", role="planner", scores=0.1)


def reduced(
    spans: list[Span],
    settings: FoldSettings = PER_UNIT,
    gates: dict[tuple[str, str], str] = STATIONARY,
) -> tuple[Reduction, ...]:
    report = examine(spans, (), redelivery="collapse")
    return reduce_scores(report.spans, report, settings, gates, "agents")


def test_names_maximum_span_role_and_denominators() -> None:
    spans = [
        ROOT,
        span("r", "root", role="retrieval", scores=0.6),
        span("s", "root", role="retrieval", scores=0.2),
        span("t", "root", role="tool_call"),
    ]
    assert reduced(spans, FoldSettings()) == (
        Reduction(
            scorer="judge",
            scorer_version="1",
            policy_class="undeclared",
            max_score=0.6,
            argmax_span_id=sid("r"),
            argmax_role="retrieval",
            span_count=4,
            scored_count=3,
            roles={
                "planner": RoleReduction(1, 1, 0.1, sid("root")),
                "retrieval": RoleReduction(2, 2, 0.6, sid("r")),
                "tool_call": RoleReduction(1, 0, None, None),
            },
            scalar=None,
        ),
    )


def test_a_missing_score_is_not_zero() -> None:
    (one,) = reduced([ROOT, span("a", "root"), span("b", "root", scores=0.5)])
    assert (one.span_count, one.scored_count) == (3, 2)
    assert one.scalar is not None
    assert (one.scalar.value, one.scalar.denominator) == (pytest.approx(0.3), 2)


def test_nothing_scored_nothing_reduced() -> None:
    assert reduced([span("root"), span("a", "root")]) == ()


@pytest.mark.parametrize("kind", [EVALUATOR, GUARDRAIL, WRAPPER, PLAIN])
def test_only_members_are_counted_and_chosen(kind: int) -> None:
    (one,) = reduced([ROOT, span("x", "root", kind=kind, scores=0.99)])
    assert (one.max_score, one.span_count, one.argmax_span_id) == (0.1, 1, sid("root"))
    assert one.scalar is not None
    assert one.scalar.value == 0.1


def test_each_scorer_version_by_itself_in_order_of_name() -> None:
    scores = (Score("z", "1", 0.4), Score("a", "2", 0.2), Score("a", "1", 0.3))
    found = reduced([span("root", scores=scores)])
    assert [(r.scorer, r.scorer_version, r.max_score) for r in found] == [
        ("a", "1", 0.3),
        ("a", "2", 0.2),
        ("z", "1", 0.4),
    ]


def test_a_span_scored_twice_counts_once_with_the_highest() -> None:
    twice = (Score("judge", "1", 0.2), Score("judge", "1", 0.6), Score("other", "1", 0.9))
    judge, _ = reduced([span("root", scores=twice), span("b", "root", scores=0.2)])
    assert (judge.max_score, judge.scored_count) == (0.6, 2)
    assert judge.scalar is not None
    assert judge.scalar.value == pytest.approx(0.4)


def test_ties_go_to_the_earlier_span_then_to_the_smaller_id_also_across_roles() -> None:
    late = span("x", "root", 5, role="retrieval", scores=0.5)
    early = span("y", "root", 4, role="tool_call", scores=0.5)
    (one,) = reduced([ROOT, late, early])
    assert (one.argmax_span_id, one.argmax_role) == (sid("y"), "tool_call")
    peers = [span(n, "root", 4, scores=0.5) for n in range(10)]
    (one,) = reduced([ROOT, *peers])
    assert one.argmax_span_id == min(sid(n) for n in range(10))


def test_a_redelivered_span_counts_once() -> None:
    a = span("a", "root", 2, scores=0.5)
    (one,) = reduced([ROOT, a, a])
    assert (one.span_count, one.scored_count) == (2, 2)


# --- the four conditions


@pytest.mark.parametrize("policy_class", [*sorted(RELATIONAL_POLICY_CLASSES), "undeclared"])
def test_no_scalar_of_a_relational_or_undeclared_class(policy_class: str) -> None:
    settings = FoldSettings(scorers={"judge": ScorerRule(policy_class, independent=True)})
    assert reduced([ROOT], settings)[0].scalar is None


def test_alertable_while_all_four_hold() -> None:
    (one,) = reduced([ROOT, span("a", "root", role="completion", scores=0.5)])
    assert one.scalar is not None
    assert (one.scalar.method, one.scalar.value, one.scalar.denominator) == (
        "mean",
        pytest.approx(0.3),
        2,
    )
    assert (one.scalar.alertable, one.scalar.why_not) == (True, ())


@pytest.mark.parametrize("gate", ["shifted", "unknown", None])
def test_not_alertable_unless_cardinality_is_shown_to_be_stationary(gate: str | None) -> None:
    gates = {} if gate is None else {("agents", "judge"): gate}
    (one,) = reduced([ROOT], gates=gates)
    assert one.scalar is not None
    assert (one.scalar.alertable, one.scalar.why_not) == (False, (CARDINALITY_STATIONARY,))


def test_the_gate_is_that_of_the_service_and_scorer() -> None:
    gates = {("other", "judge"): "stationary", ("agents", "else"): "stationary"}
    (one,) = reduced([ROOT], gates=gates)
    assert one.scalar is not None
    assert one.scalar.why_not == (CARDINALITY_STATIONARY,)


def test_not_alertable_unless_declared_independent() -> None:
    (one,) = reduced([ROOT], FoldSettings(scorers={"judge": ScorerRule("per_unit")}))
    assert one.scalar is not None
    assert one.scalar.why_not == (SCORES_INDEPENDENT,)


@pytest.mark.parametrize(
    ("spans", "independent"),
    [
        (
            [
                span("r", "root", 2, role="retrieval"),
                span("t", "root", 3, role="tool_call", scores=0.1),
            ],
            False,
        ),
        (
            [
                span("r", "root", 3, role="retrieval"),
                span("t", "root", 2, role="tool_call", scores=0.1),
            ],
            True,
        ),
        (
            [
                span("r", "root", 2, role="retrieval"),
                span("t", "root", 2, role="tool_call", scores=0.1),
            ],
            False,
        ),
        ([span("r", "root", 2, role="retrieval"), span("t", "root", 3, role="tool_call")], True),
        ([span("t", "root", 3, role="tool_call", scores=0.1)], True),
        (
            [
                span("r", "root", 0, role="retrieval"),
                span("t", "root", 0, role="tool_call", scores=0.1),
            ],
            False,
        ),
        (
            [
                span("r", "root", 3, role="retrieval", service="other clock"),
                span("t", "root", 2, role="tool_call", scores=0.1),
            ],
            False,
        ),
    ],
    ids=[
        "after",
        "before",
        "at once",
        "call not scored",
        "no retrieval",
        "no times",
        "other clock",
    ],
)
def test_a_scored_call_that_may_follow_a_retrieval_is_not_independent(
    spans: list[Span], independent: bool
) -> None:
    (one,) = reduced([ROOT, *spans])
    assert one.scalar is not None
    assert (SCORES_INDEPENDENT not in one.scalar.why_not) is independent


@pytest.mark.parametrize(
    "spans",
    [
        [ROOT, span("a", "gone", scores=0.1)],
        [ROOT, span("a", "root", name="1"), span("a", "root", name="2")],
    ],
    ids=["incomplete", "rejected"],
)
def test_not_alertable_unless_identity_is_whole(spans: list[Span]) -> None:
    (one,) = reduced(spans)
    assert one.scalar is not None
    assert (one.scalar.alertable, one.scalar.why_not) == (False, (IDENTITY_UNIQUE,))


def test_all_that_fails_is_named() -> None:
    settings = FoldSettings(scorers={"judge": ScorerRule("per_unit")})
    (one,) = reduced([span("a", "gone", scores=0.2)], settings, {})
    assert one.scalar is not None
    assert one.scalar.why_not == (SCORES_INDEPENDENT, CARDINALITY_STATIONARY, IDENTITY_UNIQUE)


def test_a_rejected_trace_still_says_its_worst_score() -> None:
    (one,) = reduced(
        [ROOT, span("a", "root", name="1", scores=0.2), span("a", "root", name="2", scores=0.95)]
    )
    assert (one.max_score, one.argmax_span_id, one.span_count) == (0.95, sid("a"), 3)


# --- laws

VALUES = st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.7, 1.0])


@st.composite
def scored_traces(draw: st.DrawFn) -> list[Span]:
    spans = []
    for n in range(draw(st.integers(1, 12))):
        scores = draw(
            st.lists(
                st.builds(Score, st.sampled_from("jk"), st.sampled_from("12"), VALUES), max_size=3
            )
        )
        spans.append(
            span(
                n,
                0 if n else None,
                draw(st.sampled_from([0, 1, 1, 2])),
                role=draw(st.sampled_from(ROLES)),
                kind=draw(st.sampled_from([0, 0, 0, 1, 3])),
                scores=tuple(scores),
            )
        )
    return spans


@given(scored_traces(), st.integers(0, 2**32))
def test_order_of_the_spans_does_not_matter(spans: list[Span], seed: int) -> None:
    settings = FoldSettings(scorers={"j": ScorerRule("per_unit", independent=True)})
    shuffled = random.Random(seed).sample(spans, len(spans))
    assert reduced(shuffled, settings) == reduced(spans, settings)


@given(scored_traces())
def test_agrees_with_the_definition(spans: list[Span]) -> None:
    settings = FoldSettings(scorers={"j": ScorerRule("per_unit")})
    members = [s for s in spans if s.kind == 0]
    for one in reduced(spans, settings):
        own = {
            s.span_id: max(v)
            for s in members
            if (
                v := [
                    c.value
                    for c in s.scores
                    if (c.scorer, c.version) == (one.scorer, one.scorer_version)
                ]
            )
        }
        assert one.max_score == max(own.values())
        assert own[one.argmax_span_id or ""] == one.max_score
        assert (one.span_count, one.scored_count) == (len(members), len(own))
        assert sum(r.count for r in one.roles.values()) == one.span_count
        assert sum(r.scored for r in one.roles.values()) == one.scored_count
        assert max(r.max for r in one.roles.values() if r.max is not None) == one.max_score
        if one.scorer == "j":
            assert one.scalar is not None
            assert one.scalar.value == pytest.approx(sum(own.values()) / len(own))
        else:
            assert one.scalar is None
