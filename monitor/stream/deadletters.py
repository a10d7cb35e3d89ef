"""The dead-letter topic as a log: its letters, and markers of those that have been sent again.

A marker (:class:`Redriven`) names offsets of its own partition, and was written in the transaction that sent those
letters: the one is there exactly when the other is. Committed offsets of a group would do for letters in a row, but
filters leave gaps, and a gap must stay redrivable. In the same partition a marker comes after its letters, so that
retention never takes it before them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from monitor.codec import decode_output, encode_json
from monitor.errors import UndecodableRecord
from monitor.model import DeadLetter, Source
from monitor.settings import Settings
from monitor.stream import clients
from monitor.stream.ranges import log_range, read_range
from monitor.stream.topics import TopicNames, partition_count

MARKER_KEY: Final = b"redriven"
"""Of no letter: theirs are coordinates, with slashes."""


class Redriven(msgspec.Struct, frozen=True, tag_field="kind", tag="redriven", kw_only=True):
    """The letters at these offsets of the marker's own partition have been sent again."""

    offsets: tuple[int, ...]
    at_ms: int
    schema_version: int = 1


class Letter(NamedTuple):
    """A dead letter with its place in the dead-letter topic."""

    partition: int
    offset: int
    at_ms: int  # Kafka timestamp of the letter: when the item was refused
    content: DeadLetter

    @property
    def place(self) -> str:
        return f"{self.partition}/{self.offset}"


@dataclass(frozen=True)
class Wanted:
    """Which letters. Empty sets and None: all. ``since_ms`` is the first moment, ``until_ms`` the first one past."""

    reasons: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None

    def __contains__(self, letter: Letter) -> bool:
        return (
            (not self.reasons or letter.content.reason in self.reasons)
            and (not self.topics or letter.content.source.topic in self.topics)
            and (self.since_ms is None or letter.at_ms >= self.since_ms)
            and (self.until_ms is None or letter.at_ms < self.until_ms)
        )


Marks = Mapping[int, set[int]]  # partition -> offsets of letters that have been sent again


@dataclass
class DeadLetterLog:
    """What lies in the topic between two offsets of each partition. ``foreign``: records that are no letters."""

    topic: str
    consumer: AIOKafkaConsumer
    ranges: Mapping[int, tuple[int, int]]
    foreign: int = 0

    @property
    def records(self) -> int:
        """At most so many; transaction markers count."""
        return sum(end - first for first, end in self.ranges.values())

    async def marks(self) -> Marks:
        found: dict[int, set[int]] = defaultdict(set)
        async for record in self._records():
            marker = _marker(record)
            if marker is not None:
                found[record.partition].update(marker.offsets)
        return found

    async def letters(self) -> AsyncIterator[Letter]:
        """Partition by partition, in the order of the log."""
        self.foreign = 0
        async for record in self._records():
            letter = _letter(record)
            if letter is not None:
                yield letter
            elif _marker(record) is None:
                self.foreign += 1

    async def at(self, partition: int, offset: int) -> Letter | None:
        """The letter at a place of the topic's own."""
        first, end = self.ranges.get(partition, (0, 0))
        if not first <= offset < end:
            return None
        place = TopicPartition(self.topic, partition)
        async for records in read_range(self.consumer, place, offset, offset + 1):
            for record in records:
                return _letter(record)
        return None

    async def _records(self) -> AsyncIterator[Any]:
        for partition, (first, end) in self.ranges.items():
            place = TopicPartition(self.topic, partition)
            # Retention may have moved on since: these topics live for a day.
            begins = (await self.consumer.beginning_offsets([place]))[place]
            async for records in read_range(self.consumer, place, max(first, begins), end):
                for record in records:
                    yield record


@asynccontextmanager
async def dead_letters(
    settings: Settings, *, settled: bool = False
) -> AsyncIterator[DeadLetterLog]:
    """The log up to its end as of now. Raises TopicMismatch where the topic is not there.

    ``settled``: up to the end of what is written, not only of what is committed, so that reading waits for transactions
    that are open now. A marker may stand behind a record of another's open transaction, and must be seen.
    """
    topic = TopicNames(settings.topic_prefix).deadletters
    advice = "is MONITOR_TOPIC_PREFIX right? `monitor topics check` lists ours, a worker makes them"
    count = await partition_count(settings, topic, advice)
    places = [TopicPartition(topic, number) for number in range(count)]
    async with clients.reader(settings) as consumer:
        ranges = {place.partition: await log_range(consumer, place) for place in places}
        if settled:
            ends = await _written(settings, places)
            ranges = {p: (first, ends[places[p]]) for p, (first, _) in ranges.items()}
        yield DeadLetterLog(topic, consumer, ranges)


async def _written(
    settings: Settings, places: list[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """End offsets with open transactions."""
    async with clients.reader(settings, isolation="read_uncommitted") as consumer:
        ends: Mapping[TopicPartition, int] = await consumer.end_offsets(places)
    return ends


def _letter(record: Any) -> Letter | None:
    try:
        content = decode_output(record.value or b"")
    except UndecodableRecord:
        return None
    if not isinstance(content, DeadLetter):
        return None
    return Letter(record.partition, record.offset, record.timestamp, content)


def _marker(record: Any) -> Redriven | None:
    if record.key != MARKER_KEY:
        return None
    try:
        return msgspec.json.decode(record.value or b"", type=Redriven)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def source_key(source: Source) -> str:
    """Coordinates as a person gives them, and as they stand in a letter's key."""
    return f"{source.topic}/{source.partition}/{source.offset}/{source.index}"


def marker(offsets: list[int], at_ms: int) -> bytes:
    return encode_json(Redriven(offsets=tuple(offsets), at_ms=at_ms))
