"""Assemble: folds each fragments partition and commits, in one transaction, all that comes of it.

Outputs, the closed log, at most one partition's snapshot, our settings and gate records for the log, and the
offsets, whose metadata say where the snapshot lies. No rule of safety or statistics is in here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from aiokafka import TopicPartition

from monitor import codec
from monitor.errors import PartitionRefused
from monitor.model import GateRecord, SettingsRecord
from monitor.settings import Settings
from monitor.stream import clients
from monitor.stream.clients import CHUNK_BYTES
from monitor.stream.commits import Commit, read_commits
from monitor.stream.gates import GateReader
from monitor.stream.lane import Lane
from monitor.stream.lanes import LaneService
from monitor.stream.own_settings import own_settings
from monitor.stream.place import StateCommit
from monitor.stream.recovery import Recovery, chunk_key, closed_keys, fold_records
from monitor.stream.routing import Router
from monitor.stream.state import Life, PartitionState
from monitor.stream.ticks import IngestWatch, Ticker
from monitor.stream.transaction import Outbox, Place
from monitor.telemetry import Telemetry
from monitor.trace.closed import encode_closed
from monitor.trace.fold import FOLD_VERSION

_YIELD_RECORDS: Final = 500
"""Encoded between two turns of the loop."""


class _Pending:
    """What the transaction at hand holds of one partition and needs to know after it was sent."""

    def __init__(self) -> None:
        self.records: list[Any] = []  # published
        self.closed: list[tuple[Life, Place, Place]] = []  # life, first and last chunk of its entry
        self.snapshot: tuple[Place, int, int] | None = None  # first chunk, chunks, bytes


class AssembleLane(Lane):
    stage: ClassVar[str] = "assemble"

    def __init__(self, *args: Any, service: AssembleService, **common: Any) -> None:
        self._service = service
        self._pending: dict[TopicPartition, _Pending] = {}
        self._metadata: dict[TopicPartition, str] = {}
        super().__init__(*args, **common)

    # --- restore ------------------------------------------------------------------------------------

    async def admit(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        commits = await read_commits(self._service.commits_client, self._group)
        states = self._service.states
        admitted: dict[TopicPartition, int] = {}
        gone = []
        for tp in partitions:
            kept = states.get(tp.partition)
            if kept is None or kept.commit is None or kept.commit != commits.get(tp):
                states.pop(tp.partition, None)
                gone.append(tp)
            else:
                admitted[tp] = kept.commit.offset
        if gone:
            admitted |= await self._restore(gone, commits)
        for tp in admitted:
            self._service.sent.pop(tp.partition, None)
            # The mark from which this process counts: what its first transaction does is told, too.
            self._telemetry.observe_fold_counters(tp.partition, states[tp.partition].fold.counters)
        return admitted

    async def _restore(
        self, partitions: Iterable[TopicPartition], commits: Mapping[TopicPartition, Commit]
    ) -> dict[TopicPartition, int]:
        admitted = {}
        async with clients.reader(self._settings) as reader:
            recovery = Recovery(reader, self._service.names, self._settings.partitions)
            for tp in partitions:
                started = time.monotonic()
                try:
                    state = await recovery.restore(tp.partition, commits.get(tp))
                except PartitionRefused as refusal:
                    command = f"monitor topics reset-partition {tp.partition}"
                    self.refuse(tp, str(refusal), command)
                    continue
                assert state.commit is not None
                self._service.states[tp.partition] = state
                admitted[tp] = state.commit.offset
                self._telemetry.restore_seconds.observe(time.monotonic() - started)
        self._telemetry.restored_records_total.inc(recovery.records)
        return admitted

    # --- a transaction ------------------------------------------------------------------------------

    async def absorb(self, tp: TopicPartition, records: Sequence[Any]) -> int:
        state = self._state(tp)
        state.commit = None
        size = await fold_records(state.fold, records)
        state.folded(len(records), size)
        return size

    async def encode(
        self, outbox: Outbox, positions: Mapping[TopicPartition, int], *, final: bool
    ) -> None:
        self._pending.clear()
        self._metadata.clear()
        for tp in positions:
            pending = self._pending[tp] = _Pending()
            state = self._state(tp)
            if state.commit is None:
                await self._encode_output(outbox, tp, state, pending)
            for record in self._controls(tp, state):
                outbox.put(tp, None, codec.encode_fold_record(record))
        chosen = self._choose_snapshot(final=final)
        if chosen is not None:
            await self._encode_snapshot(outbox, chosen)

    async def _encode_output(
        self, outbox: Outbox, tp: TopicPartition, state: PartitionState, pending: _Pending
    ) -> None:
        router = self._service.router
        output = state.fold.drain()
        pending.records = output.records
        for count, record in enumerate(output.records, 1):
            routes = router.routes(record)
            letter = router.too_large(record, routes)
            if letter is not None:
                self.log.error(
                    "output.too_large",
                    detail=letter.detail,
                    trace_id=letter.trace_id,
                    then="dead-lettered by its coordinates; please report it",
                )
                pending.records[count - 1] = letter
                routes = router.routes(letter)
            for routed in routes:
                outbox.put(*routed)
            if count % _YIELD_RECORDS == 0:
                await asyncio.sleep(0)
        for settings in output.settings:
            outbox.put(*router.route(settings))
        closed_log = TopicPartition(self._service.names.closed_traces, tp.partition)
        for count, entry in enumerate(output.closed, 1):
            chunks = codec.chunks(encode_closed(entry), CHUNK_BYTES)
            places = [
                outbox.put(closed_log, key, chunk)
                for key, chunk in zip(closed_keys(entry, len(chunks)), chunks, strict=True)
            ]
            pending.closed.append(((entry.trace_id, entry.life), places[0], places[-1]))
            if count % _YIELD_RECORDS == 0:
                await asyncio.sleep(0)

    def _choose_snapshot(self, *, final: bool) -> TopicPartition | None:
        """At most one a transaction; the others stay due. Who has folded most since his last goes first."""
        due = [tp for tp in self.live if self._snapshot_due(tp, final=final)]
        return max(due, key=lambda tp: (self._state(tp).records, -tp.partition), default=None)

    def _snapshot_due(self, tp: TopicPartition, *, final: bool) -> bool:
        state = self._state(tp)
        return state.snapshot_due() or (final and state.records > 0)

    async def _encode_snapshot(self, outbox: Outbox, tp: TopicPartition) -> None:
        payload = self._state(tp).fold.snapshot()
        chunks = codec.chunks(payload, CHUNK_BYTES)
        log = TopicPartition(self._service.names.assembly_state, tp.partition)
        places = []
        for index, chunk in enumerate(chunks):
            places.append(outbox.put(log, chunk_key(tp.partition, index), chunk))
            await asyncio.sleep(0)
        self._pending[tp].snapshot = (places[0], len(chunks), len(payload))

    def metadata(self, outbox: Outbox, tp: TopicPartition, position: int) -> str:
        state = self._state(tp)
        pending = self._pending[tp]
        for life, first, last in pending.closed:
            state.closed.add(life, outbox.offset(first))
            state.closed.end = outbox.offset(last) + 1
        if pending.snapshot is not None:
            first, chunks, _ = pending.snapshot
            place = StateCommit(
                partitions=self._settings.partitions,
                fold_version=FOLD_VERSION,
                at=position,
                snapshot=outbox.offset(first),
                chunks=chunks,
                cf=state.closed.lowest(state.fold.in_closed_memory),
                ce=state.closed.end,
            )
            state.snapshot_written(place)
        self._metadata[tp] = state.place.encode()
        return self._metadata[tp]

    def committed(self, positions: Mapping[TopicPartition, int]) -> None:
        telemetry = self._telemetry
        for tp, position in positions.items():
            state, pending = self._state(tp), self._pending[tp]
            state.committed(Commit(position, self._metadata[tp]))
            telemetry.observe_outputs(pending.records)
            if pending.snapshot is not None:
                telemetry.snapshots_total.inc()
                telemetry.snapshot_bytes.labels(tp.partition).set(pending.snapshot[2])
            self._show(tp.partition, state)
        self._pending.clear()

    def _show(self, partition: int, state: PartitionState) -> None:
        telemetry, fold = self._telemetry, state.fold
        telemetry.open_lives.labels(partition).set(fold.open_lives)
        telemetry.closed_lives.labels(partition).set(fold.closed_lives)
        telemetry.open_bytes.labels(partition).set(fold.bytes_open)
        telemetry.closed_bytes.labels(partition).set(fold.bytes_closed)
        telemetry.observe_fold_counters(partition, fold.counters)
        self._service.show_settings(partition, state)

    def discard(self) -> None:
        """States that hold what was not committed are gone; the others may be kept."""
        states = self._service.states
        for tp in self.partitions:
            kept = states.get(tp.partition)
            if kept is not None and kept.commit is None:
                del states[tp.partition]
        self._pending.clear()

    def _state(self, tp: TopicPartition) -> PartitionState:
        return self._service.states[tp.partition]

    # --- what is due without a record ---------------------------------------------------------------

    def due(self) -> bool:
        return any(
            self._state(tp).snapshot_due() or self._wanted_controls(tp, self._state(tp))
            for tp in self.live
        )

    def final_work(self) -> bool:
        return any(self._snapshot_due(tp, final=True) for tp in self.live)

    def _wanted_controls(
        self, tp: TopicPartition, state: PartitionState
    ) -> list[SettingsRecord | GateRecord]:
        return self._service.controls(tp.partition, state)

    def _controls(
        self, tp: TopicPartition, state: PartitionState
    ) -> list[SettingsRecord | GateRecord]:
        records = self._wanted_controls(tp, state)
        self._service.sent.setdefault(tp.partition, set()).update(records)
        return records

    async def idle(self) -> None:
        for tp, committed in self.live.items():
            state = self._state(tp)
            end = self._consumer.highwater(tp)
            held = await self._service.ticker.look(
                tp.partition,
                last_record=state.last_record,
                at_end=end is not None and committed >= end,
                empty=bool(state.fold.empty),
            )
            self._telemetry.tick_hold_seconds.labels(tp.partition).set(held)


class AssembleService(LaneService):
    """The assemble stage of this process."""

    stage: ClassVar[str] = "assemble"

    def __init__(self, settings: Settings, telemetry: Telemetry, **kwargs: Any) -> None:
        super().__init__(settings, telemetry, **kwargs)
        self.ours = own_settings(settings)
        self.router = Router(settings)
        self.states: dict[int, PartitionState] = {}
        self.sent: dict[
            int, set[SettingsRecord | GateRecord]
        ] = {}  # by partition, since its restore
        self.watch = IngestWatch(settings, beacon=self.beacon)
        self.gates = GateReader(settings, beacon=self.beacon)
        self.ticker = Ticker(self.names.fragments, self.watch)
        for state, limit in (
            ("open", settings.open_bytes),
            ("closed", settings.closed_bytes),
        ):
            telemetry.bytes_limit.labels(state).set(limit)

    def input_topics(self) -> tuple[str, ...]:
        return (self.names.fragments,)

    def make_lane(
        self, number: int, partitions: Iterable[TopicPartition], **common: Any
    ) -> AssembleLane:
        return AssembleLane(number, partitions, service=self, **common)

    async def before_join(self) -> None:
        await self.add_runtime_dependency(self.watch)
        await self.add_runtime_dependency(self.gates)
        await self.ticker.start(self.settings)

    async def on_assigned(self, assigned: set[TopicPartition]) -> None:
        owned = {tp.partition for tp in assigned}
        for partition in self.states.keys() - owned:
            del self.states[partition]
            self.sent.pop(partition, None)
            self.ticker.forget([partition])

    async def on_stop(self) -> None:
        await super().on_stop()
        await self.ticker.stop()

    # --- records that the owner adds to the log -----------------------------------------------------------

    def controls(self, partition: int, state: PartitionState) -> list[SettingsRecord | GateRecord]:
        """Our settings where the log has none or ours differ and rank higher; gates newer than in force."""
        wanted: list[SettingsRecord | GateRecord] = []
        fold = state.fold
        rank, gates = fold.settings_rank, fold.gates
        if rank is None or (fold.settings_sha != self.ours.sha256 and rank < self.ours.rank):
            wanted.append(self.ours)
        for gate in self.gates.current():
            known = gates.get((gate.service, gate.scorer))
            if known is None or gate.source_offset > known[1]:
                wanted.append(gate)
        sent = self.sent.get(partition, ())
        return [record for record in wanted if record not in sent]

    def show_settings(self, partition: int, state: PartitionState) -> None:
        telemetry, in_force = self.telemetry, state.fold.settings_rank
        if in_force is None:
            return
        other = state.fold.settings_sha != self.ours.sha256
        telemetry.settings_outranked.labels(partition).set(other and in_force > self.ours.rank)
        for whose, rank in (("ours", self.ours.rank), ("log", in_force)):
            telemetry.settings_revision.labels(whose).set(rank[0])
            telemetry.settings_started_timestamp_seconds.labels(whose).set(rank[1] / 1000)
