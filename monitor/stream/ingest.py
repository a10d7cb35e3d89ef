"""Ingest: input topics -> fragments by trace, dead letters. Holds no state but the batch at hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from monitor import codec
from monitor.intake import Batch, Intake
from monitor.settings import Settings
from monitor.stream import clients, start, transaction
from monitor.stream.commits import read_commits
from monitor.stream.lane import Lane
from monitor.stream.lanes import LaneService
from monitor.stream.own_settings import own_settings
from monitor.stream.placement import partition_of
from monitor.stream.routing import Router
from monitor.stream.transaction import Outbox
from monitor.telemetry import Telemetry

_YIELD_RECORDS = 500
"""Encoded between two turns of the loop: under 10 ms."""


class IngestLane(Lane):
    stage: ClassVar[str] = "ingest"

    def __init__(self, *args: Any, service: IngestService, **common: Any) -> None:
        self._service = service
        self._batch = Batch()
        self._read: Counter[tuple[str, str]] = Counter()  # (what, topic), of the batch at hand
        self._newest: dict[str, int] = {}
        self._begun: tuple[TopicPartition, ...] = ()  # logs that this transaction begins
        super().__init__(*args, **common)

    async def admit(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        partitions = list(partitions)
        commits = await read_commits(self._service.commits_client, self._group)
        if not commits and self.number == 0:
            await self._begin_group(partitions)
            commits = await read_commits(self._service.commits_client, self._group)
        first: dict[TopicPartition, int] = await self._consumer.beginning_offsets(partitions)
        end: dict[TopicPartition, int] = await self._consumer.end_offsets(partitions)
        admitted = {}
        for tp in partitions:
            commit = commits.get(tp)
            if commit is not None:
                if first[tp] <= commit.offset <= end[tp]:
                    admitted[tp] = commit.offset
                    continue
                self.refuse(
                    tp,
                    f"committed offset {commit.offset} is outside of the log [{first[tp]}, {end[tp]}]",
                    reset_input_command(tp),
                )
            elif commits:
                admitted[tp] = first[tp]  # it has come since the group began
        return admitted

    async def _begin_group(self, mine: Sequence[TopicPartition]) -> None:
        """No commit at all: resolve MONITOR_START for everything that exists, in one transaction."""
        names = self._service.names
        consumer = self._consumer
        async with clients.admin(self._settings) as admin:
            fragments = await start.existing_partitions(admin, [names.fragments])
            inputs = await start.existing_partitions(admin, self._service.input_topics())
        if start.expired({}, await consumer.end_offsets(fragments), self._settings):
            for tp in mine:
                self.refuse(
                    tp,
                    f"group {self._group} has no commit, though {names.fragments} is not empty: its commits "
                    "have expired or it was renamed",
                    "set MONITOR_START (latest, earliest or a time) and restart",
                )
            return
        offsets = await start.resolve(consumer, inputs, self._settings.start)
        self.log.info("group.begins", start=str(self._settings.start), partitions=len(offsets))
        await transaction.commit(
            self._turns.permits,
            Outbox(self._producer),
            self._group,
            lambda: {tp: OffsetAndMetadata(offset, "") for tp, offset in offsets.items()},
        )

    async def absorb(self, tp: TopicPartition, records: Sequence[Any]) -> int:
        self._service.intake.decode(
            self._service.encodings[tp.topic], tp.topic, tp.partition, records, self._batch
        )
        size = sum(len(record.value) for record in records if record.value is not None)
        self._read["records", tp.topic] += len(records)
        self._read["bytes", tp.topic] += size
        self._newest[tp.topic] = records[-1].timestamp
        return size

    async def encode(
        self,
        outbox: Outbox,
        positions: Mapping[TopicPartition, int],  # noqa: ARG002
        *,
        final: bool,  # noqa: ARG002 - a clean stop leaves nothing behind
    ) -> None:
        router, count = self._service.router, self._settings.partitions
        self._begun, self._service.bare = self._service.bare, ()
        for tp in self._begun:
            outbox.put(tp, None, codec.encode_fold_record(self._service.ours))
        settings = outbox.records
        fragments = router.names.fragments
        tps = self._service.fragment_tps
        for done, (trace_id, payload) in enumerate(self._batch.encoded_fragments(), 1):
            outbox.put(tps[partition_of(trace_id, count)], trace_id.encode(), payload)
            if done % _YIELD_RECORDS == 0:
                await asyncio.sleep(0)
        for orphan in self._batch.orphans:
            key = orphan.fault_id
            tp = TopicPartition(fragments, partition_of(key, count))
            outbox.put(tp, key.encode(), codec.encode_fold_record(orphan))
        self._fragments = outbox.records - settings
        for letter in self._batch.dead_letters:
            outbox.put(*router.route(letter))

    def metadata(self, outbox: Outbox, tp: TopicPartition, position: int) -> str:  # noqa: ARG002
        return ""  # a bare offset

    def committed(self, positions: Mapping[TopicPartition, int]) -> None:  # noqa: ARG002
        telemetry, batch = self._telemetry, self._batch
        self._begun = ()
        for (what, topic), count in self._read.items():
            metric = (
                telemetry.input_records_total if what == "records" else telemetry.input_bytes_total
            )
            metric.labels(topic).inc(count)
        for topic, newest in self._newest.items():
            telemetry.input_last_record_timestamp_seconds.labels(topic).set(newest / 1000)
        unknown = {}
        for (kind, label), count in batch.counts.items():
            if kind == "spans":
                telemetry.spans_total.labels(label).inc(count)
            elif kind == "unknown_role":
                unknown[label] = count
        telemetry.observe_unknown_roles(unknown)
        telemetry.observe_outputs(batch.dead_letters)
        telemetry.fragments_total.inc(self._fragments)
        self.discard()

    def discard(self) -> None:
        self._batch = Batch()
        self._read.clear()
        self._newest.clear()
        self._fragments = 0
        self._service.bare = (*self._service.bare, *self._begun)
        self._begun = ()


class IngestService(LaneService):
    """The ingest stage of this process."""

    stage: ClassVar[str] = "ingest"

    def __init__(self, settings: Settings, telemetry: Telemetry, **kwargs: Any) -> None:
        super().__init__(settings, telemetry, **kwargs)
        self.intake = Intake(settings.intake_config())
        self.encodings = {spec.topic: spec.encoding for spec in settings.inputs}
        telemetry.declare_inputs(self.encodings)
        self.router = Router(settings)
        self.fragment_tps = [
            TopicPartition(self.names.fragments, p) for p in range(settings.partitions)
        ]
        self.ours = own_settings(settings)
        # Fragments partitions whose log is empty: it begins with settings. An assemble stage that starts later
        # must hold in memory whatever comes before them.
        self.bare: tuple[TopicPartition, ...] = ()

    def input_topics(self) -> tuple[str, ...]:
        return tuple(self.encodings)

    def make_lane(
        self, number: int, partitions: Iterable[TopicPartition], **common: Any
    ) -> IngestLane:
        return IngestLane(number, partitions, service=self, **common)

    async def on_assigned(self, assigned: set[TopicPartition]) -> None:  # noqa: ARG002
        assert self._consumer is not None
        if "assemble" not in self.settings.stages:  # else that stage sees to it
            ends = await self._consumer.end_offsets(self.fragment_tps)
            self.bare = tuple(tp for tp, end in ends.items() if end == 0)
        there = await self._consumer.topics()
        for topic in self.encodings:
            missing = topic not in there
            self.telemetry.input_topic_missing.labels(topic).set(missing)
            if missing:
                self.slog.warning("input.missing", topic=topic, then="waited for")


def reset_input_command(tp: TopicPartition) -> str:
    return (
        f"monitor topics reset-partition {tp.partition} --input {tp.topic} "
        "--to earliest|latest|<time>"
    )
