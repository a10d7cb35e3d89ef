"""The lanes of one stage in this process: group membership, and a :class:`Lane` for each lane owned.

Rebalances are eager: on each join or leave of any member every lane stops and those assigned start anew.
Memory outlives that where the commit, read after fencing, is the one that it stands for.
"""

from __future__ import annotations

import asyncio
import gc
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.client import AIOKafkaClient
from mode import Service

from monitor.settings import Settings
from monitor.stream import clients, topics
from monitor.stream.assignor import lane_assignor, lane_of
from monitor.stream.lane import Lane
from monitor.telemetry import Telemetry

log = structlog.get_logger()

REVOKE_SECONDS: Final = 3.0
"""For the transaction at hand at a revocation; abort and close have as much each after it (9 s in all, less
than the 15 s that the rebalance waits)."""

STOP_SECONDS: Final = 10.0
"""For a clean stop: the transaction at hand and a snapshot of each partition."""

GARBAGE_THRESHOLDS: Final = (50_000, 20, 20)
"""Of Python's cycle collector. A span makes a few containers that live for minutes and form no cycle; with the
default of 700 the collector walks them a thousand times a second (2 of 18 us a span, measured)."""

_STATES: Final = ("restoring", "live", "waiting")


class LaneService(Service, ConsumerRebalanceListener):  # type: ignore[misc]  # both untyped
    """A stage's batch loops as a service of the worker's app."""

    stage: ClassVar[str]
    abstract = True

    def __init__(self, settings: Settings, telemetry: Telemetry, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.settings = settings
        self.telemetry = telemetry
        self.names = topics.TopicNames(settings.topic_prefix)
        self.lanes: dict[int, Lane] = {}
        self.joined = False
        self._stack = AsyncExitStack()
        self._consumer: AIOKafkaConsumer | None = None
        self.slog = log.bind(stage=self.stage)
        self.commits_client: AIOKafkaClient
        self.max_request = topics.KAFKA_MESSAGE_LIMIT

    # --- what a stage says of itself ------------------------------------------------------------------

    @abstractmethod
    def input_topics(self) -> tuple[str, ...]:
        """What its lanes read."""

    @abstractmethod
    def make_lane(self, number: int, partitions: Iterable[TopicPartition], **common: Any) -> Lane:
        """A lane; it starts by itself."""

    async def before_join(self) -> None:
        """What must be there before the first lane opens."""

    async def on_assigned(self, assigned: set[TopicPartition]) -> None:
        """Joined, and no lane is open yet."""

    @property
    def ready(self) -> bool:
        """Joined, and every lane of ours (perhaps none) restored or refused. Lag is an alert, not this."""
        return self.joined and all(lane.state == "live" for lane in self.lanes.values())

    # --- service -------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        """Raises TopicMismatch: a fault of the whole worker."""
        gc.set_threshold(*GARBAGE_THRESHOLDS)
        async with clients.admin(self.settings) as admin:
            largest = await topics.largest_input(
                admin, [spec.topic for spec in self.settings.inputs]
            )
            await topics.ensure(admin, topics.specs(self.settings, largest_input=largest))
        self.max_request = 2 * largest + topics.KAFKA_MESSAGE_LIMIT
        self.commits_client = await self._stack.enter_async_context(
            clients.bare_client(self.settings)
        )
        await self.before_join()
        self._consumer = clients.stage_consumer(
            self.settings, self.stage, lane_assignor(self.settings.lanes)
        )
        await self._consumer.start()
        # After start: aiokafka's start waits for every topic subscribed to before, and one may be missing.
        self._consumer.subscribe(list(self.input_topics()), listener=self)

    async def on_stop(self) -> None:
        await self._end_lanes(final=True, seconds=STOP_SECONDS)
        if self._consumer is not None:
            await self._consumer.stop()
        await self._stack.aclose()

    @Service.task
    async def _watch(self) -> None:
        """Gauges once a second; and a group membership that died is a fault of the whole worker."""
        while not self.should_stop:
            await self.sleep(1.0)
            states = [lane.state for lane in self.lanes.values()]
            for state in _STATES:
                self.telemetry.lanes.labels(self.stage, state).set(states.count(state))
            self.telemetry.beat(self.stage)
            if "ended" in states and self.joined:
                self.rejoin()  # fenced, and the rejoin that it asked for has not come about
            coordination = self._consumer and self._consumer._coordinator._coordination_task
            if coordination and coordination.done() and not self.should_stop:
                failure = None if coordination.cancelled() else coordination.exception()
                await self.crash(failure or RuntimeError("group membership ended"))

    # --- membership (aiokafka only logs what these raise) ----------------------------------------------

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:  # noqa: ARG002
        self.joined = False
        await self._end_lanes(final=False, seconds=REVOKE_SECONDS)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        consumer = self._consumer
        assert consumer is not None
        if assigned:
            consumer.pause(*assigned)  # until a lane has restored it
        try:
            await self.on_assigned(assigned)
            self._start_lanes(consumer, assigned)
        except Exception:  # noqa: BLE001 - aiokafka would log it and leave us without lanes
            self.slog.exception("lanes.not_started")
            await asyncio.sleep(1.0)
            self.rejoin()
            return
        self.joined = True

    def _start_lanes(self, consumer: AIOKafkaConsumer, assigned: set[TopicPartition]) -> None:
        if self.should_stop:
            return
        by_lane: dict[int, set[TopicPartition]] = defaultdict(set)
        for tp in assigned:
            by_lane[lane_of(tp.partition, self.settings.lanes)].add(tp)
        self.slog.info("lanes.assigned", lanes=sorted(by_lane), partitions=len(assigned))
        for number, partitions in sorted(by_lane.items()):
            self.lanes[number] = self.make_lane(
                number,
                partitions,
                consumer=consumer,
                settings=self.settings,
                telemetry=self.telemetry,
                rejoin=self.rejoin,
                max_request=self.max_request,
            )

    async def _end_lanes(self, *, final: bool, seconds: float) -> None:
        lanes, self.lanes = self.lanes, {}
        await asyncio.gather(*(lane.stop(final=final, seconds=seconds) for lane in lanes.values()))
        for lane in lanes.values():
            for tp in lane.partitions:
                self.telemetry.forget_partition(self.stage, tp.topic, tp.partition)

    def rejoin(self) -> None:
        """Ask the coordinator who owns what; lanes open again only as assigned after it."""
        if self._consumer is not None and not self.should_stop:
            self._consumer._coordinator.request_rejoin()
