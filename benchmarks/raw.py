"""What the broker and the client give at most: getmany and JSON decode, nothing else."""

from __future__ import annotations

import asyncio
import time

import msgspec
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from monitor.intake.native import NativeSpan


async def _read(bootstrap: str, topic: str, partitions: int, count: int) -> float:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        max_partition_fetch_bytes=4 * 1024 * 1024,
        fetch_max_bytes=16 * 1024 * 1024,
    )
    await consumer.start()
    decode = msgspec.json.Decoder(NativeSpan).decode
    try:
        consumer.assign([TopicPartition(topic, p) for p in range(partitions)])
        await consumer.seek_to_beginning()
        seen = 0
        started = time.perf_counter()
        while seen < count:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                seen += sum(bool(decode(record.value).scores) for record in records)
        return seen / (time.perf_counter() - started)
    finally:
        await consumer.stop()


def run(bootstrap: str, topic: str, partitions: int, count: int) -> float:
    """Spans a second."""
    return asyncio.run(_read(bootstrap, topic, partitions, count))
