"""A topic in the order of time, for `monitor topics dump`: partitions one after the other would tear traces apart."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import ConsumerRecord, TopicPartition

from monitor.settings import Settings
from monitor.stream import clients
from monitor.stream.ranges import log_range, read_range


async def in_time_order(
    settings: Settings, topic: str, partitions: int
) -> AsyncIterator[ConsumerRecord[bytes, bytes]]:
    """Every committed record up to the topic's end as of now, the one with the lowest time stamp of all partitions next.

    Inside a partition the order is the log's, whatever the time stamps. One connection a partition.
    """
    async with AsyncExitStack() as stack:
        # One entry a partition, so that two never compare equal.
        heads = []
        for number in range(partitions):
            reader = await stack.enter_async_context(clients.reader(settings))
            records = _records(reader, TopicPartition(topic, number))
            async for record in records:
                heads.append((record.timestamp, number, record, records))
                break
        heapq.heapify(heads)
        while heads:
            _, number, record, records = heads[0]
            yield record
            async for following in records:
                heapq.heapreplace(heads, (following.timestamp, number, following, records))
                break
            else:
                heapq.heappop(heads)


async def _records(
    reader: AIOKafkaConsumer, place: TopicPartition
) -> AsyncIterator[ConsumerRecord[bytes, bytes]]:
    first, end = await log_range(reader, place)
    async for records in read_range(reader, place, first, end):
        for record in records:
            yield record
