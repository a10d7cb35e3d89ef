"""Scores out of attributes, span events, log records and evaluation spans, and the span that each one judges.

A score on a span judges that span. A score of an evaluator or guardrail span, of a log record, or one that names
a target, judges the span named by id attributes, by a span link or by the record's own ids; never the parent,
however likely that looks. A score of a whole trace or session is no span's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from monitor.intake import reasons, refuse
from monitor.intake.batch import Batch
from monitor.intake.bounds import Bounds
from monitor.intake.conventions import JUDGED, JUDGED_CALLS
from monitor.intake.found import Found
from monitor.intake.ids import SPAN_BYTES, TRACE_BYTES, hex_id
from monitor.intake.scores import Refusal, Scales, number_in
from monitor.intake.tokens import parse
from monitor.model import (
    EVALUATOR,
    GUARDRAIL,
    ROLES,
    UNKNOWN,
    Link,
    Score,
    Source,
    SpanScore,
    judged_role,
)

JUDGES = (EVALUATOR, GUARDRAIL)
_WORD: Final = (
    64  # characters of an evaluator's bare output that is a label rather than an explanation
)


class Given(NamedTuple):
    """A score as it arrived. ``wider``: it is of a whole trace or session."""

    scorer: str | None
    value: Any
    label: Any = None
    version: str | None = None
    judged: str = ""
    wider: bool = False

    def read(self, scales: Scales, limit: int) -> Score | Refusal:
        """``limit``: characters of a scorer's name and version."""
        scorer, version = self.scorer, self.version
        if not scorer:
            return Refusal(reasons.SCORE_NO_SCORER, "a score has no scorer", None)
        if self.wider:
            detail = "a score of a whole trace or session is no span's"
            return Refusal(reasons.NO_SPAN_ID, detail, scorer[:limit])
        read = scales.score(scorer, self.value, version, self.label)
        if len(scorer) > limit:
            scorer = scorer[:limit]
        if isinstance(read, Refusal):
            return Refusal(read.reason, read.detail, scorer)
        if self.judged or scorer != read.scorer or len(read.version) > limit:
            return Score(scorer, read.version[:limit], read.value, self.judged)
        return read


def of_attributes(found: Found) -> Iterator[Given]:
    """Scores that attributes of a span, event or log record give."""
    many, best = found.many, found.best
    judged = _judged(found)[0] if "judged" in best else ""
    version = found.text("evaluation_version") if "evaluation_version" in best else None
    for scorer, value in many.get("score", ()):
        yield Given(scorer, value, None, version, judged)
    if "score_label" in many:
        valued = {scorer for scorer, _ in many.get("score", ())}
        for scorer, label in many["score_label"]:
            if scorer not in valued:
                yield Given(scorer, None, label, version, judged)
    value, label = found.get("evaluation_value"), found.get("evaluation_label")
    if value is not None or label is not None:
        yield Given(found.text("evaluation_name"), value, label, version, judged)
    if "risk_value" in best:
        yield Given(found.text("risk_name"), found.get("risk_value"), None, version, judged)
    if "annotation" in many:
        yield from _annotations(many["annotation"], judged, wider=False)
    if "wider_score" in many:
        yield from _annotations(many["wider_score"], judged, wider=True)


def _annotations(parts: list[tuple[str, Any]], judged: str, *, wider: bool) -> Iterator[Given]:
    """Flattened feedback: ``annotations.0.annotation.name``, ``….score``, ``….label``, ``….identifier``; or,
    where the attribute's name holds the scorer's, the score alone."""
    together: dict[str, dict[str, Any]] = {}
    for label, value in parts:
        head, _, part = label.rpartition(".")
        if head.endswith((".annotation", ".evaluation")):
            together.setdefault(head, {})[part] = value
        else:
            yield Given(label, value, None, None, judged, wider)
    for said in together.values():
        if "score" in said or "label" in said:
            version = _text(said.get("identifier"))
            yield Given(
                _text(said.get("name")),
                said.get("score"),
                said.get("label"),
                version,
                judged,
                wider,
            )


def of_output(found: Found, name: str) -> Iterator[Given]:
    """Scores of an evaluator or guardrail span that lie in its output: an object or a list of them with name,
    score and label (OpenInference), a bare number, boolean or label (Langfuse); else Langfuse's metadata. A score
    without a name is that of the scorer that the span is called after."""
    output = found.get("output")
    if isinstance(output, str):
        inner, _ = parse(output)
        output = output if inner is None else inner
    if isinstance(output, str):  # perhaps JSON inside a JSON string
        inner, _ = parse(output)
        output = inner if isinstance(inner, dict | list) else output
    judged = _judged(found)[0]
    scores = 0
    for each in output if isinstance(output, list) else [output]:
        match each:
            case {"score": value}:
                given = Given(_text(each.get("name", name)), value, each.get("label"), None, judged)
            case {"name": scorer, "label": label}:
                given = Given(_text(scorer), None, label, None, judged)
            case bool() | int() | float():
                given = Given(name, each, None, None, judged)
            case str() if number_in(each[:_WORD]) is not None:
                given = Given(name, each, None, None, judged)
            case str() if each and len(each) <= _WORD and not any(c.isspace() for c in each):
                given = Given(name, None, each, None, judged)
            case _:
                continue
        scores += 1
        yield given
    value = found.get("judge_score")
    if value is not None and not scores:
        if isinstance(value, str):  # Langfuse writes metadata as JSON
            number, _ = parse(value)
            value = number if isinstance(number, bool | int | float) else value
        yield Given(name, value, None, None, judged)


class Scorekeeper:
    """Reads given scores and puts them where they belong."""

    def __init__(self, scales: Scales, bounds: Bounds) -> None:
        self._scales = scales
        self._limit = bounds.scores
        self._label = bounds.label
        # Scores that one evaluation ties to spans: all its links by two scorers, or all its scorers by two links.
        # Their product would let a span of two kilobytes write forty times as much.
        self._tied = bounds.scores + bounds.links

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
            read = each.read(self._scales, self._label)
            if each.scorer is not None and len(each.scorer) > self._label:
                batch.counts["clipped", "scorer"] += 1
            if isinstance(read, Score):
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
        """Ties the scores of an evaluation to their targets, the highest first; without a target, or past the
        bound, they are refused."""
        room = self._tied
        for score in sorted(scores, key=lambda each: -each.value):
            given = Given(score.scorer, score.value, version=score.version)
            if not targets:
                refusal = Refusal(
                    reasons.NO_SPAN_ID,
                    "an evaluation with neither span link nor id attributes (a response id names no span)",
                    score.scorer,
                )
                refuse.score(batch, trace_id, span_id, refusal, source, value_of(given))
            as_role = judged_role(role, score.judged)
            if len(targets) > room:
                refusal = Refusal(
                    reasons.TOO_MANY_SCORES,
                    f"an evaluation ties at most {self._tied} scores to spans; "
                    f"{len(targets) - room} of this one are left out",
                    score.scorer,
                )
                refuse.score(batch, trace_id, span_id, refusal, source, value_of(given))
            for target in targets[:room]:
                batch.counts["detached_scores", score.scorer] += 1
                batch.scores.setdefault(target.trace_id, []).append(
                    SpanScore(target.span_id, score, service, as_role, source)
                )
            room = max(room - len(targets), 0)


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


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def role_of(found: Found) -> str:
    """Role of the judged unit, if the score's own attributes name it."""
    role = found.text("target_role")
    return role if role in ROLES else _judged(found)[1] or UNKNOWN


def _judged(found: Found) -> tuple[str, str]:
    """Which unit of its span a score judged, and the role of that unit; each empty where nothing says."""
    judged, role = JUDGED.get(found.text("judged") or "", ("", ""))
    if judged and not role and found.text("judged_part") in JUDGED_CALLS:
        role = "tool_call" if judged == "input" else "retrieval"
    return judged, role
