"""What the keyed stages share: the loop of a Faust agent whose table values are fenced.

For each message, in this order: skip it if a fence says that it is applied; send what it causes and await every ack; check the
lease; write the table; ack the message once the changelog has the write. So after a crash anywhere the message either comes
again and causes the same outputs with the same ids, or is skipped.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, cast

import faust
from aiokafka.errors import KafkaError
from faust.exceptions import ProducerSendError
from faust.types import TP

from monitor.errors import UndecodableRecord
from monitor.logs import get_logger
from monitor.model import DeadLetter, Source
from monitor.settings import Settings
from monitor.stream.faust_overrides import ExactCommitConsumer
from monitor.stream.fence import Lease, LeaseLostError
from monitor.stream.routing import Routed, Router
from monitor.stream.tables import FencedTable
from monitor.telemetry import Telemetry

AGENTS: Final = "agents"
"""The stage that all keyed agents make up."""

PENDING_LIMIT: Final = (
    500  # messages whose table write is on its way: what a crash makes come again
)
_FIRST_RETRY_SECONDS: Final = 0.1
_LAST_RETRY_SECONDS: Final = 5.0
_DETAIL_LIMIT: Final = 200  # characters of an error in a dead letter

_log: Final = get_logger(__name__)


class KeyedAgent(ABC):
    """One Faust agent over one topic and its tables. ``tables`` share the topic's partitions and fences."""

    name: ClassVar[str]

    def __init__(
        self,
        app: faust.App,
        settings: Settings,
        telemetry: Telemetry,
        lease: Lease,
        *,
        topic: str,
        tables: Sequence[FencedTable],
    ) -> None:
        self.app = app
        self.topic = topic
        self.tables = tuple(tables)
        self.refused: frozenset[int] = frozenset()
        self._telemetry = telemetry
        self._lease = lease
        self._router = Router(settings)
        self._pending: set[asyncio.Future[Any]] = set()
        self._done: dict[
            int, tuple[int, int]
        ] = {}  # partition -> offset and time of the last message handled
        self._shown: set[int] = set()
        source = app.topic(
            topic,
            partitions=settings.partitions,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
            allow_empty=True,
        )
        app.agent(source, name=self.name, concurrency=1)(self.run)
        self.tables[0].on_recover(self._recovered)

    @abstractmethod
    async def handle(self, message: Any) -> list[asyncio.Future[Any]]:
        """Apply one message; returns the table writes on their way.

        Raises UndecodableRecord for a message that is none of this topic, LeaseLostError, KafkaError.
        """

    @abstractmethod
    async def on_recovered(self) -> None:
        """The tables hold exactly the rows of the partitions that are ours."""

    async def publish(self, records: Sequence[Routed]) -> None:
        """Send and await every ack. Raises KafkaError or ProducerSendError."""
        producer = self.app.producer
        acks = [
            await producer.send(place.topic, key, value, place.partition, None, None)
            for place, key, value in records
        ]
        await asyncio.gather(*acks)

    async def settle(self) -> None:
        """Return once the changelogs have every write that is on its way. Raises LeaseLostError if one was refused."""
        if not self._pending:
            return
        written, _ = await asyncio.wait(self._pending)
        if any(write.cancelled() or write.exception() for write in written):
            raise LeaseLostError("a table write was refused: this process ends")

    async def run(self, stream: Any) -> None:
        async for event in stream.noack().events():
            message = event.message
            if message.partition in self.refused:
                continue  # never acked: its lag grows and is alerted
            try:
                writes = await self._handled(message)
            except LeaseLostError:
                continue  # not acked: it is read again once the partitions are assigned anew
            self._done[message.partition] = (message.offset, _milliseconds(message))
            await self._ack_when_written(event, writes)

    async def show_lag(self) -> None:
        """Set the lag of each partition that is ours; one whose end was reached, past control records too, has none."""
        consumer = cast(ExactCommitConsumer, self.app.consumer)
        ours = {tp for tp in consumer.assignment() if tp.topic == self.topic}
        for tp in ours:
            end = cast(int | None, consumer.highwater(tp))  # None until the first fetch
            position = await consumer.position(tp)
            if end is None or position is None:
                continue
            done, done_ms = self._done.get(tp.partition, (-1, None))
            handed = consumer.handed.get(tp, -1)
            waiting = end - (done + 1 if handed > done else position)
            self._telemetry.observe_lag(
                AGENTS, self.topic, tp.partition, records=max(0, waiting), position_ms=done_ms
            )
        for partition in self._shown - {tp.partition for tp in ours}:
            self._telemetry.forget_partition(AGENTS, self.topic, partition)
        self._shown = {tp.partition for tp in ours}

    async def _handled(self, message: Any) -> list[asyncio.Future[Any]]:
        delay = _FIRST_RETRY_SECONDS
        while True:
            self._lease.require()
            try:
                return await self.handle(message)
            except LeaseLostError:
                raise
            except UndecodableRecord as error:
                await self._dead_letter(message, "undecodable_record", error)
                return []
            except (KafkaError, ProducerSendError) as error:
                _log.warning("kafka does not take it, retrying", agent=self.name, error=str(error))
                self._count("retried")
                await asyncio.sleep(delay)
                delay = min(2 * delay, _LAST_RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001 - an agent that raises loses the message: Faust acks it
                _log.exception("agent failed", agent=self.name, offset=message.offset)
                await self._dead_letter(message, "agent_error", error)
                return []

    async def _dead_letter(self, message: Any, reason: str, error: Exception) -> None:
        letter = DeadLetter(
            reason=reason,
            detail=f"{type(error).__name__}: {error}"[:_DETAIL_LIMIT],
            source=Source(
                message.topic,
                message.partition,
                message.offset,
                0,
                _milliseconds(message),
            ),
            value=message.value,
        )
        while True:
            self._lease.require()
            try:
                await self.publish([self._router.route(letter)])
            except (KafkaError, ProducerSendError) as refusal:
                _log.warning("dead letter not taken, retrying", error=str(refusal))
                await asyncio.sleep(_LAST_RETRY_SECONDS)
            else:
                self._telemetry.observe_dead_letter(letter)
                self._count("failed")
                return

    async def _ack_when_written(self, event: Any, writes: list[asyncio.Future[Any]]) -> None:
        if not writes:
            event.ack()
            return
        written = asyncio.gather(*writes)
        self._pending.add(written)

        def done(future: asyncio.Future[Any]) -> None:
            self._pending.discard(future)
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                event.ack()
                return
            # Memory is ahead of the changelog now. Only a new process reads the state as it is.
            _log.error("table write refused", agent=self.name, error=str(error))
            asyncio.ensure_future(self.app.crash(error))  # noqa: RUF006 - ends the app that would hold it

        written.add_done_callback(done)
        if len(self._pending) >= PENDING_LIMIT:
            await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)

    async def _recovered(self) -> None:
        try:
            self.refused = await self._impossible_partitions()
            await self.on_recovered()
        except Exception as error:  # noqa: BLE001 - Faust would drop it, and go on with a table nobody checked
            _log.exception("recovery check failed", agent=self.name)
            await self.app.crash(error)

    async def _impossible_partitions(self) -> frozenset[int]:
        """Partitions whose table is ahead of their topic: the topic was made anew under the old state."""
        highest: dict[int, int] = {}
        for table in self.tables:
            for partition, fence in table.highest_fences().items():
                highest[partition] = max(highest.get(partition, -1), fence)
        places = {TP(self.topic, partition) for partition in highest}
        if not places:
            return frozenset()
        ends = await self.app.consumer.highwaters(*places)
        refused = {p for p, fence in highest.items() if fence >= (ends.get(TP(self.topic, p)) or 0)}
        for partition in self.refused | refused:
            gauge = self._telemetry.refused_partitions.labels(AGENTS, self.topic, str(partition))
            gauge.set(1 if partition in refused else 0)
        for partition in sorted(refused):
            _log.error(
                "partition refused: its table holds messages that its topic does not have (the topic was made anew). "
                "Begin anew under another MONITOR_TOPIC_PREFIX, or stop all workers and delete the changelog topics",
                topic=self.topic,
                partition=partition,
                changelogs=[table.changelog_topic_name for table in self.tables],
            )
        return frozenset(refused)

    def _count(self, outcome: str) -> None:
        self._telemetry.agent_messages_total.labels(self.name, outcome).inc()


def _milliseconds(message: Any) -> int:
    """The record's Kafka timestamp."""
    return round((message.timestamp or 0) * 1000)
