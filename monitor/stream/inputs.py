"""Input topics as redrive sees them: what they take, and single records of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiokafka.errors
from aiokafka import AIOKafkaConsumer, TopicPartition

from monitor.model import Source
from monitor.settings import Settings
from monitor.stream import clients
from monitor.stream.ranges import log_range, read_range
from monitor.stream.topics import KAFKA_MESSAGE_LIMIT, partition_counts, topic_configs

_INPUT_FETCH: Final = 512 * 1024
"""Bytes of a read; Kafka gives a larger record whole."""

_WINDOWS: Final = 32
"""Reads that are kept: letters of as many input partitions in turn."""

_UNBOUNDED: Final = 1 << 62
"""ms. Kafka spells "for ever" as -1 in one setting and as 2^63 - 1 in another."""


@dataclass(frozen=True)
class InputTopic:
    partitions: int
    record_limit: int  # bytes
    keeps_ms: int  # how old a record may be without being refused or deleted


async def input_topics(settings: Settings) -> dict[str, InputTopic]:
    """Those of MONITOR_INPUTS that are there."""
    names = [spec.topic for spec in settings.inputs]
    async with clients.admin(settings) as admin:
        counts = await partition_counts(admin, names)
        configs = await topic_configs(admin, counts)
    return {
        name: InputTopic(
            count,
            int(configs[name].get("max.message.bytes", KAFKA_MESSAGE_LIMIT)),
            min(
                _bound(configs[name], "retention.ms"),
                _bound(configs[name], "message.timestamp.before.max.ms"),
            ),
        )
        for name, count in counts.items()
    }


def _bound(config: dict[str, str], key: str) -> int:
    value = int(config.get(key, -1))
    return _UNBOUNDED if value < 0 else min(value, _UNBOUNDED)


@dataclass(frozen=True)
class _Window:
    """Records of a partition with first <= offset < end."""

    first: int
    end: int
    records: dict[int, Any]


class Inputs:
    """Single records of input topics. Letters stand in nearly the order of their items: what a read brings with the
    record that is wanted is kept, since the next one is likely in it."""

    def __init__(self, consumer: AIOKafkaConsumer, topics: Mapping[str, InputTopic]) -> None:
        self._consumer = consumer
        self._topics = topics
        self._windows: OrderedDict[TopicPartition, _Window] = OrderedDict()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings, topics: Mapping[str, InputTopic]
    ) -> AsyncIterator[Inputs]:
        async with clients.reader(settings, fetch_bytes=_INPUT_FETCH) as consumer:
            yield cls(consumer, topics)

    async def at(self, source: Source) -> Any | None:
        """The record at these coordinates; None where it is not there any more."""
        there = self._topics.get(source.topic)
        if there is None or source.partition >= there.partitions:
            return None
        place, offset = TopicPartition(source.topic, source.partition), source.offset
        window = self._windows.get(place)
        if window is None or not window.first <= offset < window.end:
            window = self._windows[place] = await self._read(place, offset)
            if len(self._windows) > _WINDOWS:
                self._windows.popitem(last=False)
        self._windows.move_to_end(place)
        record = window.records.get(offset)
        # In a topic made anew another record stands at the same place.
        return None if record is None or record.timestamp != source.timestamp_ms else record

    async def _read(self, place: TopicPartition, offset: int) -> _Window:
        first, end = await log_range(self._consumer, place)
        if first <= offset < end:
            try:
                async for records in read_range(self._consumer, place, offset, end):
                    found = {record.offset: record for record in records}
                    return _Window(offset, records[-1].offset + 1, found)
            except aiokafka.errors.OffsetOutOfRangeError:
                pass  # retention has just passed it
        return _Window(offset, offset + 1, {})
