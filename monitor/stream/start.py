"""Where ingest begins to read an input partition.

A group without any commit begins where MONITOR_START says. That is resolved once, by the owner of lane 0, in
one transaction for every partition that exists then; all other lanes wait until their partitions have a
commit. A partition without a commit begins at its log's start only if the group had commits when this worker
joined: then it appeared later, and nothing of it may be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from monitor.settings import Settings
from monitor.stream import topics
from monitor.stream.commits import Commit


async def existing_partitions(
    admin: AIOKafkaAdminClient, names: Iterable[str]
) -> list[TopicPartition]:
    """Of those topics that exist. (A consumer knows only the topics that it is subscribed to.)"""
    counts = await topics.partition_counts(admin, names)
    return [TopicPartition(topic, p) for topic, count in counts.items() for p in range(count)]


async def resolve(
    consumer: AIOKafkaConsumer, partitions: Iterable[TopicPartition], start: str | datetime
) -> dict[TopicPartition, int]:
    """Partition -> offset for MONITOR_START: latest, earliest, or a time (its first record at or after it)."""
    partitions = list(partitions)
    if not partitions:
        return {}
    if start == "earliest":
        found: dict[TopicPartition, int] = await consumer.beginning_offsets(partitions)
        return found
    ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
    if not isinstance(start, datetime):
        return ends
    moment = int(start.timestamp() * 1000)
    at = await consumer.offsets_for_times(dict.fromkeys(partitions, moment))
    return {tp: at[tp].offset if at.get(tp) is not None else ends[tp] for tp in partitions}


def expired(
    commits: Mapping[TopicPartition, Commit],
    fragments_end: Mapping[TopicPartition, int],
    settings: Settings,
) -> bool:
    """A monitor that has worked before and lost its commits: MONITOR_START must be set to go on."""
    return not commits and any(fragments_end.values()) and not settings.start_is_explicit
