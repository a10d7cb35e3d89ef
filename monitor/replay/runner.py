"""Lines of files through intake, fold and drift, in one process and without a broker.

What differs from the live path is only where time comes from (monitor.replay.clock) and that gaps are filled
with ticks until the state is empty, as the worker does on a quiet partition; the end of the input is such a gap.
The partition is 0 and a record's offset its running number (monitor.replay.lines), so that offsets rise over all
files; offset 0 is the settings. Coordinates of spans and dead letters are those of the line in its file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Final

import msgspec

from monitor.codec import encode_fold_record
from monitor.drift.engine import DriftEngine
from monitor.drift.messages import ScoreDelta, encode_message
from monitor.drift.report import DriftReport, MixReport
from monitor.drift.settings import DriftSettings
from monitor.errors import MonitorError
from monitor.intake import ENCODINGS, Batch, Intake, IntakeConfig
from monitor.model import DeadLetter, GateRecord, Incident, SettingsRecord, Tick, Verdict
from monitor.replay.lines import Line, UnreadableFile, captured_message, decode_value, raw_lines
from monitor.trace.config import FoldSettings
from monitor.trace.fold import FOLD_VERSION, PartitionFold
from monitor.trace.rules import Rules
from monitor.trace.sessions import SessionState, apply
from monitor.trace.steps import SessionSteps, session_key

Record = Verdict | Incident | DeadLetter | DriftReport | MixReport

# Virtual time moves at most 5 s a record (trace.fold); steps of that size lose none of it, and a timer runs at
# its own deadline whatever the step.
TICK_MS: Final = 5_000
# Seconds or milliseconds in a field of nanoseconds read as the first days of 1970; no agent ran before this.
_EARLIEST_START_NS: Final = 946_684_800_000_000_000  # 2000-01-01T00:00:00Z

# Ticks that empty any state: the longest times that settings allow are days; beyond this the fold is at fault.
_MAX_CLOSING_TICKS: Final = 1_000_000


class Summary(msgspec.Struct, tag_field="kind", tag="summary"):
    """Counts of a run, the last record of its output."""

    lines: int = 0
    spans: int = 0
    verdicts: int = 0
    incidents: int = 0  # records; an incident and its revisions count each
    dead_letters: int = 0
    drift: int = 0
    mix: int = 0
    scores: int = 0  # that came apart from their span
    faults: int = 0  # spans whose ids are not usable
    unknown_roles: dict[
        str, int
    ] = {}  # spans by the role that they name and no convention maps; bounded by intake
    early_spans: int = 0  # that begin before the year 2000: another unit than nanoseconds

    @property
    def nothing_read(self) -> bool:
        """Not one line said anything of a trace."""
        return not (self.spans or self.scores or self.faults)

    def count(self, record: Record) -> None:
        field = _COUNTED_AS[type(record)]
        setattr(self, field, getattr(self, field) + 1)


class _FileRecord(msgspec.Struct, frozen=True):
    """A line in the shape that intake reads."""

    offset: int
    timestamp: int
    value: bytes | None


class Replay:
    """One run over one stream of lines. ``feed`` each line with its time, then ``finish``."""

    def __init__(
        self,
        intake: IntakeConfig,
        fold: FoldSettings,
        drift: DriftSettings,
        groups: Mapping[str, str] | None = None,
    ) -> None:
        """``groups``: service -> group whose sessions belong together; default: all in one."""
        self.summary = Summary()
        self.logged: Callable[[int, bytes], None] | None = None  # told (offset, value) of fragments
        self._intake = Intake(intake)
        self._fold = PartitionFold(0)
        self._fold_settings = fold
        self._windows: MutableMapping[bytes, bytes] = {}
        self._totals: MutableMapping[bytes, bytes] = {}
        self._drift = DriftEngine(drift, self._windows, self._totals)
        self._deltas = 0
        self._rules = Rules(fold, fold.sha256, fold.canonical())
        self._groups = groups or {}
        self._sessions: dict[bytes, SessionState] = {}
        self._steps = 0
        self._line = 0
        self._now_ms: int | None = None

    def feed(self, line: Line, now_ms: int) -> Iterator[Record]:
        """Decode one line at ``now_ms`` and yield what it, and the time before it, brought about."""
        if self._now_ms is None:
            self._apply_settings(now_ms)
        else:
            yield from self._pass_time(now_ms)
        self._now_ms = now_ms
        self._line = line.number
        self.summary.lines += 1
        batch = self._decode(line, now_ms)
        fragments = list(batch.encoded_fragments())  # may add a dead letter: a span past the limit
        self._count(batch)
        for _, payload in fragments:
            self._fold.apply(line.number, now_ms, payload)
            if self.logged is not None:
                self.logged(line.number, payload)
        for orphan in batch.orphans:
            self._fold.apply(line.number, now_ms, encode_fold_record(orphan))
        for letter in batch.dead_letters:
            yield self._counted(msgspec.structs.replace(letter, value=None))
        yield from self._drain()

    def _decode(self, line: Line, now_ms: int) -> Batch:
        if line.encoding not in ENCODINGS:
            raise UnreadableFile(f"{line.where}: {_unread(line)}; known: {', '.join(ENCODINGS)}")
        batch = Batch()
        record = _FileRecord(line.offset, now_ms, line.value)
        self._intake.decode(line.encoding, line.topic, line.partition, (record,), batch)
        return batch

    def _count(self, batch: Batch) -> None:
        summary = self.summary
        for spans in batch.spans.values():
            summary.spans += len(spans)
            summary.early_spans += sum(
                0 < span.start_unix_nano < _EARLIEST_START_NS for span in spans
            )
        summary.scores += sum(map(len, batch.scores.values()))
        summary.faults += len(batch.orphans) + sum(map(len, batch.faults.values()))
        for (what, raw), count in batch.counts.items():
            if what == "unknown_role":
                summary.unknown_roles[raw] = summary.unknown_roles.get(raw, 0) + count

    def finish(self) -> Iterator[Record]:
        """Let time pass until nothing is open, kept or unflushed."""
        if self._now_ms is None:
            return
        for _ in range(_MAX_CLOSING_TICKS):
            if self._fold.empty:
                return
            yield from self._tick(self._now_ms + TICK_MS)
        raise MonitorError(
            f"the state is not empty after {_MAX_CLOSING_TICKS} ticks of {TICK_MS} ms; this is a fault of the fold, "
            "please report it with the file"
        )

    def _pass_time(self, until_ms: int) -> Iterator[Record]:
        assert self._now_ms is not None
        while self._now_ms + TICK_MS < until_ms and not self._fold.empty:
            yield from self._tick(self._now_ms + TICK_MS)

    def _tick(self, now_ms: int) -> Iterator[Record]:
        self._now_ms = now_ms
        self._fold.apply(self._line, now_ms, encode_fold_record(Tick()))
        yield from self._drain()

    def _apply_settings(self, now_ms: int) -> None:
        content = self._fold_settings.canonical()
        record = SettingsRecord(FOLD_VERSION, (0, 0), hashlib.sha256(content).hexdigest(), content)
        self._fold.apply(0, now_ms, encode_fold_record(record))

    def _drain(self) -> Iterator[Record]:
        for record in self._fold.drain().records:
            if isinstance(record, ScoreDelta):
                yield from self._drift_reports(record)
            elif isinstance(record, SessionSteps):
                yield from self._session_incidents(record)
            else:
                yield self._counted(record)

    def _drift_reports(self, delta: ScoreDelta) -> Iterator[Record]:
        offset, self._deltas = self._deltas, self._deltas + 1
        plan = self._drift.plan(encode_message(delta), offset)
        self._drift.commit(plan)
        for report in plan.outputs:
            yield self._counted(report)
        for gate in plan.gates:
            record = GateRecord(gate.service, gate.scorer, gate.state, 0, offset)
            self._fold.apply(self._line, self._now_ms, encode_fold_record(record))

    def _session_incidents(self, steps: SessionSteps) -> Iterator[Record]:
        offset, self._steps = self._steps, self._steps + 1
        key = session_key(steps, self._groups)
        state = self._sessions.get(key, SessionState())
        done = apply(key, state, steps, self._rules, offset=offset)
        self._sessions[key] = done.state
        for incident in done.incidents:
            yield self._counted(incident)

    def _counted(self, record: Record) -> Record:
        self.summary.count(record)
        return record


_COUNTED_AS: Final[dict[type[Record], str]] = {
    Verdict: "verdicts",
    Incident: "incidents",
    DeadLetter: "dead_letters",
    DriftReport: "drift",
    MixReport: "mix",
}


def _unread(line: Line) -> str:
    """Why the encoding of a line is not read, and what to do."""
    if line.encoding:
        return f"encoding {line.encoding!r} is not read"
    if line.topic.endswith("fragments"):
        return f"records of {line.topic} are the monitor's own: replay them with --fragments"
    return (
        f"this message of {line.topic} has no `encoding`; `monitor topics dump` writes it for the topics of "
        "MONITOR_INPUTS, and other topics of the monitor are not replayed"
    )


def fold_fragments(
    paths: list[Path], summary: Summary | None = None
) -> Iterator[Verdict | Incident | DeadLetter | ScoreDelta]:
    """The offline fold of a dump of the fragments topic: what the worker published, record for record.

    No ticks are added and nothing is closed at the end. Partitions are folded apart, in order of first record.
    ``summary``: is told lines and records. Raises UnreadableFile where a line is not a captured message or offsets
    of a partition do not rise.
    """
    summary = Summary() if summary is None else summary
    folds: dict[int, tuple[PartitionFold, int]] = {}
    for line in raw_lines(paths):
        message = captured_message(line)
        if message.offset is None:
            raise UnreadableFile(f"{line.where}: no offset; `monitor topics dump` writes it")
        fold, last = folds.get(message.partition) or (PartitionFold(message.partition), -1)
        if message.offset <= last:
            raise UnreadableFile(
                f"{line.where}: offset {message.offset} of partition {message.partition} comes after {last}; "
                "give the files in the order of the log"
            )
        folds[message.partition] = (fold, message.offset)
        appended = message.timestamp if message.timestamp_type == "LogAppendTime" else None
        fold.apply(message.offset, appended, decode_value(line.where, message))
        summary.lines += 1
        for record in fold.drain().records:
            if isinstance(record, SessionSteps):
                continue  # matched over traces by an agent, from a topic of its own
            if not isinstance(record, ScoreDelta):
                summary.count(record)
            yield record
