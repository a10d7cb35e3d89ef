"""Where everything that comes out of a fold is put, in order."""

from __future__ import annotations

import msgspec

from monitor.drift.delta import ScoreDelta
from monitor.model import DeadLetter, Incident, SettingsRecord, Verdict
from monitor.trace.closed import ClosedEntry
from monitor.trace.steps import SessionSteps

FoldRecordOut = Verdict | Incident | ScoreDelta | SessionSteps | DeadLetter


class FoldOutput(msgspec.Struct, frozen=True):
    """What came out since the last drain, in order."""

    records: list[FoldRecordOut]
    closed: list[ClosedEntry]
    settings: list[SettingsRecord]  # newly applied


class Outbox:
    """counters: what happened since offset 0, by name; part of the state."""

    __slots__ = ("closed", "counters", "partition", "records", "settings")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.counters: dict[str, int] = {}
        self.records: list[FoldRecordOut] = []
        self.closed: list[ClosedEntry] = []
        self.settings: list[SettingsRecord] = []

    def count(self, name: str, n: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + n

    def drain(self) -> FoldOutput:
        output = FoldOutput(self.records, self.closed, self.settings)
        self.records, self.closed, self.settings = [], [], []
        return output
