"""Which version others are held against: by default the first with enough traces; pinned or promoted by hand."""

from __future__ import annotations

from monitor.drift.ledger import Ledger, Reference
from monitor.drift.messages import BaselineControl
from monitor.drift.report import BaselineRecord


def apply_control(ledger: Ledger, control: BaselineControl, offset: int) -> BaselineRecord:
    """Set the reference of every scorer version that has scored the model version; latched drift opens again."""
    wanted = control.model_version or _current(ledger)
    having = tuple(
        sorted(
            {
                v.scorer_version
                for v in ledger.versions
                if v.scorer_version and v.model_version == wanted
            }
        )
    )
    previous = next((r.model_version for r in reversed(ledger.references)), None)
    applied = wanted is not None and bool(having)
    if wanted is not None and having:
        for scorer_version in having:
            known = ledger.reference(scorer_version)
            if known is None:
                ledger.references.append(Reference(scorer_version, wanted, pinned=True))
            else:
                previous = known.model_version
                known.model_version, known.pinned = wanted, True
        for pair in ledger.pairs:
            if pair.scorer_version in having:
                pair.drifted = pair.tail_drifted = False
        for mix in ledger.mix_pairs:
            mix.shifted = False
        ledger.pairs = [
            p for p in ledger.pairs if p.scorer_version not in having or p.reference == wanted
        ]
        ledger.mix_pairs = [p for p in ledger.mix_pairs if p.reference in (wanted, p.current)]
        ledger.look_due = True
        detail = f"{wanted} is the reference from offset {offset} on"
    elif wanted is None:
        detail = "no version is current yet; name one that was seen"
    else:
        seen = sorted({v.model_version for v in ledger.versions})
        detail = (
            f"model version {wanted} was never seen here; seen: {', '.join(seen[:20]) or 'none'}"
        )
    return BaselineRecord(
        service=control.service,
        scorer=control.scorer,
        action=control.action,
        model_version=wanted,
        previous=previous,
        scorer_versions=having,
        applied=applied,
        detail=detail,
        who=control.who,
        at_ms=control.at_ms,
        why=control.why,
        source_offset=offset,
    )


def _current(ledger: Ledger) -> str | None:
    """The version seen last that is not a reference."""
    held = {(r.scorer_version, r.model_version) for r in ledger.references}
    free = [
        v
        for v in ledger.versions
        if v.scorer_version and (v.scorer_version, v.model_version) not in held
    ]
    latest = max(free, key=lambda v: (v.last, v.first, v.model_version), default=None)
    return None if latest is None else latest.model_version
