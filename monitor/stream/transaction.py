"""One Kafka transaction of one lane: what it holds, and the commit.

The commit, step by step:

1. encode everything (an :class:`Outbox`), so that an encoder's failure leaves no transaction open
2. take one of the process's permits (at most 2 transactions open at a time)
3. begin
4. send every batch
5. await every batch's future; aiokafka commits a transaction whose un-awaited send failed
6. let the caller write its commit metadata: it names offsets that are known only now
7. add the offsets
8. commit

Whatever fails between 3 and 8 leaves the outcome unknown and the producer unusable (after a refused batch
each later transaction of it fails too): :class:`TransactionFailed` or :class:`Fenced` is raised, and the
lane discards producer **and** state, opens anew, reads the commit, and believes it. Nothing is tried again
with either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiokafka.errors
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from monitor.errors import MonitorError
from monitor.stream.clients import TRANSACTION_TIMEOUT_MS

OPEN_AT_ONCE: Final = 2
"""Transactions a process. More overlap no more work (the loop is one), and each open one holds back the
readers of every partition that it wrote to."""

STEP_SECONDS: Final = 3.0
"""Of each step of an end: abort, then stop. The successor's open ends the transaction anyway."""


class TransactionFailed(MonitorError):
    """Outcome unknown: producer and state are to be discarded."""


class Fenced(TransactionFailed):
    """Another owner has opened this lane, or may have: rejoin the group before anything else.

    Also where a transaction outlived its timeout: the process was away (a paused machine), perhaps for longer
    than its session, and opening the lane again at once would fence the rightful owner.
    """


@dataclass(frozen=True, slots=True)
class Place:
    """Of a record in an outbox; its offset is known once the outbox has been sent."""

    tp: TopicPartition
    batch: int
    index: int


@dataclass
class Outbox:
    """Encoded records for one transaction, batched by partition in the order of ``put``."""

    producer: AIOKafkaProducer
    records: int = 0
    size: int = 0  # bytes of values
    _batches: dict[TopicPartition, list[Any]] = field(default_factory=dict)
    _offsets: dict[TopicPartition, list[int]] = field(default_factory=dict)

    def put(self, tp: TopicPartition, key: bytes | None, value: bytes) -> Place:
        """Append to the partition's last batch, or to a new one where that is full."""
        batches = self._batches.get(tp)
        if batches is None:
            batches = self._batches[tp] = [self.producer.create_batch()]
        batch = batches[-1]
        if batch.append(timestamp=None, key=key, value=value) is None:
            batch = self.producer.create_batch()
            batches.append(batch)
            if batch.append(timestamp=None, key=key, value=value) is None:
                raise MonitorError(
                    f"{tp.topic}-{tp.partition}: record of {len(value)} bytes fits no batch"
                )
        self.records += 1
        self.size += len(value)
        return Place(tp, len(batches) - 1, batch.record_count() - 1)

    def __bool__(self) -> bool:
        return self.records > 0

    async def send(self) -> None:
        """Steps 4 and 5. Partitions in parallel; a partition's batches one after the other, in order."""
        await asyncio.gather(*(self._send_partition(tp) for tp in self._batches))

    async def _send_partition(self, tp: TopicPartition) -> None:
        futures = []
        for batch in self._batches[tp]:
            batch.close()  # a closed batch does not linger
            future = await self.producer.send_batch(batch, tp.topic, partition=tp.partition)
            future.add_done_callback(_seen)
            futures.append(future)
        results = await asyncio.gather(*futures)
        self._offsets[tp] = [result.offset for result in results]

    def offset(self, place: Place) -> int:
        """Of the record in the log. Only after :meth:`send`."""
        return self._offsets[place.tp][place.batch] + place.index


def _seen(future: asyncio.Future[Any]) -> None:
    """Of several failures the first is raised; the others are no news."""
    if not future.cancelled():
        future.exception()


Offsets = Mapping[TopicPartition, OffsetAndMetadata]


async def commit(
    permits: asyncio.Semaphore,
    outbox: Outbox,
    group: str,
    offsets: Callable[[], Offsets],
) -> None:
    """Steps 2 to 8. ``offsets`` is called at step 6. Raises TransactionFailed, or Fenced."""
    producer = outbox.producer
    async with permits:
        try:
            # A commit that takes longer is past its timeout: the broker has aborted it, or soon will.
            async with asyncio.timeout(TRANSACTION_TIMEOUT_MS / 1000):
                await producer.begin_transaction()
                await outbox.send()
                await producer.send_offsets_to_transaction(dict(offsets()), group)
                await producer.commit_transaction()
        except Exception as error:
            raise as_failure(error) from error


def as_failure(error: BaseException) -> TransactionFailed:
    fences = (
        aiokafka.errors.ProducerFenced,
        aiokafka.errors.InvalidProducerEpoch,
        TimeoutError,
    )
    kind = Fenced if isinstance(error, fences) else TransactionFailed
    return kind(f"{type(error).__name__}: {error}")


async def close(producer: AIOKafkaProducer) -> None:
    """Abort what is open and stop, each within STEP_SECONDS; what does not end is dropped.

    aiokafka's ``stop`` does not abort, and readers would wait for the transaction's timeout.
    """
    for step in (_abort, AIOKafkaProducer.stop, _drop):
        try:
            async with asyncio.timeout(STEP_SECONDS):
                await step(producer)
        except Exception:  # noqa: BLE001 - nothing of it is used again; the next open ends what is left
            continue


async def _abort(producer: AIOKafkaProducer) -> None:
    manager = producer._txn_manager
    if manager.is_in_transaction():
        await producer.abort_transaction()


async def _drop(producer: AIOKafkaProducer) -> None:
    """After a stop that hung: its task and its connections."""
    sender = producer._sender.sender_task
    if sender is not None and not sender.done():
        sender.cancel()
    await producer.client.close()
