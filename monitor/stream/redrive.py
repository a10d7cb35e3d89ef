"""Dead letters go back to the topics they came from, each once.

1. open the transactional producer: an earlier redrive that still runs is fenced, its open transaction ends
2. see how far the dead-letter topic is written, and read all markers up to there, waiting for open transactions
3. send letters without a marker, so many a transaction, each transaction with the markers of its letters

A process that dies leaves of each transaction all, items and markers, or nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaProducer

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
from monitor.stream.inputs import Inputs, InputTopic, input_topics
from monitor.stream.resend import Fate, Resender, Send, Stays
from monitor.stream.topics import KAFKA_MESSAGE_LIMIT

CHUNK_LETTERS: Final = 500
"""A transaction: well under its timeout of 10 s, and few enough that a marker is small."""

CHUNK_BYTES: Final = 4 * 1024 * 1024

STAGE: Final = "redrive"
"""In the transactional id: `<group>-redrive-lane-0`."""

HEADER: Final = "agent-monitor-redriven"
"""Of a record that was sent again: place of its letter in the dead-letter topic."""

_RECORD_OVERHEAD: Final = 512  # bytes of a batch with one record: frame, header, time


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
        producer = _producer(settings, [topic.record_limit for topic in desk.topics.values()])
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


def _producer(settings: Settings, limits: list[int]) -> AIOKafkaProducer:
    """``limits``: bytes of a batch that each topic takes."""
    return AIOKafkaProducer(
        **settings.kafka_client_args(),
        client_id=f"{settings.group}-{STAGE}",
        transactional_id=clients.transactional_id(settings, STAGE, 0),
        transaction_timeout_ms=clients.TRANSACTION_TIMEOUT_MS,
        request_timeout_ms=clients.TRANSACTION_TIMEOUT_MS,
        retry_backoff_ms=clients.RETRY_BACKOFF_MS,
        max_batch_size=min([clients.BATCH_BYTES, *limits]),
        # A record larger than a batch travels alone; `_Desk` has compared it with its topic's limit.
        max_request_size=max([KAFKA_MESSAGE_LIMIT, *limits]),
        linger_ms=clients.LINGER_MS,
    )


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
    topics = await input_topics(settings)
    async with Inputs.open(settings, topics) as inputs:
        yield _Desk(settings, wanted, topics, inputs)
