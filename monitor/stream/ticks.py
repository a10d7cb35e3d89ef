"""Ticks make time pass on a quiet partition: only when ingest has nothing left that might belong there.

While ingest is down nothing is known of the agents, and no trace may close as idle: then time stands still,
however long (``tick_hold_seconds``; over 5 minutes is a critical alert).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import aiokafka.errors
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from mode import Service

from monitor.codec import encode_fold_record
from monitor.model import Tick
from monitor.settings import Settings
from monitor.stream import clients, topics
from monitor.stream.commits import Commit, read_commits

log = structlog.get_logger()

QUIET_SECONDS: Final = 1.0
"""A partition is quiet after so long without a record, and gets so often a tick."""

BEHIND_SECONDS: Final = 5.0
"""Ingest has caught up when it has committed past the ends seen so long ago: more than a transaction of its
takes, so that spans on their way are in the fragments log before time passes them by."""

LOOK_SECONDS: Final = 1.0

_TICK: Final = encode_fold_record(Tick())

Ends = Mapping[TopicPartition, int]


def caught_up(
    commits: Mapping[TopicPartition, Commit], firsts: Ends, ends_now: Ends, ends_then: Ends
) -> bool:
    """Whether every input partition is committed past where it ended then.

    Left out: a partition that ingest refuses, its commit being outside of the log (an alert of its own), and
    one that is not there. Without any commit nothing is known, and the answer is no.
    """
    if not commits:
        return False
    for tp, end in ends_then.items():
        commit = commits.get(tp)
        if commit is None:
            return False
        refused = not firsts.get(tp, 0) <= commit.offset <= ends_now.get(tp, commit.offset)
        if not refused and commit.offset < end:
            return False
    return True


class IngestWatch(Service):
    """Looks once a second, for all lanes of this process, whether ingest has caught up."""

    def __init__(self, settings: Settings, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._settings = settings
        self._stack = AsyncExitStack()
        self._admin: AIOKafkaAdminClient
        self._reader: AIOKafkaConsumer
        self._client: AIOKafkaClient
        self._seen: deque[tuple[float, Ends]] = deque()
        self._said: str | None = None
        self.caught_up = False

    async def on_start(self) -> None:
        enter = self._stack.enter_async_context
        self._admin = await enter(clients.admin(self._settings))
        self._reader = await enter(clients.reader(self._settings))
        self._client = await enter(clients.bare_client(self._settings))

    async def on_stop(self) -> None:
        await self._stack.aclose()

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            try:
                self.caught_up = await self._look()
                self._said = None
            except (aiokafka.errors.KafkaError, OSError, AssertionError) as error:
                self.caught_up = False  # not known
                if self._said != repr(error):
                    self._said = repr(error)
                    log.warning("ticks.ingest_unknown", error=self._said)
            await self.sleep(LOOK_SECONDS)

    async def _look(self) -> bool:
        inputs = [spec.topic for spec in self._settings.inputs]
        counts = await topics.partition_counts(self._admin, inputs)
        partitions = [TopicPartition(topic, p) for topic in counts for p in range(counts[topic])]
        commits = await read_commits(self._client, clients.group_id(self._settings, "ingest"))
        firsts = await self._reader.beginning_offsets(partitions)
        ends = await self._reader.end_offsets(partitions)
        now = time.monotonic()
        self._seen.append((now, ends))
        while len(self._seen) > 1 and now - self._seen[1][0] >= BEHIND_SECONDS:
            self._seen.popleft()
        then, ends_then = self._seen[0]
        if now - then < BEHIND_SECONDS:
            return False
        there = {tp: end for tp, end in ends_then.items() if tp in ends}
        return caught_up(commits, firsts, ends, there)


class Ticker:
    """Sends ticks for the partitions of this process's lanes, by a plain producer: a zombie's do no harm."""

    def __init__(self, fragments: str, watch: IngestWatch) -> None:
        self._fragments = fragments
        self._watch = watch
        self._producer: AIOKafkaProducer | None = None
        self._sent: dict[int, float] = {}
        self._held: dict[int, float] = {}
        self._sending: set[asyncio.Future[Any]] = set()

    async def start(self, settings: Settings) -> None:
        self._producer = clients.plain_producer(settings, "ticks")
        await self._producer.start()

    async def stop(self) -> None:
        if self._producer is not None:
            await self._producer.stop()

    async def look(self, partition: int, *, last_record: float, at_end: bool, empty: bool) -> float:
        """Send one where it is due; returns for how many seconds it has been due and held back."""
        now = time.monotonic()
        since = max(last_record, self._sent.get(partition, 0.0))
        if empty or not at_end or now - since < QUIET_SECONDS:
            if empty or now - last_record < QUIET_SECONDS:
                self._held.pop(partition, None)
            return self._hold(partition, now)
        if not self._watch.caught_up:
            self._held.setdefault(partition, now)
            return self._hold(partition, now)
        self._held.pop(partition, None)
        self._sent[partition] = now
        await self._send(partition)
        return 0.0

    def _hold(self, partition: int, now: float) -> float:
        return now - self._held.get(partition, now)

    async def _send(self, partition: int) -> None:
        assert self._producer is not None
        try:
            sending = await self._producer.send(self._fragments, _TICK, partition=partition)
        except aiokafka.errors.KafkaError as error:
            log.warning("tick.not_sent", partition=partition, error=repr(error))
            return
        self._sending.add(sending)
        sending.add_done_callback(self._done)

    def _done(self, sending: asyncio.Future[Any]) -> None:
        self._sending.discard(sending)
        if not sending.cancelled() and sending.exception() is not None:
            log.warning("tick.not_sent", error=repr(sending.exception()))

    def forget(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._sent.pop(partition, None)
            self._held.pop(partition, None)
