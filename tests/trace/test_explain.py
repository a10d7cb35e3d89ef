"""A record is derived again from the log of its own trace, and what was changed there is found."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings

from monitor.codec import decode_fold_record, encode_fold_record
from monitor.model import Fragment, Incident, Verdict
from monitor.trace.config import FoldSettings
from monitor.trace.explain import (
    Explained,
    LoggedFragment,
    Relived,
    changed_fragments,
    derived_again,
    differences,
    relive,
    residue_left,
    seal_holds,
)
from monitor.trace.rules import Rules
from tests.trace.folding import Log, late_score, scored, tid
from tests.trace.test_fold_laws import ROOMY, Entry, Run, logs, run
from tests.trace.truth import sid


def logged(entries: list[bytes], trace_id: str) -> list[LoggedFragment]:
    found = []
    for offset, raw in enumerate(entries):
        try:
            record = decode_fold_record(raw)
        except Exception:  # noqa: BLE001 - broken on purpose
            continue
        if isinstance(record, Fragment) and record.trace_id == trace_id:
            found.append(LoggedFragment(offset, raw))
    return found


def followed(record: Explained, records: list[Any], entries: list[bytes], rules: Rules) -> Relived:
    def of(life: int | None) -> list[Explained]:
        return [
            r
            for r in records
            if isinstance(r, Verdict | Incident) and (r.trace_id, r.life) == (record.trace_id, life)
        ]

    assert record.trace_id is not None
    mine = of(record.life)
    before = next((r.continues for r in mine if isinstance(r, Verdict) and r.continues), None)
    residue = ()
    if before is not None:
        residue = residue_left(followed(of(before)[-1], records, entries, rules))
    return relive(logged(entries, record.trace_id), mine, rules, residue)


RULES = Rules(ROOMY, ROOMY.sha256, ROOMY.canonical())


def items_of(entries: list[bytes], trace_id: str) -> int:
    fragments = [decode_fold_record(f.raw) for f in logged(entries, trace_id)]
    return sum(len(f.spans) + len(f.faults) for f in fragments if isinstance(f, Fragment))


@given(logs())
@settings(max_examples=200, deadline=None)
def test_every_record_of_a_trace_within_its_limits_is_derived_again(log: list[Entry]) -> None:
    done = run(log)
    entries = [entry.raw for entry in log]
    verdicts = [r for r in done.records if isinstance(r, Verdict)]
    judged = {(r.trace_id, r.life) for r in verdicts}
    # No record says within which fragment the budget closed a life.
    squeezed = {r.trace_id for r in verdicts if r.closed_by == "pressure"}
    for record in done.records:
        if not isinstance(record, Verdict | Incident) or record.trace_id is None:
            continue
        roomy = record.provenance.settings == ROOMY.sha256
        if not roomy or (record.trace_id, record.life) not in judged:
            continue
        if record.trace_id in squeezed:
            continue
        if items_of(entries, record.trace_id) > ROOMY.lifecycle.max_spans:
            continue
        derived = derived_again(record, followed(record, done.records, entries, RULES))
        assert derived is not None, record
        assert differences(record, derived) == []
