"""A fragments log written as short as it is read, folded, and its output brought into a comparable form."""

from __future__ import annotations

from typing import Any

import msgspec

from monitor.codec import canonical_json, encode_fold_record
from monitor.drift.delta import ScoreDelta
from monitor.model import (
    DeadLetter,
    FoldRecord,
    Fragment,
    GateRecord,
    Incident,
    OrphanFault,
    Score,
    SettingsRecord,
    Source,
    Span,
    SpanFault,
    SpanScore,
    Tick,
    Verdict,
)
from monitor.trace.closed import ClosedEntry, decode_closed, encode_closed
from monitor.trace.config import FoldSettings, Lifecycle
from monitor.trace.fold import FOLD_VERSION, PartitionFold
from tests.trace.truth import sid, span

DEFAULT = FoldSettings()
START = 1_760_000_000_000  # ms; the log's first timestamp


def tid(name: str | int) -> str:
    """A trace id: 32 hex digits."""
    return sid(name) * 2


def settings_of(**lifecycle: Any) -> FoldSettings:
    return FoldSettings(lifecycle=Lifecycle(**lifecycle))


def settings_record(settings: FoldSettings, rank: tuple[int, int] = (0, 1)) -> SettingsRecord:
    return SettingsRecord(FOLD_VERSION, rank, settings.sha256, settings.canonical())


def scored(
    key: str | int,
    parent: str | int | None = None,
    score: float | None = 0.1,
    role: str = "tool_call",
    scorer: str = "judge",
    **fields: Any,
) -> Span:
    scores = () if score is None else (Score(scorer, "1", score),)
    fields.setdefault("source", Source("agent-spans", 0, abs(hash_of(key)) % 1000, 0, START))
    return span(key, parent, role=role, scores=scores, **fields)


def hash_of(key: str | int) -> int:
    return int(sid(key), 16)


def late_score(
    key: str | int, value: float, role: str = "unknown", scorer: str = "judge", **fields: Any
) -> SpanScore:
    return SpanScore(
        sid(key),
        Score(scorer, "1", value),
        role=role,
        source=Source("scores", 0, 7, 0, START),
        **fields,
    )


def unusable(score: float, role: str = "tool_call") -> SpanFault:
    return SpanFault(
        "missing_id",
        "span_id",
        "agents",
        role,
        "call",
        scores=(Score("judge", "1", score),),
        source=Source("agent-spans", 0, 99, 3, START),
    )


class Log:
    """A fold and the log that it was fed; times are seconds since the log's start."""

    def __init__(self, settings: FoldSettings | None = DEFAULT, partition: int = 3) -> None:
        self.fold = PartitionFold(partition)
        self.offset = -1
        self.at = 0.0
        self.records: list[Any] = []
        self.closed: list[ClosedEntry] = []
        self.settings: list[SettingsRecord] = []
        if settings is not None:
            self.put(settings_record(settings))

    def put(self, record: FoldRecord | bytes, at: float | None = None) -> list[Any]:
        """Append a record ``at`` seconds (default: same time) and return what it brought about."""
        self.at = self.at if at is None else at
        self.offset += 1
        raw = record if isinstance(record, bytes) else encode_fold_record(record)
        self.fold.apply(self.offset, START + round(self.at * 1000), raw)
        output = self.fold.drain()
        self.records += output.records
        self.closed += output.closed
        self.settings += output.settings
        return output.records

    def spans(self, trace: str | int, *spans: Span, at: float | None = None) -> list[Any]:
        return self.put(Fragment(tid(trace), spans), at)

    def scores(self, trace: str | int, *scores: SpanScore, at: float | None = None) -> list[Any]:
        return self.put(Fragment(tid(trace), (), scores), at)

    def faults(self, trace: str | int, *faults: SpanFault, at: float | None = None) -> list[Any]:
        return self.put(Fragment(tid(trace), (), (), faults), at)

    def gate(
        self, state: str, source_offset: int, service: str = "agents", scorer: str = "judge"
    ) -> list[Any]:
        return self.put(GateRecord(service, scorer, state, 0, source_offset))

    def orphan(self, fault: SpanFault, at: float | None = None) -> list[Any]:
        return self.put(OrphanFault("f" * 32, fault), at)

    def until(self, at: float) -> list[Any]:
        """Let time pass by ticks of a second."""
        seen: list[Any] = []
        while self.at < at:
            seen += self.put(Tick(), min(at, self.at + 1.0))
        return seen

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def verdicts(self) -> list[Verdict]:
        return self.of(Verdict)

    @property
    def incidents(self) -> list[Incident]:
        return self.of(Incident)

    @property
    def dead_letters(self) -> list[DeadLetter]:
        return self.of(DeadLetter)

    @property
    def deltas(self) -> list[ScoreDelta]:
        return self.of(ScoreDelta)

    def restored(self) -> PartitionFold:
        """The fold after a round trip of snapshot and closed log through their bytes."""
        entries = [decode_closed(encode_closed(entry)) for entry in self.closed]
        return PartitionFold.restore(self.fold.partition, self.fold.snapshot(), entries)


def json_of(record: Any) -> Any:
    return msgspec.json.decode(canonical_json(record))
