"""Brings a fragments partition's state back: snapshot, closed log, and a short fold without output.

1. the commit's metadata says where the snapshot lies, what offset ``at`` it stands for, and [cf, ce)
2. read the snapshot's chunks
3. read the closed log [cf, ce): lives that had closed before the snapshot; the snapshot's own lives override
4. fold [at, committed) and throw its output away: it was published. A life that closes in there counts as
   lying at ce. The end is told by position, not by seeing a last record
5. the next ce is the closed log's end

What cannot be restored raises PartitionRefused: its lane goes on without it, until an operator has had a
*reset* record written (reset.py), whose offset stands in the state topic under ``<partition>/reset``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiokafka.errors
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from monitor.errors import MonitorError, PartitionRefused
from monitor.stream.commits import Commit
from monitor.stream.place import StateCommit, decode_state_commit
from monitor.stream.ranges import log_range, read_range
from monitor.stream.state import ClosedIndex, PartitionState
from monitor.stream.topics import TopicNames
from monitor.trace.closed import ClosedEntry, decode_closed
from monitor.trace.fold import FOLD_VERSION, PartitionFold

log = structlog.get_logger()

LOG_APPEND_TIME: Final = 1  # ConsumerRecord.timestamp_type

STEP_SECONDS: Final = 0.02
"""Of folding between two turns of the loop: heartbeats and open transactions wait no longer."""

_DRAIN_RECORDS: Final = 5_000
"""Folded between two times that the output of the silent fold is thrown away: bounds its memory."""


def chunk_key(partition: int, index: int) -> bytes:
    """Of a snapshot's chunk in the state topic."""
    return f"{partition}/{index}".encode()


def reset_key(partition: int) -> bytes:
    return f"{partition}/reset".encode()


def closed_keys(entry: ClosedEntry, chunks: int) -> Iterator[bytes]:
    """Keys of the chunks of an entry of the closed log: whose they are, and which of how many."""
    for index in range(chunks):
        yield f"{entry.trace_id}/{entry.life}/{entry.number}/{index}/{chunks}".encode()


def append_time(record: Any) -> int | None:
    """Milliseconds since 1970, None for a record of another time type."""
    return record.timestamp if record.timestamp_type == LOG_APPEND_TIME else None


async def fold_records(fold: PartitionFold, records: Sequence[Any]) -> int:
    """Fold consumed records in their order; returns their bytes. Yields to the loop on the way."""
    size = 0
    step = time.monotonic()
    for count, record in enumerate(records):
        value = record.value or b""
        for _ in fold.steps(record.offset, append_time(record), value):
            await asyncio.sleep(0)
        size += len(value)
        if count & 15 == 15 and time.monotonic() - step > STEP_SECONDS:
            await asyncio.sleep(0)
            step = time.monotonic()
    return size


@dataclass
class Recovery:
    """Restores partitions through one reader (an AIOKafkaConsumer without a group)."""

    reader: AIOKafkaConsumer
    names: TopicNames
    partitions: int
    records: int = 0  # folded without output, of all partitions restored

    async def restore(self, partition: int, commit: Commit | None) -> PartitionState:
        """Raises PartitionRefused; KafkaError for what may be over at the next try."""
        try:
            if commit is None:
                return await self._new(partition)
            return await self._from_commit(partition, commit)
        except PartitionRefused as refusal:
            at = await self.find_reset(partition, after=commit.offset if commit else 0)
            if at is None:
                raise
            log.warning("partition.reset", partition=partition, at=at, was_refused=str(refusal))
            return await self._empty(partition, at)

    # --- the ways to begin ----------------------------------------------------------------------------

    async def _new(self, partition: int) -> PartitionState:
        """No commit. New where there is no snapshot either; else what was published is not known."""
        async for key, _ in self._state_records(partition):
            if key != reset_key(partition):
                raise PartitionRefused(
                    f"fragments partition {partition} has a snapshot but no commit: its commit has expired or "
                    "was deleted, and what was published since is not known"
                )
        first, _ = await log_range(self.reader, TopicPartition(self.names.fragments, partition))
        return await self._empty(partition, first)

    async def _empty(self, partition: int, at: int) -> PartitionState:
        _, end = await log_range(self.reader, TopicPartition(self.names.closed_traces, partition))
        place = StateCommit(self.partitions, FOLD_VERSION, at, snapshot=0, chunks=0, cf=end, ce=end)
        commit = Commit(at)
        return PartitionState(PartitionFold(partition), place, ClosedIndex(end), commit, due=True)

    async def _from_commit(self, partition: int, commit: Commit) -> PartitionState:
        place = decode_state_commit(commit.metadata)
        self._check(partition, commit, place)
        tp = TopicPartition(self.names.fragments, partition)
        first, end = await log_range(self.reader, tp)
        if not (first <= place.at <= commit.offset <= end):
            raise PartitionRefused(
                f"fragments partition {partition}: the log holds [{first}, {end}), the state needs [{place.at}, "
                f"{commit.offset})"
            )
        started = time.monotonic()
        snapshot = await self._snapshot(partition, place)
        entries, offsets = await self._closed(partition, place)
        fold = (
            self._fold(partition, snapshot, entries) if place.chunks else PartitionFold(partition)
        )
        closed = ClosedIndex(place.ce)
        for entry, offset in zip(entries, offsets, strict=True):
            closed.add((entry.trace_id, entry.life), offset)
        records, size, span = await self._replay(fold, closed, tp, place, commit)
        _, closed.end = await log_range(
            self.reader, TopicPartition(self.names.closed_traces, partition)
        )
        log.info(
            "partition.restored",
            partition=partition,
            snapshot=len(snapshot),
            closed=len(entries),
            replayed=records,
            seconds=round(time.monotonic() - started, 3),
        )
        state = PartitionState(fold, place, closed, commit, due=not place.chunks)
        if records:
            # Counts as folded since the snapshot: what was long to replay makes one due at once.
            state.folded(records, size, ago=span)
            state.commit = commit  # they were committed
        return state

    def _check(self, partition: int, commit: Commit, place: StateCommit) -> None:
        if place.partitions != self.partitions:
            raise PartitionRefused(
                f"the state of fragments partition {partition} was made with {place.partitions} partitions, now "
                f"there are {self.partitions}: traces lie elsewhere; begin anew under another "
                "MONITOR_TOPIC_PREFIX and MONITOR_GROUP"
            )
        if place.fold_version != FOLD_VERSION and place.at != commit.offset:
            raise PartitionRefused(
                f"the state of fragments partition {partition} was made by fold version {place.fold_version} and "
                f"stands {commit.offset - place.at} offsets behind its commit; version {FOLD_VERSION} cannot "
                "fold those again: start the old build, stop it cleanly (all workers), then start this one"
            )

    # --- the steps ------------------------------------------------------------------------------------

    async def _snapshot(self, partition: int, place: StateCommit) -> bytes:
        tp = TopicPartition(self.names.assembly_state, partition)
        chunks: list[bytes] = []
        try:
            _, end = await log_range(self.reader, tp)
            async for records in read_range(self.reader, tp, place.snapshot, end):
                for record in records:
                    if len(chunks) == place.chunks:
                        break
                    if record.key == chunk_key(partition, len(chunks)):
                        chunks.append(record.value)
                if len(chunks) == place.chunks:
                    break
        except aiokafka.errors.OffsetOutOfRangeError:
            chunks = []
        if len(chunks) != place.chunks:
            raise PartitionRefused(
                f"the snapshot of fragments partition {partition} is gone: {len(chunks)} of {place.chunks} chunks "
                f"are left at offset {place.snapshot} of {self.names.assembly_state}"
            )
        return b"".join(chunks)

    async def _closed(
        self, partition: int, place: StateCommit
    ) -> tuple[list[ClosedEntry], list[int]]:
        tp = TopicPartition(self.names.closed_traces, partition)
        entries: list[ClosedEntry] = []
        offsets: list[int] = []
        if place.cf == place.ce:
            return entries, offsets
        first, end = await log_range(self.reader, tp)
        if not (first <= place.cf and place.ce <= end):
            raise PartitionRefused(
                f"the closed log of fragments partition {partition} holds [{first}, {end}), the state needs "
                f"[{place.cf}, {place.ce})"
            )
        parts: list[bytes] = []
        begun = 0
        async for records in read_range(self.reader, tp, place.cf, place.ce):
            for record in records:
                *_, index, count = record.key.rsplit(b"/", 2)
                if index == b"0":
                    parts, begun = [], record.offset
                parts.append(record.value)
                if len(parts) == int(count):
                    entries.append(decode_closed(b"".join(parts)))
                    offsets.append(begun)
        return entries, offsets

    @staticmethod
    def _fold(partition: int, snapshot: bytes, entries: list[ClosedEntry]) -> PartitionFold:
        try:
            return PartitionFold.restore(partition, snapshot, entries)
        except MonitorError as error:
            raise PartitionRefused(
                f"the snapshot of fragments partition {partition} does not fit this build: {error}"
            ) from error

    async def _replay(
        self,
        fold: PartitionFold,
        closed: ClosedIndex,
        tp: TopicPartition,
        place: StateCommit,
        commit: Commit,
    ) -> tuple[int, int, float]:
        """Fold [at, committed) in silence; returns (records, bytes, seconds from first to last)."""
        count = size = undrained = 0
        stamps: list[int] = []

        def drain() -> None:
            for entry in fold.drain().closed:
                closed.add((entry.trace_id, entry.life), place.ce)

        async for records in read_range(self.reader, tp, place.at, commit.offset):
            size += await fold_records(fold, records)
            stamps = [*stamps[:1], records[0].timestamp, records[-1].timestamp]
            count += len(records)
            undrained += len(records)
            if undrained > _DRAIN_RECORDS:
                drain()
                undrained = 0
        drain()
        self.records += count
        span = (stamps[-1] - stamps[0]) / 1000 if stamps else 0.0
        return count, size, max(0.0, span)

    # --- resets -----------------------------------------------------------------------------------------

    async def find_reset(self, partition: int, *, after: int) -> int | None:
        """Offset of a reset record that nobody has gone on at yet, None without one.

        The owner that goes on at a reset writes a snapshot in its first transaction: a snapshot that stands
        behind the note of a reset means that it is done.
        """
        found: int | None = None
        async for key, value in self._state_records(partition):
            found = int(value) if key == reset_key(partition) else None
        if found is None or found < after:
            return None
        first, end = await log_range(self.reader, TopicPartition(self.names.fragments, partition))
        return found if first <= found < end else None

    async def _state_records(self, partition: int) -> Any:
        tp = TopicPartition(self.names.assembly_state, partition)
        first, end = await log_range(self.reader, tp)
        async for records in read_range(self.reader, tp, first, end):
            for record in records:
                if record.value is not None:
                    yield record.key, record.value
