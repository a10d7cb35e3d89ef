"""Dead letters go back to the topics they came from, each once.

1. open the transactional producer: an earlier redrive that still runs is fenced, its open transaction ends
2. see how far the dead-letter topic is written, and read all markers up to there, waiting for open transactions
3. send letters without a marker, so many a transaction, each transaction with the markers of its letters

A process that dies between two steps leaves either both, what it sent and its marker, or neither.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiokafka.errors
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from monitor.model import DeadLetter, Source
from monitor.settings import Settings
from monitor.stream import clients, transaction
from monitor.stream.deadletters import (
    MARKER_KEY,
    DeadLetterLog,
    Letter,
    Marks,
    Wanted,
    dead_letters,
    marker,
)
from monitor.stream.ranges import read_range
from monitor.stream.resend import Fate, Resender, Send, Stays
from monitor.stream.topics import KAFKA_MESSAGE_LIMIT, partition_counts, topic_configs

CHUNK_LETTERS: Final = 500
"""A transaction: well under its timeout of 10 s, and few enough that a marker is small."""

CHUNK_BYTES: Final = 4 * 1024 * 1024

STAGE: Final = "redrive"
"""In the transactional id: `<group>-redrive-lane-0`."""

HEADER: Final = "agent-monitor-redriven"
"""Of a record that was sent again: place of its letter in the dead-letter topic."""

_RECORD_OVERHEAD: Final = 512  # bytes of a batch with one record: frame, header, time
_INPUT_RECORDS: Final = 64  # remembered: scores of one message come together
_INPUT_FETCH: Final = (
    65_536  # bytes of a fetch that wants one record; Kafka gives a larger one whole
)

_UNBOUNDED: Final = (
    1 << 62
)  # ms; Kafka spells "for ever" as -1 in one setting, as 2^63 - 1 in another


@dataclass
class Tally:
    """What became of the letters, by (reason, source topic); of those that stay also by why and intake's reason."""

    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    stays: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    transactions: int = 0
    foreign: int = 0

    def add(self, letter: DeadLetter, fate: Fate) -> None:
        kind = letter.reason, letter.source.topic
        if isinstance(fate, Send):
            self.sent[kind] += 1
        else:
            self.stays[(*kind, *fate)] += 1

    @property
    def left(self) -> int:
        """Letters that were not sent, neither now nor before."""
        return sum(n for (_, _, why, _), n in self.stays.items() if why != "redriven")


@dataclass(frozen=True)
class InputTopic:
    partitions: int
    record_limit: int  # bytes
    keeps_ms: int  # how old a record may be without being refused or deleted


Step = Callable[[int], None]
"""Called with the letters looked at, or sent, since the last call."""


async def plan(settings: Settings, wanted: Wanted, limit: int | None, step: Step) -> Tally:
    """What :func:`redrive` would do now."""
    tally = Tally()
    async with dead_letters(settings) as log, _desk(settings, wanted) as desk:
        async for letter, fate in desk.fates(log, await log.marks(), limit):
            tally.add(letter.content, fate)
            step(1)
        tally.foreign = log.foreign
    return tally


async def redrive(settings: Settings, wanted: Wanted, limit: int | None, step: Step) -> Tally:
    """Send them. Raises TransactionFailed: what was counted by ``step`` is sent; to run again sends none twice."""
    tally = Tally()
    async with _desk(settings, wanted) as desk:
        largest = max((t.record_limit for t in desk.topics.values()), default=KAFKA_MESSAGE_LIMIT)
        # The client compares before it packs a batch, of several records.
        producer = clients.lane_producer(
            settings, STAGE, 0, max_request=largest + clients.BATCH_BYTES
        )
        await producer.start()
        try:
            async with dead_letters(settings, settled=True) as log:
                chunk: list[tuple[Letter, Send]] = []
                size = 0

                async def flush() -> None:
                    await _transact(producer, log.topic, desk, chunk)
                    tally.transactions += 1
                    for letter, fate in chunk:
                        tally.add(letter.content, fate)
                    step(len(chunk))

                async for letter, fate in desk.fates(log, await log.marks(), limit):
                    if isinstance(fate, Stays):
                        tally.add(letter.content, fate)
                        continue
                    chunk.append((letter, fate))
                    size += sum(map(len, fate.values))
                    if len(chunk) >= CHUNK_LETTERS or size >= CHUNK_BYTES:
                        await flush()
                        chunk, size = [], 0
                if chunk:
                    await flush()
                tally.foreign = log.foreign
        finally:
            await transaction.close(producer)
    return tally


async def _transact(
    producer: AIOKafkaProducer, topic: str, desk: _Desk, chunk: list[tuple[Letter, Send]]
) -> None:
    try:
        async with asyncio.timeout(clients.TRANSACTION_TIMEOUT_MS / 1000):
            await producer.begin_transaction()
            sending = [await producer.send(**record) for record in _records(topic, desk, chunk)]
            await asyncio.gather(*sending)  # else aiokafka commits although one failed
            await producer.commit_transaction()
    except Exception as error:
        raise transaction.as_failure(error) from error


def _records(topic: str, desk: _Desk, chunk: list[tuple[Letter, Send]]) -> Iterator[dict[str, Any]]:
    """What a transaction sends: messages, and a marker for each partition that letters of the chunk lie in."""
    now = int(time.time() * 1000)
    marks: dict[int, list[int]] = defaultdict(list)
    for letter, fate in chunk:
        source = letter.content.source
        marks[letter.partition].append(letter.offset)
        for value in fate.values:
            yield {
                "topic": source.topic,
                "value": value,
                "partition": source.partition,
                "timestamp_ms": desk.stamp(source, now),
                "headers": [(HEADER, letter.place.encode())],
            }
    for partition, offsets in marks.items():
        value = marker(offsets, now)
        yield {"topic": topic, "value": value, "key": MARKER_KEY, "partition": partition}


class _Desk:
    """Decides of each letter what goes back."""

    def __init__(
        self, settings: Settings, wanted: Wanted, topics: dict[str, InputTopic], inputs: Inputs
    ) -> None:
        self.topics = topics
        self._wanted = wanted
        self._inputs = inputs
        self._resender = Resender(
            settings.intake_config(), {spec.topic: spec.encoding for spec in settings.inputs}
        )

    async def fates(
        self, log: DeadLetterLog, marks: Marks, limit: int | None
    ) -> AsyncIterator[tuple[Letter, Fate]]:
        """Of all letters that are wanted, until ``limit`` of them can be sent."""
        left = limit
        async for letter in log.letters():
            if left == 0:
                return
            if letter not in self._wanted:
                continue
            if letter.offset in marks.get(letter.partition, ()):
                yield letter, Stays("redriven")
                continue
            fate = await self._fate(letter.content)
            yield letter, fate
            if left is not None and isinstance(fate, Send):
                left -= 1

    async def _fate(self, letter: DeadLetter) -> Fate:
        if letter.reason == "span_not_in_memory" and letter.reason not in self._wanted.reasons:
            return Stays("not_named")
        record = None
        if self._resender.needs_input(letter):
            record = await self._inputs.at(letter.source)
        fate = self._resender.fate(letter, record)
        if isinstance(fate, Stays):
            return fate
        topic = self.topics.get(letter.source.topic)
        if topic is None or letter.source.partition >= topic.partitions:
            return Stays("no_such_partition")
        if max(map(len, fate.values)) + _RECORD_OVERHEAD > topic.record_limit:
            return Stays("over_topic_limit")
        return fate

    def stamp(self, source: Source, now_ms: int) -> int:
        """The input record's own time, which tells the age of a page; but none so old that the topic would refuse the
        record, or drop it before a worker has read it."""
        if not 0 < source.timestamp_ms <= now_ms:
            return now_ms
        return max(source.timestamp_ms, now_ms - self.topics[source.topic].keeps_ms // 2)


@asynccontextmanager
async def _desk(settings: Settings, wanted: Wanted) -> AsyncIterator[_Desk]:
    names = [spec.topic for spec in settings.inputs]
    async with clients.admin(settings) as admin:
        counts = await partition_counts(admin, names)
        configs = await topic_configs(admin, counts)
    topics = {
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
    async with Inputs.open(settings, topics) as inputs:
        yield _Desk(settings, wanted, topics, inputs)


def _bound(config: dict[str, str], key: str) -> int:
    value = int(config.get(key, -1))
    return _UNBOUNDED if value < 0 else min(value, _UNBOUNDED)


class Inputs:
    """Single records of input topics."""

    def __init__(self, consumer: AIOKafkaConsumer, topics: dict[str, InputTopic]) -> None:
        self._consumer = consumer
        self._topics = topics
        self._known: OrderedDict[tuple[str, int, int], Any] = OrderedDict()

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, topics: dict[str, InputTopic]) -> AsyncIterator[Inputs]:
        consumer = AIOKafkaConsumer(
            **settings.kafka_client_args(),
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=clients.RANGE_WAIT_MS,
            max_partition_fetch_bytes=_INPUT_FETCH,
        )
        await consumer.start()
        await asyncio.sleep(0)  # see clients.reader
        try:
            yield cls(consumer, topics)
        finally:
            await consumer.stop()

    async def at(self, source: Source) -> Any | None:
        """The record at these coordinates; None where it is not there any more."""
        key = source.topic, source.partition, source.offset
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        record = self._known[key] = await self._read(source)
        if len(self._known) > _INPUT_RECORDS:
            self._known.popitem(last=False)
        return record

    async def _read(self, source: Source) -> Any | None:
        there = self._topics.get(source.topic)
        if there is None or source.partition >= there.partitions:
            return None
        place, offset = TopicPartition(source.topic, source.partition), source.offset
        first = (await self._consumer.beginning_offsets([place]))[place]
        end = (await self._consumer.end_offsets([place]))[place]
        if not first <= offset < end:
            return None
        try:
            async for records in read_range(self._consumer, place, offset, offset + 1):
                record = records[0]
                # In a topic made anew another record stands at the same place.
                return record if record.timestamp == source.timestamp_ms else None
        except aiokafka.errors.OffsetOutOfRangeError:
            pass  # retention has just passed it
        return None
