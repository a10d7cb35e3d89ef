from __future__ import annotations

import doctest
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import monitor
from monitor import NonAggregableTraceError, Span, TraceVerdict, reduce_trace
from monitor.errors import MonitorError
from monitor.model import RELATIONAL_POLICY_CLASSES
from tests.trace.truth import sid
from tests.trace.truth import span as model_span

GOOD = [Span("a", "planner", 0.1), Span("b", "tool_call", 0.7), Span("c", "completion", 0.0)]


def test_reduces_to_the_highest_score_its_span_and_the_denominator() -> None:
    for policy_class in ("per_unit", "compositional_exfiltration", "nobody knows"):
        assert reduce_trace(GOOD, policy_class, allow_scalar=False) == TraceVerdict(
            0.7, "b", 3, policy_class
        )


@pytest.mark.parametrize("policy_class", ["per_unit", "per_unit:pii"])
def test_a_per_unit_class_may_become_a_scalar(policy_class: str) -> None:
    assert reduce_trace(GOOD, policy_class, allow_scalar=True).max_score == 0.7


@pytest.mark.parametrize(
    "policy_class", [*sorted(RELATIONAL_POLICY_CLASSES), "undeclared", "", "per_unitary", "pii"]
)
def test_refuses_a_scalar_of_a_relational_or_unknown_class(policy_class: str) -> None:
    with pytest.raises(NonAggregableTraceError, match="relational or unknown"):
        reduce_trace(GOOD, policy_class, allow_scalar=True)


def test_refuses_an_empty_trace() -> None:
    with pytest.raises(NonAggregableTraceError, match="no spans"):
        reduce_trace([], "per_unit", allow_scalar=False)


@pytest.mark.parametrize("scalar", [True, False])
def test_refuses_a_duplicate_span_id_even_of_identical_spans(scalar: bool) -> None:
    with pytest.raises(NonAggregableTraceError, match=r"duplicate span_id .*\['b'\]"):
        reduce_trace([*GOOD, GOOD[1]], "per_unit", allow_scalar=scalar)


def test_names_only_the_first_of_many_duplicates() -> None:
    with pytest.raises(NonAggregableTraceError, match="950 more") as caught:
        reduce_trace(
            [Span(str(n), "planner", 0.0) for n in range(1000)] * 2, "per_unit", allow_scalar=False
        )
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("span_id", ["", None])
def test_refuses_a_span_without_an_id(span_id: object) -> None:
    with pytest.raises(NonAggregableTraceError, match="no span_id"):
        reduce_trace(
            [SimpleNamespace(span_id=span_id, role="planner", safety_score=0.1)],
            "per_unit",
            allow_scalar=False,
        )


@pytest.mark.parametrize(
    "score", [None, math.nan, math.inf, -math.inf, -0.0001, 1.0001, True, False, "0.5"], ids=repr
)
def test_refuses_a_score_that_is_missing_or_no_number_in_range(score: object) -> None:
    spans = [*GOOD, SimpleNamespace(span_id="d", role="planner", safety_score=score)]
    with pytest.raises(NonAggregableTraceError, match="span d "):
        reduce_trace(spans, "per_unit", allow_scalar=False)


@pytest.mark.parametrize("score", [0, 1, 0.0, 1.0])
def test_both_ends_of_the_range_are_scores(score: float) -> None:
    assert reduce_trace([Span("a", "planner", score)], "x", allow_scalar=False).max_score == score


def test_takes_the_pipelines_own_spans() -> None:
    spans = [
        model_span("a", role="planner", scores=0.2),
        model_span("b", "a", role="tool_call", scores=0.6),
    ]
    assert reduce_trace(spans, "x", allow_scalar=False) == TraceVerdict(0.6, sid("b"), 2, "x")


def test_of_equal_scores_the_earlier_span_then_the_smaller_id_is_named() -> None:
    late, early = Span("a", "planner", 0.5, 20), Span("b", "planner", 0.5, 10)
    same = Span("c", "planner", 0.5, 10)
    assert reduce_trace([late, same, early], "x", allow_scalar=False).argmax_span_id == "b"


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.3, 0.3, 0.9]), st.integers(0, 2)), min_size=1, max_size=8
    ),
    st.data(),
)
def test_order_of_the_spans_does_not_matter(
    values: list[tuple[float, int]], data: st.DataObject
) -> None:
    spans = [Span(str(n), "planner", score, start) for n, (score, start) in enumerate(values)]
    shuffled = data.draw(st.permutations(spans))
    one = reduce_trace(spans, "x", allow_scalar=False)
    assert reduce_trace(shuffled, "x", allow_scalar=False) == one
    assert one.max_score == max(score for score, _ in values)


def test_observation_1_a_long_benign_trace_does_not_mask_the_one_bad_span() -> None:
    """Founding text: 41 spans, mean 0.07, max 0.91; the mean said clean, the incident threshold being 0.30."""
    spans = [Span(f"r{n}", "retrieval", 0.02 + 0.07 * n / 40) for n in range(40)]
    spans.insert(17, Span("shell", "tool_call", 0.91))
    scores = [span.safety_score or 0.0 for span in spans]
    assert sum(scores) / len(scores) == pytest.approx(0.07, abs=0.01)
    verdict = reduce_trace(spans, "tool_chaining", allow_scalar=False)
    assert verdict == TraceVerdict(0.91, "shell", 41, "tool_chaining")
    with pytest.raises(NonAggregableTraceError):
        reduce_trace(spans, "tool_chaining", allow_scalar=True)


def test_its_error_is_in_our_tree_and_a_runtime_error_as_in_the_founding_text() -> None:
    assert issubclass(NonAggregableTraceError, (MonitorError,))
    assert issubclass(NonAggregableTraceError, RuntimeError)


def test_public_surface() -> None:
    assert monitor.__all__ == [
        "RELATIONAL_POLICY_CLASSES",
        "MonitorError",
        "NonAggregableTraceError",
        "Span",
        "TraceVerdict",
        "reduce_trace",
    ]


def test_the_documented_example_runs() -> None:
    failed, tried = doctest.testmod(monitor, optionflags=doctest.ELLIPSIS)
    assert (failed, tried > 0) == (0, True)


def test_import_is_light() -> None:
    code = "import sys, monitor; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    heavy = {
        "faust",
        "aiokafka",
        "numpy",
        "scipy",
        "aiohttp",
        "pydantic",
        "prometheus_client",
        "google.protobuf",
    }
    assert heavy.isdisjoint(loaded)
