"""The fold: state of a fragments partition = fold(its records from offset 0).

Pure. One record, in this order: virtual time moves; every timer that is due runs at its own deadline; then the
record is applied, item by item, limits and thresholds looked at after each. Nothing depends on where a
batch or a fragment ends.

>>> from monitor.codec import encode_fold_record
>>> from monitor.model import Tick
>>> fold = PartitionFold(0)
>>> fold.apply(0, 1_000, encode_fold_record(Tick())); fold.apply(1, 4_000, encode_fold_record(Tick()))
>>> fold.vt, fold.waiting_for_settings, fold.drain().records
(3000, True, [])
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from monitor.codec import decode_fold_record
from monitor.drift.delta import DeltaAccumulator, ScoreDelta
from monitor.errors import UndecodableRecord
from monitor.model import (
    MEMBER,
    PLAIN,
    DeadLetter,
    Fault,
    Forensics,
    Fragment,
    GateRecord,
    Incident,
    OrphanFault,
    ResetRecord,
    SettingsRecord,
    Span,
    SpanScore,
    Verdict,
)
from monitor.trace.closed import ClosedEntry
from monitor.trace.conclude import conclude
from monitor.trace.life import CUTTING, ClosedBy, Life
from monitor.trace.memory import Memory
from monitor.trace.pages import Candidate, Page, fault_candidates, span_candidate
from monitor.trace.pieces import items_size, pieces
from monitor.trace.records import (
    FOLD_VERSION,
    PENDING,
    orphan_incident,
    pending_incident,
    span_not_in_memory,
    state_lost_incident,
    undecodable,
)
from monitor.trace.residue import residue_of
from monitor.trace.rules import Rules
from monitor.trace.snapshot import restore_snapshot, take_snapshot
from monitor.trace.timers import (
    CLOSING,
    DELTAS,
    EVICTION,
    FLUSH,
    REVISIONS,
    Timers,
    VirtualTime,
    next_multiple,
)

__all__ = ["FOLD_VERSION", "FoldOutput", "FoldRecordOut", "PartitionFold"]

FoldRecordOut = Verdict | Incident | ScoreDelta | DeadLetter


class FoldOutput(msgspec.Struct, frozen=True):
    """What came out since the last drain, in order."""

    records: list[FoldRecordOut]
    closed: list[ClosedEntry]
    settings: list[SettingsRecord]  # newly applied


class PartitionFold:
    """State of one partition of the fragments topic."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.counters: dict[str, int] = {}  # since offset 0; survives snapshots
        self._records: list[FoldRecordOut] = []
        self._closed: list[ClosedEntry] = []
        self._settings: list[SettingsRecord] = []
        self._begin(VirtualTime())

    def _begin(self, time: VirtualTime) -> None:
        """The empty state."""
        self.time = time
        self.now = time.vt  # virtual time of what is happening: a timer's deadline, or the record's
        self.timers = Timers()
        self.memory = Memory()
        self.deltas = DeltaAccumulator()
        self.gates: dict[tuple[str, str], str] = {}
        self.gate_offsets: dict[tuple[str, str], int] = {}
        self.rules: Rules | None = None
        self.rank: tuple[int, int] = (0, 0)
        self.held: list[tuple[int, bytes]] = []  # before the first settings
        self.revisions_at: int | None = None
        self.deltas_at: int | None = None

    # --- what the shell asks -------------------------------------------------------------------------

    def apply(self, offset: int, timestamp_ms: int | None, raw: bytes) -> None:
        """Fold one record of the fragments topic.

        timestamp_ms  its LogAppendTime; None where the record has another time type: it passes no time
        raw           its value; content that does not decode is counted, named in a dead letter, skipped
        """
        error = ""
        record = None
        try:
            record = decode_fold_record(raw)
        except UndecodableRecord as undecoded:
            error = str(undecoded)
        if type(record) is ResetRecord:
            self._reset(offset, timestamp_ms, record)
            return
        if timestamp_ms is None:
            self._count("not_log_append_time")
        else:
            self.time.advance(timestamp_ms)
        vt = self.time.vt
        if self.timers.due(vt):
            self._run_timers(vt)
        self.now = vt
        if type(record) is Fragment:
            if self.rules is None:
                self.held.append((offset, raw))
            else:
                self._fragment(offset, raw, record)
        elif record is None:
            self._count("undecodable")
            self._records.append(undecodable(self.partition, offset, timestamp_ms, error))
        elif type(record) is OrphanFault:
            if self.rules is None:
                self.held.append((offset, raw))
            else:
                self._orphan(offset, record)
        elif type(record) is SettingsRecord:
            self._change_settings(record, offset)
        elif type(record) is GateRecord:
            self._gate(record)

    def drain(self) -> FoldOutput:
        """What came out since the last time, in order; it is the caller's then."""
        output = FoldOutput(self._records, self._closed, self._settings)
        self._records, self._closed, self._settings = [], [], []
        return output

    @property
    def vt(self) -> int:
        return self.time.vt

    @property
    def last_ts(self) -> int | None:
        return self.time.last_ts

    @property
    def empty(self) -> bool:
        """Whether time has nothing to do here: no life, residue, held record or sum that is not flushed."""
        memory = self.memory
        return (
            not (memory.opened or memory.closed or memory.residues or self.held)
            and self.deltas_at is None
        )

    @property
    def open_lives(self) -> int:
        return len(self.memory.opened)

    @property
    def closed_lives(self) -> int:
        return len(self.memory.closed)

    @property
    def bytes_open(self) -> int:
        return self.memory.bytes_open

    @property
    def bytes_closed(self) -> int:
        return self.memory.bytes_closed

    @property
    def settings_sha(self) -> str | None:
        return None if self.rules is None else self.rules.sha256

    @property
    def waiting_for_settings(self) -> bool:
        return self.rules is None

    def in_closed_memory(self, life: tuple[str, int]) -> bool:
        """Whether the life (trace_id, birth offset) is closed and still in memory."""
        kept = self.memory.by_trace.get(life[0])
        return kept is not None and kept.birth == life[1] and not kept.open

    def snapshot(self) -> bytes:
        """All of the state but clean closed lives. Drain first: what was not drained is not in it."""
        return take_snapshot(self)

    @classmethod
    def restore(
        cls, partition: int, snapshot: bytes, closed: Iterable[ClosedEntry]
    ) -> PartitionFold:
        """The fold that wrote ``snapshot``; ``closed``: entries of the closed log in order. Raises
        PartitionRefused where the two do not fit together, UndecodableRecord."""
        fold = cls(partition)
        restore_snapshot(fold, snapshot, closed)
        return fold

    # --- time ----------------------------------------------------------------------------------------

    def _run_timers(self, vt: int) -> None:
        timers = self.timers
        while timers.due(vt):
            deadline, order, nth = timers.pop()
            self.now = deadline
            if order == CLOSING:
                self._close_if_due(nth, deadline)
            elif order == EVICTION:
                self._evict_if_due(nth, deadline)
            elif nth == REVISIONS:
                self._flush_revisions()
            else:
                self._flush_deltas()

    def _close_if_due(self, nth: int, deadline: int) -> None:
        life = self.memory.opened.get(nth)
        if life is None or life.scheduled != deadline:
            return
        due, by = life.closing()
        if due > deadline:
            life.scheduled = due
            self.timers.push(due, CLOSING, nth)
        else:
            self._close(life, by)

    def _evict_if_due(self, nth: int, deadline: int) -> None:
        life = self.memory.closed.get(nth)
        if life is not None:
            self._leave(life)
            return
        residue = self.memory.residues.get(nth)
        if residue is not None and residue.deadline == deadline:
            self.memory.take_residue(nth)

    def _flush_revisions(self) -> None:
        self.revisions_at = None
        for nth in sorted(self.memory.dirty):
            self._revise(self.memory.closed[nth])

    def _flush_deltas(self) -> None:
        self.deltas_at = None
        self._records += self.deltas.flush()

    # --- records -------------------------------------------------------------------------------------

    def _fragment(self, offset: int, raw: bytes, fragment: Fragment) -> None:
        memory = self.memory
        life = memory.by_trace.get(fragment.trace_id)
        if life is None:
            life = self._born(fragment.trace_id, offset)
        size = items_size(raw, fragment)
        kept = life.count + len(fragment.spans) + len(fragment.faults)
        rules = self.rules
        assert rules is not None
        self._count("spans", len(fragment.spans))
        if life.open:
            fits = kept < life.rules.max_spans and memory.bytes_open + size <= rules.open_budget
        else:
            self._count("late_spans", len(fragment.spans))
            self._count("late_scores", len(fragment.scores))
            fits = (
                kept <= life.rules.max_spans and memory.bytes_closed + size <= rules.closed_budget
            )
        if fits:
            self._take(life, offset, raw, fragment, size)
            return
        # Some limit is reached within: the same fragment, an item at a time. The life that an item belongs to
        # stays in memory until the record's end, since nothing else can get a later number before that.
        for piece_raw, piece, piece_size in pieces(raw, fragment):
            full = life.count >= life.rules.max_spans and not piece.scores
            if full and not life.open:
                self._count("past_max_spans", len(piece.spans))
                self._thresholds(life, offset, piece, kept=False)
            else:
                self._take(life, offset, piece_raw, piece, piece_size)
            if life.open and life.count >= life.rules.max_spans:
                self._close(life, "max_spans")
            self._keep_budgets()

    def _born(self, trace_id: str, offset: int) -> Life:
        assert self.rules is not None
        memory = self.memory
        life = Life(trace_id, offset, memory.births, self.rules, self.now)
        memory.births += 1
        earlier = memory.residue_of.get(trace_id)
        residue = None if earlier is None else memory.take_residue(earlier)
        if residue is not None:
            self._count("continued")
            life.continues = residue.life
            life.residue = residue.spans
            life.bytes = residue.bytes
            life.cut = True
        memory.add_open(life)
        life.scheduled = self.now + self.rules.max_lifetime_ms
        self.timers.push(life.scheduled, CLOSING, life.nth)
        return life

    def _take(self, life: Life, offset: int, raw: bytes, fragment: Fragment, size: int) -> None:
        """Keep what the fragment holds and look at its thresholds."""
        life.fragments.append((offset, raw))
        life.bytes += size
        life.count += len(fragment.spans) + len(fragment.faults)
        life.last_offset = offset
        content = life.content
        if content is not None:
            content.add(fragment)
        if life.open:
            assert content is not None
            self.memory.bytes_open += size
            life.last_vt = self.now
            life.quiet_by = "root_complete" if content.complete() else "idle"
            deadline, _ = life.closing()
            if deadline < life.scheduled:
                life.scheduled = deadline
                self.timers.push(deadline, CLOSING, life.nth)
        else:
            self.memory.bytes_closed += size
            self._dirty(life)
        lowest = life.rules.lowest
        if not life.waiting and not fragment.scores and not fragment.faults:
            for span in fragment.spans:
                for score in span.scores:
                    if score.value >= lowest:
                        break
                else:
                    continue
                break
            else:
                return
        self._thresholds(life, offset, fragment, kept=True)

    def _orphan(self, offset: int, orphan: OrphanFault) -> None:
        """A span that belongs to no trace cannot be joined; its scores are judged all the same."""
        assert self.rules is not None
        self._count("orphans")
        best: Candidate | None = None
        for candidate in fault_candidates(orphan.fault, self.rules):
            if candidate.threshold is not None and (best is None or candidate.before(best)):
                best = candidate
        if best is not None:
            self._records.append(
                orphan_incident(
                    self.partition,
                    offset,
                    orphan,
                    best,
                    self.rules.sha256,
                    self.time.date(self.now),
                )
            )

    def _gate(self, gate: GateRecord) -> None:
        key = (gate.service, gate.scorer)
        if gate.source_offset <= self.gate_offsets.get(key, -1):
            self._count("gates_passed_over")
            return
        self._count("gates_applied")
        self.gates[key] = gate.state
        self.gate_offsets[key] = gate.source_offset

    def _change_settings(self, record: SettingsRecord, offset: int) -> None:
        """Applied only if it differs from what is in force and ranks higher."""
        if self.rules is not None and (
            record.sha256 == self.rules.sha256 or record.rank <= self.rank
        ):
            self._count("settings_passed_over")
            return
        try:
            self.rules = Rules.from_content(record.sha256, record.content)
        except UndecodableRecord as error:
            self._count("undecodable")
            self._records.append(undecodable(self.partition, offset, self.last_ts, str(error)))
            return
        self.rank = record.rank
        self._count("settings_applied")
        self._settings.append(record)
        held, self.held = self.held, []
        for held_offset, raw in held:
            waited = decode_fold_record(raw)
            if type(waited) is Fragment:
                self._fragment(held_offset, raw, waited)
            elif type(waited) is OrphanFault:
                self._orphan(held_offset, waited)
        self._keep_budgets()

    def _reset(self, offset: int, timestamp_ms: int | None, reset: ResetRecord) -> None:
        """The state was lost: an empty one from here, and the loss said aloud."""
        self._begin(VirtualTime(0, timestamp_ms))
        self._count("resets")
        self._records.append(state_lost_incident(self.partition, offset, reset, self.time.date(0)))
        self._change_settings(reset.settings, offset)

    # --- thresholds: at once, whatever else becomes of the span ---------------------------------------

    def _thresholds(self, life: Life, offset: int, fragment: Fragment, *, kept: bool) -> None:
        rules = life.rules
        lowest = rules.lowest
        for span in fragment.spans:
            if span.kind == MEMBER:
                for score in span.scores:
                    if score.value >= lowest:
                        self._look_at(life, offset, span, score.scorer, score.version, score.value)
            early = life.waiting.get(span.span_id) if life.waiting else None
            if early is not None:
                for waited in early:
                    self._join(life, offset, span, waited)
                if kept:
                    del life.waiting[span.span_id]
        for late in fragment.scores:
            known = life.load().by_id.get(late.span_id)
            if known is None:
                life.waiting.setdefault(late.span_id, []).append(late)
            else:
                self._join(life, offset, known, late)
        for fault in fragment.faults:
            self._count("faults")
            for candidate in fault_candidates(fault, rules):
                if candidate.threshold is not None:
                    forensics = Forensics("rejected", (Fault(fault.fault, (), 1),))
                    self._page(life, offset, candidate, forensics)

    def _join(self, life: Life, offset: int, span: Span, late: SpanScore) -> None:
        """A score that came apart from its span counts for it with the span's own role and service."""
        if span.kind in (MEMBER, PLAIN):
            own = late.score
            self._look_at(life, offset, span, own.scorer, own.version, own.value)

    def _look_at(
        self, life: Life, offset: int, span: Span, scorer: str, version: str, value: float
    ) -> None:
        threshold = life.rules.thresholds.value(span.service, scorer, span.role)
        if value >= threshold:
            candidate = span_candidate(span, scorer, version, value, threshold, life.rules)
            self._page(life, offset, candidate, PENDING)

    def _page(self, life: Life, offset: int, candidate: Candidate, forensics: Forensics) -> None:
        """A page does not wait for the trace to close."""
        rejected = forensics.status == "rejected"
        key = ("identity", "") if rejected else ("threshold", candidate.scorer)
        page = life.pages.get(key)
        if page is None:
            page = life.pages[key] = Page(
                "identity" if rejected else "threshold",
                key[1],
                candidate.evidence.service,
                candidate.severity,
                self.time.date(self.now),
                offset,
                policy_class=None if rejected else life.rules.scorer(key[1]).policy_class,
            )
        if page.offer(candidate, offset):
            page.revision += 1
            page.told = page.telling(forensics)
            self._records.append(pending_incident(self.partition, life, page, forensics))
            if not life.open:
                self._dirty(life)

    # --- lives end -----------------------------------------------------------------------------------

    def _close(self, life: Life, by: ClosedBy) -> None:
        now = self.now
        rules = life.rules
        self._count(f"closed_{by}")
        life.closed_by = by
        life.closed_at_ms = self.time.date(now)
        life.window = life.closed_at_ms // rules.drift_window_ms
        life.deadline = now + rules.late_window_ms
        if by in CUTTING:
            life.cut = True
        if life.cut:
            self._count("cut")
        self.memory.close(life)
        self._conclude(life, closing=True)
        self.timers.push(life.deadline, EVICTION, life.nth)
        self._keep_closed_budget()

    def _revise(self, life: Life) -> None:
        """One revision for all that came late since the last flush."""
        self._count("revised")
        self.memory.dirty.discard(life.nth)
        self._conclude(life, closing=False)

    def _conclude(self, life: Life, *, closing: bool) -> None:
        memory = self.memory
        done = conclude(self.partition, life, self.gates, self.time.date(self.now), closing=closing)
        if done.error is not None:
            self._count("judge_errors")
        if done.published:
            life.revision += 1
        elif closing:
            self._count("unpublished")
        self._records += done.records
        life.pages = done.pages
        if done.gates:
            life.gates = {**done.gates, **life.gates}
        if done.part != life.part:
            if life.part is not None:
                self.deltas.add(life.window, life.part, -1)
            if done.part is not None:
                self.deltas.add(life.window, done.part, 1)
            life.part = done.part
            if self.deltas_at is None:
                assert self.rules is not None
                self.deltas_at = next_multiple(self.rules.delta_flush_ms, self.now)
                self.timers.push(self.deltas_at, FLUSH, DELTAS)
        life.dirty = False
        life.content = None
        memory.renumber(life)
        new, life.stored = life.fragments[life.stored :], len(life.fragments)
        self._closed.append(
            ClosedEntry(
                life.trace_id,
                life.birth,
                life.number,
                life.revision,
                life.deadline,
                life.state(),
                tuple(new),
            )
        )

    def _leave(self, life: Life) -> None:
        """Its memory is gone: what came late is revised first, what never found its span is a dead letter."""
        if life.dirty:
            self._revise(life)
        alone = life.alone()
        if alone:
            self._count("span_not_in_memory", len(alone))
            self._records += [span_not_in_memory(life.trace_id, score) for score in alone]
        self.memory.forget(life)
        if life.cut:
            deadline = self.now + life.rules.max_lifetime_ms
            self.memory.add_residue(residue_of(life, deadline))
            self.timers.push(deadline, EVICTION, life.nth)
            self._keep_residue_budget()

    def _dirty(self, life: Life) -> None:
        if life.dirty:
            return
        life.dirty = True
        self.memory.dirty.add(life.nth)
        if self.revisions_at is None:
            assert self.rules is not None
            self.revisions_at = next_multiple(self.rules.revision_flush_ms, self.now)
            self.timers.push(self.revisions_at, FLUSH, REVISIONS)

    # --- budgets ---------------------------------------------------------------------------------------

    def _keep_budgets(self) -> None:
        """Open lives: the oldest birth first."""
        assert self.rules is not None
        memory = self.memory
        while memory.opened and memory.bytes_open > self.rules.open_budget:
            self._close(next(iter(memory.opened.values())), "pressure")
        self._keep_closed_budget()
        self._keep_residue_budget()

    def _keep_closed_budget(self) -> None:
        """Closed lives: the lowest last number first, whatever it is revised to on its way out. The latest
        always stays, so that the life that a record is applied to cannot leave under it."""
        assert self.rules is not None
        memory = self.memory
        while memory.bytes_closed > self.rules.closed_budget and len(memory.closed) > 1:
            life = next(iter(memory.closed.values()))
            self._count("evicted_by_budget")
            life.deadline = self.now  # says in the closed log that it is gone
            self._leave(life)

    def _keep_residue_budget(self) -> None:
        assert self.rules is not None
        memory = self.memory
        while memory.bytes_residues > self.rules.residue_budget and memory.residues:
            self._count("residues_dropped")
            memory.take_residue(next(iter(memory.residues)))

    def _count(self, name: str, n: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + n
