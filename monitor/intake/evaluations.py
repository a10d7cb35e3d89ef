"""Scores out of attributes, span events and evaluation spans, and the span that each one judges.

A score on a span judges that span. A score of an evaluator or guardrail span, or one that names a target,
judges the span named by id attributes or by a span link; never the parent, however likely that looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from monitor.intake import reasons, refuse
from monitor.intake.batch import Batch
from monitor.intake.bounds import Bounds
from monitor.intake.found import Found
from monitor.intake.ids import SPAN_BYTES, TRACE_BYTES, hex_id
from monitor.intake.scores import Refusal, Scales
from monitor.intake.tokens import parse
from monitor.model import EVALUATOR, GUARDRAIL, ROLES, UNKNOWN, Link, Score, Source, SpanScore

JUDGES = (EVALUATOR, GUARDRAIL)


class Given(NamedTuple):
    """A score as it arrived."""

    scorer: str | None
    value: Any
    label: Any = None
    version: str | None = None

    def read(self, scales: Scales) -> Score | Refusal:
        if not self.scorer or not isinstance(self.scorer, str):
            return Refusal(reasons.SCORE_NO_SCORER, "a score has no scorer", None)
        return scales.score(self.scorer, self.value, self.version, self.label)


def of_attributes(found: Found) -> Iterator[Given]:
    """Scores that attributes of a span, event or log record give."""
    for scorer, value in found.many.get("score", ()):
        yield Given(scorer, value)
    name, value, label = (
        found.text("evaluation_name"),
        found.get("evaluation_value"),
        found.get("evaluation_label"),
    )
    if value is not None or label is not None:
        yield Given(name, value, label)


def of_output(found: Found, name: str) -> Iterator[Given]:
    """Scores in the output of an evaluator span: OpenInference's JSON object or list of them; Langfuse's
    bare number, whose scorer is the span's name."""
    output = found.get("output")
    if isinstance(output, str):
        output, _ = parse(output)
    if isinstance(output, bool) or output is None:
        return
    if isinstance(output, int | float):
        yield Given(name, output)
    if isinstance(output, str):
        inner, _ = parse(output)
        if isinstance(inner, int | float) and not isinstance(inner, bool):
            yield Given(name, inner)
    for each in output if isinstance(output, list) else [output]:
        if isinstance(each, dict) and ("score" in each or "label" in each) and "name" in each:
            scorer = each["name"]
            yield Given(
                scorer if isinstance(scorer, str) else None, each.get("score"), each.get("label")
            )


class Scorekeeper:
    """Reads given scores and puts them where they belong."""

    def __init__(self, scales: Scales, bounds: Bounds) -> None:
        self._scales = scales
        self._limit = bounds.scores
        self._label = bounds.label

    def accept(
        self,
        given: list[Given],
        trace_id: str | None,
        span_id: str | None,
        source: Source,
        batch: Batch,
    ) -> tuple[Score, ...]:
        """The good ones, one a scorer version; every other is a dead letter of its own.

        Of several that one scorer version gave nothing says which is meant, so the highest counts; and past
        the limit the highest stay. A score must not hide behind others that are lower.
        """
        kept: dict[tuple[str, str], Score] = {}
        for each in given:
            read = each.read(self._scales)
            if isinstance(read, Score):
                if len(read.scorer) > self._label or len(read.version) > self._label:
                    batch.counts["clipped", "scorer"] += 1
                    read = Score(
                        read.scorer[: self._label], read.version[: self._label], read.value
                    )
                known = kept.get((read.scorer, read.version))
                if known is not None:
                    if read.value > known.value:
                        kept[read.scorer, read.version] = read
                    continue
                kept[read.scorer, read.version] = read
                if len(kept) <= self._limit:
                    continue
                lowest = min(reversed(kept.values()), key=lambda score: score.value)
                del kept[lowest.scorer, lowest.version]
                if lowest is not read:
                    each = Given(lowest.scorer, lowest.value, version=lowest.version)
                read = Refusal(
                    reasons.TOO_MANY_SCORES,
                    f"more than {self._limit} scorers on one span",
                    lowest.scorer,
                )
            refuse.score(batch, trace_id, span_id, read, source, value_of(each))
        return tuple(kept.values())

    def detach(
        self,
        scores: tuple[Score, ...],
        targets: list[Link],
        service: str,
        role: str,
        trace_id: str | None,
        span_id: str | None,
        source: Source,
        batch: Batch,
    ) -> None:
        """Ties the scores of an evaluation span to their targets; without one they are refused."""
        for score in scores:
            if not targets:
                refusal = Refusal(
                    reasons.NO_SPAN_ID,
                    "an evaluation with neither span link nor id attributes",
                    score.scorer,
                )
                given = Given(score.scorer, score.value, version=score.version)
                refuse.score(batch, trace_id, span_id, refusal, source, value_of(given))
            for target in targets:
                batch.counts["detached_scores", score.scorer] += 1
                batch.scores.setdefault(target.trace_id, []).append(
                    SpanScore(target.span_id, score, service, role, source)
                )


def targets_of(
    found: Found, trace_id: str | None, links: tuple[Link, ...], kind: int
) -> list[Link] | None:
    """Spans that this span's scores judge; None: itself. Id attributes go before links."""
    named = found.text("target_span")
    if named is not None:
        span_id = hex_id(named, SPAN_BYTES)
        own = found.text("target_trace")
        target_trace = trace_id if own is None else hex_id(own, TRACE_BYTES)
        if span_id is not None and target_trace is not None:
            return [Link(target_trace, span_id)]
        return []
    return list(links) if kind in JUDGES else None


def value_of(given: Given) -> bytes:
    """A refused score as JSON, the way the native format writes one; NaN and infinities by name."""
    value = given.value
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        value = repr(value)
    parts = {"scorer": given.scorer, "version": given.version, "value": value, "label": given.label}
    return msgspec.json.encode(
        {key: part for key, part in parts.items() if part is not None or key == "value"}
    )


def role_of(found: Found) -> str:
    """Role of the judged unit, if the score's own attributes name it."""
    role = found.text("target_role")
    return role if role in ROLES else UNKNOWN
