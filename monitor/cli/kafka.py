"""What the commands that talk to a cluster share: reading a topic whole, and errors an operator can act on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord, TopicPartition

from monitor.chatter import taken
from monitor.errors import MonitorError
from monitor.settings import Settings
from monitor.stream import clients
from monitor.stream.ranges import log_range, read_range
from monitor.stream.topics import partition_count

T = TypeVar("T")


class KafkaUnreachable(MonitorError):
    """No broker answers, or it refuses us; the message names the brokers."""


def on_kafka(work: Awaitable[T], settings: Settings) -> T:
    async def bounded() -> T:
        return await work

    with taken("aiokafka") as said:
        try:
            return asyncio.run(bounded())
        except KafkaError as error:
            raise KafkaUnreachable(
                f"Kafka at {', '.join(settings.bootstrap_servers)}: {clients.why(error, said)}; check "
                "MONITOR_BOOTSTRAP_SERVERS and MONITOR_SECURITY_PROTOCOL (`monitor config`)"
            ) from error


async def committed_records(
    settings: Settings, topic: str
) -> AsyncIterator[ConsumerRecord[bytes, bytes]]:
    """Every committed record of a topic up to its end as of now, partition by partition."""
    count = await partition_count(settings, topic, "`monitor topics check` lists ours")
    async with clients.reader(settings) as consumer:
        for number in range(count):
            place = TopicPartition(topic, number)
            first, end = await log_range(consumer, place)
            async for records in read_range(consumer, place, first, end):
                for record in records:
                    yield record
