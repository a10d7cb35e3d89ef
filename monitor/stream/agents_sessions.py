"""The session agent: steps of judged traces into a fenced table of sessions, and incidents over several traces."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, ClassVar, Final

import faust
from mode import Service

from monitor.errors import UndecodableRecord
from monitor.logs import get_logger
from monitor.settings import Settings
from monitor.stream.fence import Lease
from monitor.stream.keyed import KeyedAgent
from monitor.stream.tables import SESSIONS, fenced_table
from monitor.stream.topics import TopicNames
from monitor.telemetry import Telemetry
from monitor.trace.rules import Rules
from monitor.trace.sessions import AGE_MS, SessionState, apply, decode_state, encode_state
from monitor.trace.steps import decode_steps

SESSIONS_LIMIT: Final = 20_000  # of a partition: with 3 kB each its budget is full by then, too
BYTES_LIMIT: Final = 67_108_864
"""Of a partition's rows. The changelog of all partitions must be read within a recovery, in memory of one worker."""

GAUGE_SECONDS: Final = 1.0
_SHOWN: Final = 200  # characters of a key in the log
_log: Final = get_logger(__name__)


class SessionAgent(KeyedAgent):
    """Publishes what a trace's steps bring about, awaits the acks, then writes the row; `monitor.trace.sessions` decides."""

    name: ClassVar[str] = "sessions"

    def __init__(
        self, app: faust.App, settings: Settings, telemetry: Telemetry, lease: Lease
    ) -> None:
        self.table = fenced_table(app, settings, SESSIONS)
        super().__init__(
            app,
            settings,
            telemetry,
            lease,
            topic=TopicNames(settings.topic_prefix).session_steps,
            tables=[self.table],
        )
        fold = settings.fold_settings()
        self._rules = Rules(fold, fold.sha256, fold.canonical())
        self._rooms: dict[int, _Room] = {}

    async def handle(self, message: Any) -> list[asyncio.Future[Any]]:
        key = message.key or b""
        if message.offset <= self.table.fence(key):
            self._count("skipped")
            return []
        steps = decode_steps(message.value or b"")
        payload = self.table.payload(key)
        state = SessionState() if payload is None else decode_state(payload)
        done = apply(key, state, steps, self._rules, offset=message.offset)
        await self.publish(
            [place for record in done.incidents for place in self._router.routes(record)]
        )
        self._lease.require()
        row = encode_state(done.state)
        writes: list[asyncio.Future[Any]] = [
            self.table.put(message.partition, key, message.offset, row)
        ]
        for why, count in done.dropped.items():
            self._telemetry.session_drops_total.labels(why).inc(count)
        self._telemetry.observe_outputs(done.incidents)
        room = self._rooms.setdefault(message.partition, _Room())
        room.hold(key, len(row), done.state.latest_ms)
        for gone in room.overfull():
            writes.append(self.table.drop(gone))
            self._telemetry.session_drops_total.labels("sessions").inc()
        writes += [self.table.drop(gone) for gone in room.aged()]
        self._count("applied")
        return writes

    async def on_recovered(self) -> None:
        found = []
        for key, partition, _ in list(self.table.rows.held()):
            payload = self.table.payload(key)
            assert payload is not None
            try:
                found.append((decode_state(payload).latest_ms, key, partition, len(payload)))
            except UndecodableRecord as error:
                _log.error("session dropped", key=key[:_SHOWN], error=str(error))
                self.table.drop(key)
        self._rooms = {}
        for latest_ms, key, partition, size in sorted(found):
            self._rooms.setdefault(partition, _Room()).hold(key, size, latest_ms)

    def show(self) -> None:
        """Set the gauges."""
        rooms = self._rooms.values()
        self._telemetry.sessions.set(sum(len(room.rows) for room in rooms))
        self._telemetry.session_bytes.set(sum(room.bytes for room in rooms))


class _Room:
    """What the sessions of one partition take, the longest quiet first. Time is the log's: a partition to which nothing
    comes forgets nothing."""

    def __init__(self) -> None:
        self.rows: OrderedDict[bytes, tuple[int, int]] = OrderedDict()  # key -> (bytes, latest)
        self.bytes = 0
        self._now_ms = 0

    def hold(self, key: bytes, size: int, latest_ms: int) -> None:
        self.bytes += size - self.rows.get(key, (0, 0))[0]
        self.rows[key] = (size, latest_ms)
        self.rows.move_to_end(key)
        self._now_ms = max(self._now_ms, latest_ms)

    def overfull(self) -> list[bytes]:
        """Keys that must go, now forgotten; never the last one held."""
        gone = []
        while len(self.rows) > 1 and (len(self.rows) > SESSIONS_LIMIT or self.bytes > BYTES_LIMIT):
            gone.append(self._forget())
        return gone

    def aged(self) -> list[bytes]:
        """Keys of sessions that have been quiet for AGE_MS, now forgotten."""
        gone = []
        while self.rows and next(iter(self.rows.values()))[1] < self._now_ms - AGE_MS:
            gone.append(self._forget())
        return gone

    def _forget(self) -> bytes:
        key, (size, _) = self.rows.popitem(last=False)
        self.bytes -= size
        return key


class SessionsShown(Service):
    """Sets the gauges beside the agent."""

    def __init__(self, agent: SessionAgent, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._agent = agent

    @Service.task
    async def _show(self) -> None:
        async for _ in self.itertimer(GAUGE_SECONDS, name="session gauges"):
            self._agent.show()
