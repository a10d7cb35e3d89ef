"""What is known of a trace, from topics or files: its records, its fragments, the settings. And what follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from monitor.codec import decode_fold_record, decode_output
from monitor.errors import MonitorError, UndecodableRecord
from monitor.model import Fragment, Incident, SettingsRecord, Span, Verdict
from monitor.replay.lines import captured_message, decode_value, raw_lines
from monitor.trace.explain import (
    Difference,
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
from monitor.trace.fold import FOLD_VERSION
from monitor.trace.judge import PAST_LIMIT
from monitor.trace.records import LISTED_SPANS
from monitor.trace.rules import Rules

# Lives of one trace id that continue each other and are followed back; a longer chain is one of an id that is never
# done, and a residue is bounded whatever came before.
_CHAIN: Final = 20


class NotDerivable(MonitorError):
    """Something that the record rests on is not here any more."""


class Explanation(msgspec.Struct, frozen=True):
    """derived: None where the log gives no such record. changed: offsets of fragments that are not those that were
    judged. unlisted: of fragments of this life that no record of it lists. seal: whether an incident's digest is that of its content; None for a verdict."""

    record: Explained
    derived: Explained | None
    differences: list[Difference]
    changed: list[int]
    unlisted: list[int]
    seal: bool | None
    relived: Relived

    @property
    def same(self) -> bool:
        return (
            self.derived is not None
            and not self.differences
            and not self.changed
            and not self.unlisted
            and self.seal is not False
        )


class Evidence:
    """Filled by whoever reads topics or files, in the order of the log."""

    def __init__(self) -> None:
        self.records: list[Explained] = []
        self.fragments: dict[tuple[int, str], list[LoggedFragment]] = {}
        self.settings: dict[str, bytes] = {}

    def add_output(self, value: bytes) -> None:
        """A value of the verdicts or incidents topic, or a line of `monitor replay --json`; others are passed over."""
        try:
            output = decode_output(value)
        except UndecodableRecord:
            return
        if isinstance(output, Verdict | Incident) and output.trace_id is not None:
            self.records.append(output)

    def add_logged(
        self, partition: int, offset: int, value: bytes, only: str | None = None
    ) -> None:
        """A record of the fragments topic; ``only``: of fragments those of this trace."""
        try:
            record = decode_fold_record(value)
        except UndecodableRecord:
            return
        if isinstance(record, Fragment):
            if only is None or record.trace_id == only:
                key = (partition, record.trace_id)
                self.fragments.setdefault(key, []).append(LoggedFragment(offset, value))
        elif isinstance(record, SettingsRecord):
            self.settings[record.sha256] = record.content

    def last(self, what: str) -> list[Explained]:
        """Of an incident its last revision; of a trace the last verdict of each life, else its incidents."""
        incidents = [r for r in self.records if isinstance(r, Incident) and r.incident_id == what]
        if incidents:
            return [max(incidents, key=lambda incident: incident.revision)]
        verdicts: dict[int | None, Verdict] = {}
        for record in self.records:
            if isinstance(record, Verdict) and record.trace_id == what:
                known = verdicts.get(record.life)
                if known is None or record.revision >= known.revision:
                    verdicts[record.life] = record
        if verdicts:
            return list(verdicts.values())
        pending: dict[str, Explained] = {}
        for record in self.records:
            if isinstance(record, Incident) and record.trace_id == what:
                pending[record.incident_id] = record
        return list(pending.values())

    def explain(self, record: Explained) -> Explanation:
        """Derive the record again. Raises NotDerivable."""
        if record.provenance.fold_version != FOLD_VERSION:
            raise NotDerivable(
                f"made by fold version {record.provenance.fold_version}, this build has {FOLD_VERSION}: the same log "
                "may well give another record; use the build that made it"
            )
        relived = self._followed(record, _CHAIN)
        derived = derived_again(record, relived)
        return Explanation(
            record,
            derived,
            [] if derived is None else differences(record, derived),
            [] if derived is None else changed_fragments(record, derived),
            self._unlisted(record),
            seal_holds(record) if isinstance(record, Incident) else None,
            relived,
        )

    def _followed(self, record: Explained, chain: int) -> Relived:
        cause = record.provenance
        assert record.trace_id is not None, record
        fragments = self.fragments.get((cause.partition, record.trace_id), [])
        here = {fragment.offset for fragment in fragments}
        gone = [offset for offset in cause.fragment_offsets if offset not in here]
        if gone:
            raise NotDerivable(
                f"trace {record.trace_id}: fragments at offsets {_few(gone)} of partition {cause.partition} are not "
                "here; the fragments topic keeps MONITOR_FRAGMENTS_RETENTION"
            )
        content = self.settings.get(cause.settings)
        if content is None:
            raise NotDerivable(
                f"settings {cause.settings[:12]} are neither in the settings topic nor in the log"
            )
        records = self._of_life(record.trace_id, record.life)
        return relive(
            fragments,
            records,
            Rules.from_content(cause.settings, content),
            self._residue(records, chain),
        )

    def _unlisted(self, record: Explained) -> list[int]:
        """A record could leave out the very fragment that speaks against it. Not told apart where a life had more than a
        record lists, or where spans came past its limit."""
        assert record.trace_id is not None, record
        mine = self._of_life(record.trace_id, record.life)
        listed = {o for r in mine for o in r.provenance.fragment_offsets}
        past_limit = any(f.kind == PAST_LIMIT for r in mine for f in r.forensics.faults)
        if past_limit or any(len(r.provenance.fragment_offsets) >= LISTED_SPANS for r in mine):
            return []
        births = {r.life for r in self.records if r.trace_id == record.trace_id}
        later = [b for b in births if b is not None and b > record.provenance.life]
        end = min(later, default=None)
        return [
            fragment.offset
            for fragment in self.fragments.get((record.provenance.partition, record.trace_id), [])
            if fragment.offset >= record.provenance.life
            and (end is None or fragment.offset < end)
            and fragment.offset not in listed
        ]

    def _of_life(self, trace_id: str, life: int | None) -> list[Explained]:
        return [r for r in self.records if r.trace_id == trace_id and r.life == life]

    def _residue(self, records: list[Explained], chain: int) -> tuple[Span, ...]:
        verdicts = [r for r in records if isinstance(r, Verdict) and r.continues is not None]
        if not verdicts or not chain:
            return ()
        before = self._of_life(verdicts[0].trace_id, verdicts[0].continues)
        return residue_left(self._followed(before[-1], chain - 1)) if before else ()


def _few(offsets: list[int]) -> str:
    return ", ".join(map(str, offsets[:5])) + (", …" if len(offsets) > 5 else "")


def add_dump(evidence: Evidence, paths: list[Path]) -> None:
    """A dump of the fragments topic. Raises UnreadableFile."""
    for line in raw_lines(paths):
        message = captured_message(line)
        if message.value_b64 is not None and message.offset is not None:
            value = decode_value(line.where, message)
            evidence.add_logged(message.partition, message.offset, value)


def add_records(evidence: Evidence, paths: list[Path]) -> None:
    """Dumps of the verdicts and incidents topics, or lines that `monitor replay --json` printed."""
    for line in raw_lines(paths):
        if b'"value_b64"' in line.raw:
            evidence.add_output(decode_value(line.where, captured_message(line)))
        else:
            evidence.add_output(line.raw)
