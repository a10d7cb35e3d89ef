"""When a snapshot is due, what lies in the closed log, and what a commit's metadata say."""

from __future__ import annotations

import pytest

from monitor.errors import PartitionRefused
from monitor.stream.commits import Commit
from monitor.stream.place import METADATA_LIMIT, StateCommit, decode_state_commit
from monitor.stream.state import (
    SNAPSHOT_BYTES,
    SNAPSHOT_RECORDS,
    SNAPSHOT_SECONDS,
    ClosedIndex,
    PartitionState,
)
from monitor.trace.fold import PartitionFold

PLACE = StateCommit(8, 1, at=10, snapshot=3, chunks=1, cf=0, ce=0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def state(clock: Clock, *, due: bool = False) -> PartitionState:
    return PartitionState(PartitionFold(0), PLACE, ClosedIndex(0), Commit(10), due=due, clock=clock)


def test_a_first_transaction_is_due_and_a_fresh_snapshot_is_not() -> None:
    clock = Clock()
    first = state(clock, due=True)
    assert first.snapshot_due()
    first.snapshot_written(PLACE)
    assert not first.snapshot_due()
    clock.now += 1_000  # nothing was folded: nothing lies between
    assert not first.snapshot_due()


@pytest.mark.parametrize(
    ("records", "size", "seconds"),
    [(SNAPSHOT_RECORDS, 1, 0.0), (1, SNAPSHOT_BYTES, 0.0), (1, 1, SNAPSHOT_SECONDS)],
)
def test_each_limit_alone_makes_it_due(records: int, size: int, seconds: float) -> None:
    clock = Clock()
    folded = state(clock)
    folded.folded(records, size)
    clock.now += seconds
    assert folded.snapshot_due()


def test_under_every_limit_it_is_not_due() -> None:
    clock = Clock()
    folded = state(clock)
    folded.folded(SNAPSHOT_RECORDS - 1, SNAPSHOT_BYTES - 1)
    clock.now += SNAPSHOT_SECONDS - 0.1
    assert not folded.snapshot_due()


def test_what_a_restore_folded_again_counts_with_its_age() -> None:
    """Owners that change every 10 s must not push the snapshot off for ever."""
    restored = state(Clock())
    restored.folded(1, 1, ago=SNAPSHOT_SECONDS)
    assert restored.snapshot_due()


def test_memory_equals_no_commit_from_the_first_record_until_its_commit() -> None:
    folded = state(Clock())
    assert folded.commit == Commit(10)
    folded.folded(1, 1)
    assert folded.commit is None
    folded.committed(Commit(11, "x"))
    assert folded.commit == Commit(11, "x")


def test_cf_is_the_lowest_first_entry_still_in_memory() -> None:
    closed = ClosedIndex(end=5)
    assert closed.lowest(lambda _: True) == 5  # none in memory: cf = ce
    for offset, life in ((5, ("a", 1)), (8, ("b", 2)), (9, ("a", 1)), (11, ("c", 3))):
        closed.add(life, offset)
    closed.end = 13
    assert closed.lowest(lambda _: True) == 5  # a's revision at 9 is not its first entry
    assert closed.lowest(lambda life: life != ("a", 1)) == 8
    assert len(closed) == 2
    assert closed.lowest(lambda _: False) == 13


def test_metadata_survive_and_are_small() -> None:
    big = 2**62
    place = StateCommit(1024, 99, big, big, 40_000, big, big)
    assert decode_state_commit(place.encode()) == place
    assert len(place.encode()) < 200 < METADATA_LIMIT


@pytest.mark.parametrize("metadata", ["", "x", "[]", "[1,2]", '{"at":1}'])
def test_metadata_of_others_are_refused(metadata: str) -> None:
    with pytest.raises(PartitionRefused, match="metadata"):
        decode_state_commit(metadata)
