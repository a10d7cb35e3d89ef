"""One lane of a stage in this process: from its assignment until it is revoked.

Opening, in this order: start the lane's producer, which fences whoever had the lane before and ends his
transaction; only then read the commits; restore; go live. Then, until told to stop: take records, absorb
them into memory, encode what they cause, commit it all in one transaction (transaction.py has the steps).

Memory is invalid from the first record absorbed until its commit has returned; a failure anywhere discards
memory and producer, and the lane opens anew. After a fence it does not: the group is rejoined first.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from monitor.settings import Settings
from monitor.stream import clients, transaction
from monitor.stream.transaction import Fenced, Outbox, TransactionFailed
from monitor.stream.turns import Turns
from monitor.telemetry import Telemetry

log = structlog.get_logger()

TRANSACTION_BYTES: Final = 4 * 1024 * 1024
"""A transaction takes whole records until these are passed: more makes recovery and memory larger without
making it faster (at 6 requests a transaction the fixed cost is under 2 % from 1 MiB on)."""

TRANSACTION_SECONDS: Final = 1.0
"""… or until it has been taking for so long: the rest of its 10 s is for what the records cause."""

LINGER_SECONDS: Final = 0.1
"""A quiet lane waits so long for more before it commits: a transaction costs some 5 ms of processor in all,
and 16 lanes would otherwise spend a core on transactions of a few records. It is twice in a page's 2 s."""

SLICE_RECORDS: Final = 1_000
"""Taken at a time: about 10 ms of parsing and decoding between two turns of the loop."""

IDLE_SECONDS: Final = 0.25
"""Between two looks at what else is due while no record comes."""

MOVED_SECONDS: Final = 1.0
"""A position that moved without a record (past transaction markers, aborted records) is committed after
this: a commit that stays before them is out of range once retention has passed it."""

RECHECK_SECONDS: Final = 2.0
"""Between two looks at partitions that wait or are refused: a reset is seen after at most this."""

FIRST_BACKOFF_SECONDS: Final = 0.1
LAST_BACKOFF_SECONDS: Final = 5.0
"""Between two openings after a failure, doubling: a broker's restart takes a few seconds."""

State = Literal["restoring", "live", "waiting", "ended"]


class Lane(ABC):
    """``stage`` names the metrics' and ids' part; ``rejoin`` asks the group to rejoin after a fence."""

    stage: ClassVar[str]

    def __init__(
        self,
        number: int,
        partitions: Iterable[TopicPartition],
        *,
        consumer: AIOKafkaConsumer,
        settings: Settings,
        telemetry: Telemetry,
        rejoin: Callable[[], None],
        max_request: int,
    ) -> None:
        self.number = number
        self.partitions = frozenset(partitions)
        self.state: State = "restoring"
        self.live: dict[TopicPartition, int] = {}  # -> committed offset
        self.refused: dict[TopicPartition, str] = {}
        self._consumer = consumer
        self._settings = settings
        self._telemetry = telemetry
        self._rejoin = rejoin
        self._max_request = max_request
        self._group = clients.group_id(settings, self.stage)
        self._reached: dict[TopicPartition, int] = {}  # -> Kafka timestamp of the last record, ms
        self._turns = Turns.here()
        self._producer: AIOKafkaProducer | None = None
        self._stop = asyncio.Event()
        self._final = False
        self._next_look = 0.0
        self._backoff = FIRST_BACKOFF_SECONDS
        self._moved_at: float | None = None
        self._fetching: asyncio.Future[Any] | None = None
        self.log = log.bind(stage=self.stage, lane=number)
        self.task: asyncio.Task[None] = asyncio.create_task(
            self._run(), name=f"{self.stage}-lane-{number}"
        )

    # --- what a stage does --------------------------------------------------------------------------

    @abstractmethod
    async def admit(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Restore what can be; partition -> offset to go on at. Calls :meth:`refuse` for what cannot be.

        A partition in neither waits, and is asked for again.
        """

    @abstractmethod
    async def absorb(self, tp: TopicPartition, records: Sequence[Any]) -> int:
        """Take records into memory; returns their bytes. Yields to the loop on the way if it is long."""

    @abstractmethod
    async def encode(
        self, outbox: Outbox, positions: Mapping[TopicPartition, int], *, final: bool
    ) -> None:
        """Put all that the absorbed records cause into ``outbox``."""

    @abstractmethod
    def metadata(self, outbox: Outbox, tp: TopicPartition, position: int) -> str:
        """Of the commit of ``tp``; the offsets of what was sent are known."""

    @abstractmethod
    def committed(self, positions: Mapping[TopicPartition, int]) -> None:
        """The transaction is committed: memory is valid again, and what it caused may be counted."""

    def due(self) -> bool:
        """Whether something is to be committed although no record came."""
        return False

    def final_work(self) -> bool:
        """Whether a clean stop has something left to commit."""
        return False

    async def idle(self) -> None:  # noqa: B027 - ingest has nothing to do there
        """Between two takes."""

    @abstractmethod
    def discard(self) -> None:
        """Forget what was absorbed and not committed."""

    # --- the lane's life ----------------------------------------------------------------------------

    async def stop(self, *, final: bool, seconds: float) -> None:
        """End after the transaction at hand; ``final`` (the process stops) also writes what a clean stop does.

        What has not ended after ``seconds`` is cancelled; aborting and closing then have their own limits.
        """
        self._final = final
        self._stop.set()
        # While a rebalance is on, aiokafka's fetch waits for its end, and it waits for us.
        if self._fetching is not None:
            self._fetching.cancel()
        if self.state == "restoring":
            self.task.cancel()
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait([self.task])
        except TimeoutError:
            self.log.warning("lane.cancelled", seconds=seconds)
        if not self.task.done():
            self.task.cancel()
        await asyncio.wait([self.task], timeout=3 * transaction.STEP_SECONDS)

    async def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    await self._open()
                    await self._live()
                except Fenced as error:
                    # Whoever opened it may own it now: only an assignment after a rejoin may open it again.
                    self.log.warning("lane.fenced", error=str(error))
                    self._count("fenced")
                    self._rejoin()
                    return
                except asyncio.CancelledError as error:
                    # aiokafka lets callers share futures: another's cancellation may arrive here as ours.
                    if self._cancelled():
                        raise
                    await self._failed(error)
                except Exception as error:  # noqa: BLE001 - whatever it was: memory and producer are not to be trusted
                    await self._failed(error)
        finally:
            await self._close()
            self.state = "ended"

    async def _failed(self, error: BaseException) -> None:
        self._count("unknown" if isinstance(error, TransactionFailed) else "aborted")
        known = (KafkaError, TransactionFailed, OSError)
        self.log.warning(
            "lane.failed",
            error=f"{type(error).__name__}: {error}",
            again_in=self._backoff,
            exc_info=not isinstance(error, known),
        )
        await self._close()
        await self._pause(self._backoff)
        self._backoff = min(self._backoff * 2, LAST_BACKOFF_SECONDS)

    async def _open(self) -> None:
        self.state = "restoring"
        self._producer = clients.lane_producer(
            self._settings, self.stage, self.number, max_request=self._max_request
        )
        await self._producer.start()
        self.live.clear()
        await self._admit(self.partitions)

    async def _close(self) -> None:
        self.discard()
        self.live.clear()
        self._moved_at = None
        producer, self._producer = self._producer, None
        if producer is not None:
            await transaction.close(producer)

    async def _admit(self, partitions: Iterable[TopicPartition]) -> None:
        partitions = sorted(partitions)
        for tp, offset in (await self.admit(partitions)).items():
            self._consumer.seek(tp, offset)
            self._consumer.resume(tp)
            self.live[tp] = offset
            if self.refused.pop(tp, None) is not None:
                self.log.info("partition.accepted", topic=tp.topic, partition=tp.partition)
        for tp in partitions:
            gauge = self._telemetry.refused_partitions.labels(self.stage, tp.topic, tp.partition)
            gauge.set(tp in self.refused)
        self._next_look = time.monotonic() + RECHECK_SECONDS
        outside = len(self.partitions) - len(self.live) - len(self.refused)
        self.state = "waiting" if outside else "live"

    def refuse(self, tp: TopicPartition, why: str, command: str) -> None:
        """Leave ``tp`` out and say how to cure it; the lane goes on with the others."""
        if self.refused.get(tp) != why:
            self.log.error(
                "partition.refused", topic=tp.topic, partition=tp.partition, why=why, run=command
            )
        self.refused[tp] = why

    async def _live(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            taken = await self._take()
            if len(self.live) < len(self.partitions) and time.monotonic() > self._next_look:
                await self._admit(self.partitions - self.live.keys())
            await self.idle()
            positions = {tp: await self._consumer.position(tp) for tp in self.live}
            if taken or self.due() or self._moved(positions):
                await self._transact(positions, started if taken else None)
            self._telemetry.beat(self.stage)
        while self._final and self.live and self.final_work():
            positions = {tp: await self._consumer.position(tp) for tp in self.live}
            await self._transact(positions, None, final=True)

    async def _take(self) -> int:
        """Absorb what is there, whole records: until 4 MiB or 1 s, or a quiet moment after the linger."""
        records = await self._fetch(IDLE_SECONDS)
        begun = time.monotonic()
        taken = size = 0
        while True:
            if records:
                async with self._turns.work:
                    while records:
                        for tp, some in records.items():
                            size += await self.absorb(tp, some)
                            taken += len(some)
                            self._reached[tp] = some[-1].timestamp
                        long = time.monotonic() - begun > TRANSACTION_SECONDS
                        if size >= TRANSACTION_BYTES or long or self._stop.is_set():
                            return taken
                        await asyncio.sleep(0)
                        records = await self._fetch(0)
            left = begun + LINGER_SECONDS - time.monotonic()
            if not taken or left <= 0 or self._stop.is_set():
                return taken
            records = await self._fetch(left)

    async def _fetch(self, seconds: float) -> dict[TopicPartition, list[Any]]:
        if not self.live:  # aiokafka takes no partition for every partition
            await self._pause(seconds)
        if not self.live or self._stop.is_set():
            return {}
        self._fetching = asyncio.ensure_future(
            self._consumer.getmany(
                *self.live, timeout_ms=int(seconds * 1000), max_records=SLICE_RECORDS
            )
        )
        try:
            found: dict[TopicPartition, list[Any]] = await self._fetching
        except asyncio.CancelledError:
            if self._fetching.cancelled() and self._stop.is_set() and not self._cancelled():
                return {}
            self._fetching.cancel()
            raise
        return found

    @staticmethod
    def _cancelled() -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def _moved(self, positions: Mapping[TopicPartition, int]) -> bool:
        if all(self.live[tp] == position for tp, position in positions.items()):
            self._moved_at = None
            return False
        now = time.monotonic()
        if self._moved_at is None:
            self._moved_at = now
        return now - self._moved_at > MOVED_SECONDS

    async def _transact(
        self, positions: Mapping[TopicPartition, int], started: float | None, *, final: bool = False
    ) -> None:
        assert self._producer is not None
        outbox = Outbox(self._producer)
        async with self._turns.work:
            await self.encode(outbox, positions, final=final)

        def offsets() -> dict[TopicPartition, OffsetAndMetadata]:
            return {
                tp: OffsetAndMetadata(position, self.metadata(outbox, tp, position))
                for tp, position in positions.items()
            }

        await transaction.commit(self._turns.permits, outbox, self._group, offsets)
        self._moved_at = None
        self._backoff = FIRST_BACKOFF_SECONDS
        self.live.update(positions)
        self.committed(positions)
        self._count("committed")
        if started is not None:
            self._telemetry.transaction_seconds.labels(self.stage).observe(
                time.monotonic() - started
            )
        self._lag(positions)

    def _lag(self, positions: Mapping[TopicPartition, int]) -> None:
        for tp, position in positions.items():
            end = self._consumer.last_stable_offset(tp)
            lag = max(0, end - position) if end is not None else 0
            self._telemetry.observe_lag(
                self.stage,
                tp.topic,
                tp.partition,
                records=lag,
                position_ms=self._reached.get(tp),
            )

    def _count(self, outcome: str) -> None:
        self._telemetry.transactions_total.labels(self.stage, outcome).inc()

    async def _pause(self, seconds: float) -> None:
        """Sleep that a stop ends."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return
