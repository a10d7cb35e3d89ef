"""What an operator does for a refused partition: begin anew, in the open.

``reset_partition`` appends a *reset* record to the fragments partition and notes its offset in the state
topic, in one transaction of its own transactional id. The owner that refuses looks there and goes on at it;
the fold turns empty at it and says in a critical incident what was lost. ``reset_input`` commits a new start
for a partition of an input topic, as a transaction, since the group is alive.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from monitor.codec import encode_fold_record
from monitor.errors import MonitorError
from monitor.model import ResetRecord, SettingsRecord
from monitor.settings import Settings
from monitor.stream import clients, start
from monitor.stream.commits import read_commits
from monitor.stream.ranges import log_range
from monitor.stream.recovery import reset_key
from monitor.stream.topics import TopicNames
from monitor.trace.fold import FOLD_VERSION


@dataclass(frozen=True)
class Reset:
    """Output was published up to ``published_to``; what lies in [published_to, at) is lost."""

    partition: int
    at: int
    published_to: int


@dataclass(frozen=True)
class InputReset:
    """``skipped``: offsets from the old position to the new one, negative where it goes back."""

    topic: str
    partition: int
    before: int | None
    at: int

    @property
    def skipped(self) -> int | None:
        return None if self.before is None else self.at - self.before


async def reset_partition(settings: Settings, partition: int) -> Reset:
    """Raises MonitorError for a partition that is not there, KafkaError where Kafka refuses."""
    _in_range(partition, settings.partitions, "fragments")
    names = TopicNames(settings.topic_prefix)
    tp = TopicPartition(names.fragments, partition)
    async with clients.bare_client(settings) as client, clients.reader(settings) as reader:
        commits = await read_commits(client, clients.group_id(settings, "assemble"))
        first, _ = await log_range(reader, tp)
    published_to = commits[tp].offset if tp in commits else first
    content = settings.fold_settings()
    record = ResetRecord(
        SettingsRecord(
            FOLD_VERSION,
            (settings.settings_revision, int(time.time() * 1000)),
            content.sha256,
            content.canonical(),
        ),
        published_to,
    )
    producer = _producer(settings, f"reset-{partition}")
    await producer.start()
    try:
        async with producer.transaction():
            sent = await producer.send_and_wait(
                tp.topic, encode_fold_record(record), partition=partition
            )
            await producer.send_and_wait(
                names.assembly_state,
                str(sent.offset).encode(),
                key=reset_key(partition),
                partition=partition,
            )
    finally:
        await producer.stop()
    return Reset(partition, sent.offset, published_to)


async def reset_input(
    settings: Settings, topic: str, partition: int, to: str | datetime
) -> InputReset:
    """``to``: latest, earliest, or a time. Raises MonitorError for a topic that is no input or not there."""
    if topic not in {spec.topic for spec in settings.inputs}:
        raise MonitorError(
            f"topic {topic!r} is none of MONITOR_INPUTS: "
            f"{', '.join(spec.topic for spec in settings.inputs)}"
        )
    tp = TopicPartition(topic, partition)
    group = clients.group_id(settings, "ingest")
    async with clients.bare_client(settings) as client, clients.reader(settings) as reader:
        async with clients.admin(settings) as admin:
            there = await start.existing_partitions(admin, [topic])
        _in_range(partition, len(there), topic)
        before = (await read_commits(client, group)).get(tp)
        at = (await start.resolve(reader, [tp], to))[tp]
    producer = _producer(settings, f"reset-{topic}-{partition}")
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_offsets_to_transaction({tp: OffsetAndMetadata(at, "")}, group)
    finally:
        await producer.stop()
    return InputReset(topic, partition, before.offset if before else None, at)


def _producer(settings: Settings, name: str) -> AIOKafkaProducer:
    """Not a lane's id: opening that would fence a healthy owner."""
    return AIOKafkaProducer(
        **settings.kafka_client_args(),
        transactional_id=f"{settings.group}-{name}",
        transaction_timeout_ms=clients.TRANSACTION_TIMEOUT_MS,
    )


def _in_range(partition: int, count: int, topic: str) -> None:
    if not 0 <= partition < count:
        raise MonitorError(f"partition {partition} of {topic}: there are 0 to {count - 1}")
