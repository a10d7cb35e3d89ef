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

from collections.abc import Iterable, Iterator, Mapping

from monitor.codec import decode_fold_record
from monitor.errors import UndecodableRecord
from monitor.model import (
    FoldRecord,
    Fragment,
    GateRecord,
    OrphanFault,
    ResetRecord,
    SettingsRecord,
)
from monitor.trace.closed import ClosedEntry
from monitor.trace.lives import Lives
from monitor.trace.output import FoldOutput, FoldRecordOut, Outbox
from monitor.trace.pages import Candidate, fault_candidates
from monitor.trace.records import (
    FOLD_VERSION,
    orphan_incident,
    state_lost_incident,
    undecodable,
)
from monitor.trace.rules import Rules
from monitor.trace.snapshot import FoldState, decode_snapshot, encode_snapshot, restored, stored
from monitor.trace.timers import VirtualTime

__all__ = ["FOLD_VERSION", "FoldOutput", "FoldRecordOut", "PartitionFold"]


class PartitionFold:
    """State of one partition of the fragments topic."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self._out = Outbox(partition)
        self._begin(VirtualTime())

    def _begin(self, time: VirtualTime) -> None:
        """The empty state."""
        self._time = time
        self._lives: Lives | None = None  # None before the first settings
        self._rank: tuple[int, int] = (0, 0)
        self._gates: dict[tuple[str, str], tuple[str, int]] = {}  # state, offset of its source
        self._held: list[tuple[int, bytes]] = []  # what came before the first settings

    # --- what the shell asks -----------------------------------------------------------------------------

    def apply(self, offset: int, timestamp_ms: int | None, raw: bytes) -> None:
        """Fold one record of the fragments topic.

        timestamp_ms  its LogAppendTime; None where the record has another time type: it passes no time
        raw           its value; content that does not decode is counted, named in a dead letter, skipped
        """
        for _ in self.steps(offset, timestamp_ms, raw):
            pass

    def steps(self, offset: int, timestamp_ms: int | None, raw: bytes) -> Iterator[None]:
        """The same, stopping on the way where it takes long: a moment at which many large traces close must not
        keep a worker from its heartbeats. Until it has come to its end the fold answers nothing."""
        record: FoldRecord | None = None
        error = ""
        try:
            record = decode_fold_record(raw)
        except UndecodableRecord as undecoded:
            error = str(undecoded)
        if type(record) is ResetRecord:
            # What was before it is lost, here as where it was written: nothing of that may run a timer.
            self._reset(offset, timestamp_ms, record)
            return
        if timestamp_ms is None:
            self._out.count("not_log_append_time")
        else:
            self._time.advance(timestamp_ms)
        lives = self._lives
        if lives is not None:
            vt = self._time.vt
            if lives.timers.due(vt):
                yield from lives.run_timers(vt)
            lives.now = vt
            if type(record) is Fragment:  # nearly all of them
                lives.take(offset, raw, record)
                return
        self._apply_other(offset, timestamp_ms, raw, record, error)

    def drain(self) -> FoldOutput:
        """What came out since the last time, in order; it is the caller's then."""
        return self._out.drain()

    @property
    def vt(self) -> int:
        return self._time.vt

    @property
    def last_ts(self) -> int | None:
        """LogAppendTime of the last record that had one."""
        return self._time.last_ts

    @property
    def empty(self) -> bool:
        """Whether time has nothing to do here: no life, residue, held record or sum that is not flushed."""
        return not self._held and (self._lives is None or self._lives.empty)

    @property
    def open_lives(self) -> int:
        return 0 if self._lives is None else len(self._lives.memory.opened)

    @property
    def closed_lives(self) -> int:
        return 0 if self._lives is None else len(self._lives.memory.closed)

    @property
    def bytes_open(self) -> int:
        return 0 if self._lives is None else self._lives.memory.bytes_open

    @property
    def bytes_closed(self) -> int:
        return 0 if self._lives is None else self._lives.memory.bytes_closed

    @property
    def settings_sha(self) -> str | None:
        return None if self._lives is None else self._lives.rules.sha256

    @property
    def settings_rank(self) -> tuple[int, int] | None:
        """(MONITOR_SETTINGS_REVISION, process start ms) of the settings in force."""
        return None if self._lives is None else self._rank

    @property
    def waiting_for_settings(self) -> bool:
        return self._lives is None

    @property
    def gates(self) -> Mapping[tuple[str, str], tuple[str, int]]:
        """(service, scorer) -> (state in force, offset of its source)."""
        return self._gates

    @property
    def counters(self) -> Mapping[str, int]:
        """What happened since offset 0, by name; survives snapshots and resets."""
        return self._out.counters

    def in_closed_memory(self, life: tuple[str, int]) -> bool:
        """Whether the life (trace_id, birth offset) is closed and still in memory."""
        if self._lives is None:
            return False
        kept = self._lives.memory.by_trace.get(life[0])
        return kept is not None and kept.birth == life[1] and not kept.open

    def snapshot(self) -> bytes:
        """All of the state but clean closed lives. Drain first: what was not drained is not in it."""
        return encode_snapshot(
            FoldState(
                self.partition,
                self._time,
                self._out.counters,
                self._rank,
                self._gates,
                self._held,
                None if self._lives is None else stored(self._lives),
            )
        )

    @classmethod
    def restore(
        cls, partition: int, snapshot: bytes, closed: Iterable[ClosedEntry]
    ) -> PartitionFold:
        """The fold that wrote ``snapshot``; ``closed``: entries of the closed log in order. Raises
        PartitionRefused where the two do not fit together, UndecodableRecord."""
        state = decode_snapshot(partition, snapshot)
        fold = cls(partition)
        fold._begin(state.time)
        fold._out.counters = state.counters
        fold._rank = state.rank
        fold._gates = state.gates
        fold._held = state.held
        if state.lives is not None:
            fold._lives = restored(state.lives, fold._out, state.time, closed)
            fold._lives.gates = {key: gate for key, (gate, _) in state.gates.items()}
        return fold

    # --- records that are no fragments ------------------------------------------------------------------

    def _apply_other(
        self,
        offset: int,
        timestamp_ms: int | None,
        raw: bytes,
        record: FoldRecord | None,
        error: str,
    ) -> None:
        if record is None:
            self._out.count("undecodable")
            self._out.records.append(undecodable(self.partition, offset, timestamp_ms, error))
        elif isinstance(record, Fragment | OrphanFault):
            if self._lives is None:
                self._held.append((offset, raw))
            elif type(record) is OrphanFault:
                self._orphan(self._lives, offset, record)
        elif type(record) is SettingsRecord:
            self._change_settings(offset, timestamp_ms, record)
        elif type(record) is GateRecord:
            self._gate(record)

    def _orphan(self, lives: Lives, offset: int, orphan: OrphanFault) -> None:
        """A span that belongs to no trace cannot be joined; its scores are judged all the same."""
        self._out.count("orphans")
        best: Candidate | None = None
        for candidate in fault_candidates(orphan.fault, lives.rules):
            if candidate.threshold is not None and (best is None or candidate.before(best)):
                best = candidate
        if best is not None:
            date = self._time.date(lives.now)
            self._out.records.append(
                orphan_incident(self.partition, offset, orphan, best, lives.rules.sha256, date)
            )

    def _gate(self, gate: GateRecord) -> None:
        """Applies only if it comes from further on than the one in force for its key."""
        key = (gate.service, gate.scorer)
        known = self._gates.get(key)
        if known is not None and gate.source_offset <= known[1]:
            self._out.count("gates_passed_over")
            return
        self._out.count("gates_applied")
        self._gates[key] = (gate.state, gate.source_offset)
        if self._lives is not None:
            self._lives.gates[key] = gate.state

    def _change_settings(
        self, offset: int, timestamp_ms: int | None, record: SettingsRecord
    ) -> None:
        """Applied only if it differs from what is in force and ranks higher."""
        lives = self._lives
        if lives is not None and (record.sha256 == lives.rules.sha256 or record.rank <= self._rank):
            self._out.count("settings_passed_over")
            return
        try:
            rules = Rules.from_content(record.sha256, record.content)
        except UndecodableRecord as error:
            self._out.count("undecodable")
            self._out.records.append(undecodable(self.partition, offset, timestamp_ms, str(error)))
            return
        self._rank = record.rank
        self._out.count("settings_applied")
        self._out.settings.append(record)
        if lives is not None:
            lives.rules = rules
            lives.keep_budgets()
            return
        lives = self._lives = Lives(self._out, self._time, rules)
        lives.gates = {key: gate for key, (gate, _) in self._gates.items()}
        held, self._held = self._held, []
        for held_offset, raw in held:
            waited = decode_fold_record(raw)
            if type(waited) is Fragment:
                lives.take(held_offset, raw, waited)
            elif type(waited) is OrphanFault:
                self._orphan(lives, held_offset, waited)

    def _reset(self, offset: int, timestamp_ms: int | None, reset: ResetRecord) -> None:
        """The state was lost: an empty one from here, and the loss said aloud."""
        self._begin(VirtualTime(0, timestamp_ms))
        self._out.count("resets")
        self._out.records.append(
            state_lost_incident(self.partition, offset, reset, self._time.date(0))
        )
        self._change_settings(offset, timestamp_ms, reset.settings)
