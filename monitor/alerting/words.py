"""What is around a span, in words: what a person reads on a telephone instead of a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from monitor.model import Incident, SpanEvidence

WORDS_LIMIT: Final = 400  # characters: a row keeps them three times
BEFORE: Final = 3  # spans named before the one in question: what made the agent do it
AFTER: Final = 2
_NAME_LIMIT: Final = 40  # of a span's or tool's name: six of them fit


def in_words(incident: Incident) -> str:
    """The spans around the centre, causes first, with tool, tags and score; what was left out, and what is missing.

    At most WORDS_LIMIT characters. Names stand in it as the sender wrote them.
    """
    around = incident.neighbourhood
    if around.status == "refused":
        return "not drawn: the ids of its spans cannot be trusted"
    shown, left_out = _chosen(incident.evidence, around.centre or incident.argmax_span_id)
    if not shown:
        return ""
    marked = incident.argmax_span_id
    text = " → ".join(_span(span, argmax=span.span_id == marked) for span in shown)
    notes = []
    if left_out:
        notes.append(f"{left_out} more")
    if around.gaps:
        notes.append(f"{len(around.gaps)} missing")
    end = f" ({', '.join(notes)})" if notes else ""
    room = WORDS_LIMIT - len(end)
    return (text if len(text) <= room else text[: room - 1] + "…") + end


def _chosen(
    evidence: Sequence[SpanEvidence], centre: str | None
) -> tuple[Sequence[SpanEvidence], int]:
    """Those next to the centre, in the record's causal order, and how many are left out."""
    place = next((n for n, span in enumerate(evidence) if span.span_id == centre), 0)
    shown = evidence[max(0, place - BEFORE) : place + AFTER + 1]
    return shown, len(evidence) - len(shown)


def _span(span: SpanEvidence, *, argmax: bool) -> str:
    parts = [span.role]
    name = span.tool_name or span.name
    if name:
        parts.append(name if len(name) <= _NAME_LIMIT else name[: _NAME_LIMIT - 1] + "…")
    if span.tags:
        parts.append(f"[{' '.join(span.tags)}]")
    if span.score is not None:
        parts.append(f"{span.score:.2f}")
    return " ".join(parts) + (" (highest)" if argmax else "")
