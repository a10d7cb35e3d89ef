"""What assemble keeps of one fragments partition, and when its snapshot is due. No Kafka in here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from monitor.stream.commits import Commit
from monitor.stream.place import StateCommit
from monitor.trace.fold import PartitionFold

SNAPSHOT_RECORDS: Final = 20_000
SNAPSHOT_BYTES: Final = 16_000_000
SNAPSHOT_SECONDS: Final = 30.0
"""Between a snapshot and the commit lies at most so much, which is what a restore folds again: a second of
work at the worst. A snapshot costs about a millisecond a megabyte of open spans."""

Life = tuple[str, int]  # trace id, birth offset


class ClosedIndex:
    """Where in the closed log the first entry of each closed life in memory lies.

    ``end``: offset after the last entry written, ce of a snapshot taken now.
    """

    def __init__(self, end: int) -> None:
        self.end = end
        self._firsts: dict[Life, int] = {}  # offsets ascend in order of insertion

    def add(self, life: Life, offset: int) -> None:
        """Only a life's first entry counts; revisions append to it."""
        self._firsts.setdefault(life, offset)

    def lowest(self, in_memory: Callable[[Life], bool]) -> int:
        """cf: the lowest offset that a restore needs, ``end`` where there is none. Forgets who is gone."""
        self._firsts = {life: at for life, at in self._firsts.items() if in_memory(life)}
        return next(iter(self._firsts.values()), self.end)

    def __len__(self) -> int:
        return len(self._firsts)


class PartitionState:
    """A fold with what the shell knows of it.

    ``commit`` is what memory equals; None from the first record folded until its commit has returned.
    """

    def __init__(
        self,
        fold: PartitionFold,
        place: StateCommit,
        closed: ClosedIndex,
        commit: Commit | None,
        *,
        due: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fold = fold
        self.place = place
        self.closed = closed
        self.commit = commit
        self.due = due  # for a reason of its own: a partition's first transaction
        self.records = 0  # folded since the snapshot
        self.bytes = 0
        self.was_empty = bool(fold.empty)
        self.last_record = clock()  # when this process last folded one
        self._clock = clock
        self._since: float | None = None  # when the first record after the snapshot was folded

    def folded(self, records: int, size: int, *, ago: float = 0.0) -> None:
        """``ago``: seconds since the first of them was appended, for records of an earlier owner."""
        self.commit = None
        self.records += records
        self.bytes += size
        self.last_record = self._clock()
        if self._since is None:
            self._since = self.last_record - ago

    def snapshot_due(self) -> bool:
        """20,000 records, 16 MB or 30 s since the last, or the state just became empty, or ``due``."""
        if self.due:
            return True
        if not self.records:
            return False
        assert self._since is not None
        return (
            self.records >= SNAPSHOT_RECORDS
            or self.bytes >= SNAPSHOT_BYTES
            or self._clock() - self._since >= SNAPSHOT_SECONDS
            or (self.fold.empty and not self.was_empty)
        )

    def snapshot_written(self, place: StateCommit) -> None:
        self.place = place
        self.due = False
        self.records = self.bytes = 0
        self._since = None
        self.was_empty = bool(self.fold.empty)

    def committed(self, commit: Commit) -> None:
        self.commit = commit
        self.was_empty = self.was_empty and bool(self.fold.empty)
