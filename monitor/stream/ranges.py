"""Reads a range of one partition's log, from an offset to an offset."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import aiokafka.errors
from aiokafka import AIOKafkaConsumer, TopicPartition

STALL_SECONDS: Final = 30.0
"""Without progress for so long the read fails and the lane tries again from the beginning: a broker that
restarts is back by then; a range that can never be read must not hang its lane in silence."""

_SLICE: Final = 1000
"""Records a step: under 10 ms of parsing, so that heartbeats get their turn."""


async def read_range(
    consumer: AIOKafkaConsumer, tp: TopicPartition, start: int, end: int
) -> AsyncIterator[list[Any]]:
    """Committed records of ``tp`` with start <= offset < end, in lists.

    Ended by position, not by seeing the last record: what stands before ``end`` may be a transaction marker,
    an aborted record, or compacted away. Raises OffsetOutOfRangeError where the log no longer holds
    ``start``, KafkaTimeoutError where it stalls.
    """
    if start >= end:
        return
    consumer.assign([tp])
    consumer.seek(tp, start)
    progress = time.monotonic()
    position = start
    while position < end:
        found = await consumer.getmany(tp, timeout_ms=200, max_records=_SLICE)
        records = found.get(tp, [])
        moved = await consumer.position(tp)
        if moved > position:
            position, progress = moved, time.monotonic()
        elif time.monotonic() - progress > STALL_SECONDS:
            raise aiokafka.errors.KafkaTimeoutError(
                f"{tp.topic}-{tp.partition}: no record past offset {position} in {STALL_SECONDS:g} s, "
                f"though {end} should be reached"
            )
        if records and records[-1].offset >= end:
            records = [record for record in records if record.offset < end]
        if records:
            yield records
        await asyncio.sleep(0)


async def log_range(consumer: AIOKafkaConsumer, tp: TopicPartition) -> tuple[int, int]:
    """(first offset, end of what is committed) of the partition's log."""
    first = await consumer.beginning_offsets([tp])
    end = await consumer.end_offsets([tp])
    return first[tp], end[tp]
