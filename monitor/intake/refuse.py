"""Refusals: dead letters and faults, made in one place."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from monitor.intake.batch import Batch
from monitor.intake.scores import Refusal
from monitor.model import DeadLetter, OrphanFault, Source, SpanFault

_DETAIL: Final = 300  # characters: a detail names a field and a kind, never content
_SCORER: Final = 128  # characters of a scorer that no reader of scores has cut yet: as the default bound of a label


def item(batch: Batch, reason: str, detail: str, source: Source, value: bytes) -> None:
    """A record whole, or one span of it."""
    batch.counts["rejected", reason] += 1
    batch.dead_letters.append(
        DeadLetter(reason=reason, detail=detail[:_DETAIL], source=source, value=value)
    )


def score(
    batch: Batch,
    trace_id: str | None,
    span_id: str | None,
    refusal: Refusal,
    source: Source,
    value: bytes,
) -> None:
    """One score; its span lives on without it."""
    batch.counts["rejected", refusal.reason] += 1
    batch.dead_letters.append(
        DeadLetter(
            reason=refusal.reason,
            detail=refusal.detail[:_DETAIL],
            source=source,
            trace_id=trace_id,
            span_id=span_id,
            scorer=None if refusal.scorer is None else refusal.scorer[:_SCORER],
            value=value,
        )
    )


def span(
    batch: Batch, trace_id: str | None, span_id: str | None, fault: SpanFault, value: bytes
) -> None:
    """A span of unusable identity: a fault for the fold, and a dead letter."""
    if trace_id is None:
        batch.orphans.append(OrphanFault(fault_id(fault.source), fault))
    else:
        batch.faults.setdefault(trace_id, []).append(fault)
    batch.counts["faults", fault.fault] += 1
    batch.counts["rejected", fault.fault] += 1
    batch.dead_letters.append(
        DeadLetter(
            reason=fault.fault,
            detail=fault.detail,
            source=fault.source,
            trace_id=trace_id,
            span_id=span_id,
            value=value,
        )
    )


def fault_id(source: Source) -> str:
    """Hex hash of the coordinates: the same record gives the same id, whenever it is read."""
    at = f"{source.topic}\0{source.partition}\0{source.offset}\0{source.index}"
    return blake2b(at.encode(), digest_size=16).hexdigest()
