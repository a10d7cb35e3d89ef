"""A neighbourhood in words."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monitor.alerting.words import WORDS_LIMIT, in_words
from monitor.model import Neighbourhood, Source, SpanEvidence
from tests.alerting.incidents import incident


def span(span_id: str, role: str = "planner", **changes: Any) -> SpanEvidence:
    fields: dict[str, Any] = {
        "span_id": span_id,
        "parent_span_id": None,
        "role": role,
        "service": "shop",
        "name": "",
        "model_version": "m",
        "score": None,
        "content_hash": "0",
        "source": Source("agent-spans", 0, 1, 0, 0),
    }
    return SpanEvidence(**{**fields, **changes})


def test_spans_are_named_causes_first_with_what_they_did() -> None:
    made = incident(
        argmax_span_id="c",
        neighbourhood=Neighbourhood("partial", "c", ("a", "b", "c"), (), ("x", "y")),
        evidence=(
            span("a", "retrieval", tool_name="fetch", tags=("untrusted_read",), score=0.02),
            span("b"),
            span(
                "c", "tool_call", name="span", tool_name="send_mail", tags=("egress",), score=0.91
            ),
        ),
    )
    assert in_words(made) == (
        "retrieval fetch [untrusted_read] 0.02 → planner → tool_call send_mail [egress] 0.91 (highest) (2 missing)"
    )


def test_of_many_spans_those_next_to_the_centre_are_named() -> None:
    made = incident(
        argmax_span_id="s9",
        neighbourhood=Neighbourhood("edges", "s5"),
        evidence=tuple(span(f"s{n}", name=f"n{n}") for n in range(20)),
    )
    assert in_words(made) == (
        "planner n2 → planner n3 → planner n4 → planner n5 → planner n6 → planner n7 (14 more)"
    )


def test_where_identity_is_broken_nothing_is_drawn_in_words_either() -> None:
    made = incident(neighbourhood=Neighbourhood("refused"), evidence=(span("a"),))
    assert in_words(made) == "not drawn: the ids of its spans cannot be trusted"
    assert in_words(incident(evidence=())) == ""


@given(st.lists(st.text(max_size=300), min_size=1, max_size=30), st.integers(0, 10**6))
def test_law_it_is_bounded(names: list[str], gaps: int) -> None:
    spans = tuple(
        span(str(n), role=name, tool_name=name * 40, tags=(name,) * 20)
        for n, name in enumerate(names)
    )
    made = incident(
        neighbourhood=Neighbourhood("partial", "0", gaps=("g",) * (gaps % 5)), evidence=spans
    )
    assert len(in_words(made)) <= WORDS_LIMIT
