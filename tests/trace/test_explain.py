"""A record is derived again from the log of its own trace, and what was changed there is found."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from hypothesis import given, settings

from monitor.codec import decode_fold_record, encode_fold_record
from monitor.errors import UndecodableRecord
from monitor.model import Fragment, Incident, SettingsRecord, Verdict
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
from tests.trace.folding import Log, scored, settings_record, tid
from tests.trace.test_fold_laws import ROOMY, Entry, logs, run


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


def roomy(entry: Entry) -> Entry:
    """No record says at which span of a fragment a budget closed a life, or took it away: none does here."""
    try:
        record = decode_fold_record(entry.raw)
    except UndecodableRecord:
        return entry
    if not isinstance(record, SettingsRecord):
        return entry
    return dataclasses.replace(entry, raw=encode_fold_record(settings_record(ROOMY, record.rank)))


@given(logs())
@settings(max_examples=200, deadline=None)
def test_every_record_of_a_trace_within_its_limits_is_derived_again(log: list[Entry]) -> None:
    log = [roomy(entry) for entry in log]
    done = run(log)
    entries = [entry.raw for entry in log]
    judged = {(r.trace_id, r.life) for r in done.records if isinstance(r, Verdict)}
    for record in done.records:
        if not isinstance(record, Verdict | Incident) or record.trace_id is None:
            continue
        if (record.trace_id, record.life) not in judged:
            continue
        if items_of(entries, record.trace_id) > ROOMY.lifecycle.max_spans:
            continue
        derived = derived_again(record, followed(record, done.records, entries, RULES))
        assert derived is not None, record
        assert differences(record, derived) == []


def an_incident() -> tuple[Log, list[bytes]]:
    log = Log()
    entries = [encode_fold_record(settings_record(FoldSettings()))]
    for spans in (
        (scored(0), scored(1, 0, 0.2, name="plan")),
        (scored(2, 1, 0.9, name="run shell"), scored(3, 1, 0.1, name="read file")),
    ):
        fragment = Fragment(tid("a"), spans)
        entries.append(encode_fold_record(fragment))
        log.put(fragment)
    log.until(10)
    return log, entries


DEFAULT_RULES = Rules(FoldSettings(), FoldSettings().sha256, FoldSettings().canonical())


def test_an_incident_and_its_verdict_are_the_same_again() -> None:
    log, entries = an_incident()
    for record in (*log.incidents, *log.verdicts):
        derived = derived_again(record, followed(record, log.records, entries, DEFAULT_RULES))
        assert derived is not None
        assert differences(record, derived) == []
        assert changed_fragments(record, derived) == []
    assert all(seal_holds(incident) for incident in log.incidents)


def test_one_byte_that_was_changed_is_found_in_its_field_and_its_fragment() -> None:
    log, entries = an_incident()
    entries[2] = entries[2].replace(b"run shell", b"run shelf")
    record = log.incidents[-1]
    derived = derived_again(record, followed(record, log.records, entries, DEFAULT_RULES))
    assert derived is not None
    paths = {difference.path: difference for difference in differences(record, derived)}
    named = next(d for path, d in paths.items() if path.startswith("evidence."))
    assert (named.recorded, named.derived) == ("run shell", "run shelf")
    assert changed_fragments(record, derived) == [2]


def test_an_incident_that_was_edited_breaks_its_seal() -> None:
    log, _ = an_incident()
    assert not seal_holds(msgspec.structs.replace(log.incidents[-1], max_score=0.1))
