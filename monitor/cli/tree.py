"""A trace on the terminal: its spans in causal order with roles, scores and what is known of them."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from rich.text import Text

from monitor.model import MEMBER, Incident, Span
from monitor.policy.causal import parts
from monitor.trace.judge import Judgement

SHOWN: Final = 200  # spans; those of the neighbourhood first, the rest is counted
INDENT_LIMIT: Final = 24  # levels; deeper ones say how deep they are


def tree(judged: Judgement, incident: Incident | None) -> Iterator[Text]:
    """One line a span. Of a rejected trace no tree is drawn: its spans in order of arrival, each by itself."""
    near: set[str] = set()
    centre = argmax = None
    if incident is not None:
        near, argmax = set(incident.span_ids), incident.argmax_span_id
        centre = incident.neighbourhood.centre
    else:
        best = judged.argmax()
        argmax = None if best is None else best.evidence.span_id
    if judged.report.status == "rejected":
        broken = {i for fault in judged.forensics.faults for i in fault.span_ids}
        yield Text("identity is rejected: no tree can be believed; spans as they came", "red")
        for span in _chosen(list(judged.spans), near | broken):
            yield _line(span, 0, argmax, centre, near, broken, judged)
        return
    trees = parts(judged.report)
    spans = [(span, part.depth[span.span_id]) for part in trees for span in part.spans]
    shown = {s.span_id for s in _chosen([span for span, _ in spans], near)}
    hidden = 0
    for span, depth in spans:
        if span.span_id not in shown:
            hidden += 1
            continue
        if hidden:
            yield Text(f"    … {hidden} more", "dim")
            hidden = 0
        if span.parent_span_id is not None and span.parent_span_id not in judged.report.by_id:
            yield Text(f"  ? parent {span.parent_span_id} never came", "yellow")
        yield _line(span, depth, argmax, centre, near, (), judged)
    if hidden:
        yield Text(f"    … {hidden} more", "dim")


def _chosen(spans: list[Span], first: set[str]) -> list[Span]:
    if len(spans) <= SHOWN:
        return spans
    left = SHOWN - sum(span.span_id in first for span in spans)
    chosen = []
    for span in spans:
        if span.span_id in first:
            chosen.append(span)
        elif left > 0:
            left -= 1
            chosen.append(span)
    return chosen[: 2 * SHOWN]


def _line(
    span: Span,
    depth: int,
    argmax: str | None,
    centre: str | None,
    near: set[str],
    broken: Container[str],
    judged: Judgement,
) -> Text:
    indent = "  " * min(depth, INDENT_LIMIT) + (f"({depth}) " if depth > INDENT_LIMIT else "")
    line = Text(f"  {indent}{span.span_id} ")
    line.append(span.role, "" if span.kind == MEMBER else "dim")
    detail = span.detail
    name = (detail.tool_name if detail is not None else None) or span.name
    if name:
        line.append(f" {printable(name)}")
    thresholds = judged.rules.thresholds
    for score in span.scores:
        high = thresholds.reached_by(span, score)
        line.append(
            f" {printable(score.scorer)} {score.value:.3g}", "bold red" if high else "green"
        )
    if detail is not None and detail.tags:
        line.append(f" [{' '.join(detail.tags)}]", "cyan")
    if span.span_id == argmax:
        line.append(" ◀ argmax", "bold red")
    if span.span_id == centre and centre != argmax:
        line.append(" ◀ centre", "bold")
    if span.span_id in broken:
        line.append(" ◀ id broken", "red")
    elif span.span_id in near:
        line.append(" •", "bold")
    if judged.report.status == "rejected":
        source = span.source
        line.append(f"  {source.topic}[{source.partition}]@{source.offset}", "dim")
    return line


def printable(text: str) -> str:
    """Hostile text for a terminal: control characters and what changes the direction of writing shown as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
