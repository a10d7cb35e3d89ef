"""The public guard: reduce a trace to a structured object, or refuse. Never to an average.

Safety scores grow with danger: 0 is safe, 1 violates the policy. Trace safety is bounded below by the highest
span score only where spans are causally independent and the policy looks at one unit at a time; the spans of
an agent are neither. So what comes out is the highest score, which span had it and out of how many, and a
caller who wants to turn the trace into a scalar has to say so and is told when that would be wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Final, Protocol

from monitor.errors import NonAggregableTraceError
from monitor.model import is_per_unit

LISTED_IDS: Final = 50  # of repeated ids in a message


class ScoredSpan(Protocol):
    """What the guard reads of a span. Any object that has it will do, `monitor.model.Span` among them."""

    @property
    def span_id(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def safety_score(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Span:
    """A span as the guard needs it. The pipeline's own, with everything else, is `monitor.model.Span`."""

    span_id: str
    role: str  # planner | retrieval | tool_call | completion | unknown
    safety_score: float | None  # [0, 1], grows with danger; None: not scored
    start_unix_nano: int = 0


@dataclass(frozen=True, slots=True)
class TraceVerdict:
    """A trace's reduction: the highest score, the span that had it, and the denominator."""

    max_score: float
    argmax_span_id: str
    span_count: int
    policy_class: str


def reduce_trace(
    spans: Sequence[ScoredSpan], policy_class: str, *, allow_scalar: bool
) -> TraceVerdict:
    """Reduce the scores of one trace to ``{max_score, argmax_span_id, span_count, policy_class}``.

    spans         all scored spans of one trace; order does not matter
    policy_class  what the scores are about. ``per_unit`` (or ``per_unit`` with a suffix, as in
                  ``per_unit:pii``) looks at one unit at a time; every other class, also one that is not
                  known, is about the trace as a whole
    allow_scalar  the caller means to make one number of the trace (a mean, say)

    Among equal scores the span that started first is named, then the one with the smaller id.

    Raises `NonAggregableTraceError` where there are no spans; where a span_id is missing or there twice (also
    for an identical copy: the guard cannot know); where ``allow_scalar`` meets a class that is not per-unit;
    where a score is missing, not a number, or outside [0, 1].
    """
    if not spans:
        raise NonAggregableTraceError("empty trace: no spans to score; wait for the trace's spans")
    _refuse_broken_identity(spans)
    if allow_scalar and not is_per_unit(policy_class):
        raise NonAggregableTraceError(
            f"policy class {policy_class!r} is relational or unknown: a scalar would dilute the argmax span "
            "and must not be emitted; pass allow_scalar=False and use max_score with argmax_span_id"
        )
    top, top_rank = spans[0], (-1.0, 0, "")
    for span in spans:
        score = _valid_score(span)
        rank = (score, -int(getattr(span, "start_unix_nano", 0)), span.span_id)
        if rank[:2] > top_rank[:2] or (rank[:2] == top_rank[:2] and rank[2] < top_rank[2]):
            top, top_rank = span, rank
    return TraceVerdict(top_rank[0], top.span_id, len(spans), policy_class)


def _refuse_broken_identity(spans: Sequence[ScoredSpan]) -> None:
    ids: list[object] = [span.span_id for span in spans]
    unnamed = sum(not isinstance(span_id, str) or not span_id for span_id in ids)
    if unnamed:
        raise NonAggregableTraceError(
            f"{unnamed} of {len(ids)} spans have no span_id; give every span its own"
        )
    if len(set(ids)) != len(ids):
        repeated = sorted(str(span_id) for span_id, n in Counter(ids).items() if n > 1)
        more = f" and {len(repeated) - LISTED_IDS} more" if len(repeated) > LISTED_IDS else ""
        raise NonAggregableTraceError(
            f"duplicate span_id within trace scope: {repeated[:LISTED_IDS]}{more}; a join would cross-link "
            "sub-agents, so make ids unique across them"
        )


def _valid_score(span: ScoredSpan) -> float:
    score: object = span.safety_score
    if isinstance(score, bool) or not isinstance(score, Real) or not 0.0 <= float(score) <= 1.0:
        raise NonAggregableTraceError(
            f"span {span.span_id} safety score {score!r} is not a number in [0, 1]; a missing score is not 0: "
            "leave the span out and say so, or score it"
        )
    return float(score)
