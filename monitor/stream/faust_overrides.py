"""What Faust 0.15.3 gets wrong for at-least-once over transactional topics, and the cure of each.

1. It reads uncommitted data: the isolation level hangs on the processing guarantee alone. Ours reads committed.
2. Its commit walks an unbroken run of acked offsets and treats offsets without a record (transaction markers,
   aborted records) as gaps, each of which it closes one commit late; the record that revealed a gap counts as part
   of it. With a transaction a second the commit falls ever further behind. Ours needs no gaps: it commits the lowest
   unacked offset, or where there is none the highest acked + 1.
3. While partitions move, it acks the buffered messages that it throws away, and these acks land in the books of the
   next assignment, past messages that nobody has processed. Ours counts no ack of another generation, and none
   while the flow is stopped.
4. While partitions move, records that were fetched before a seek can reach the streams after it, with the new
   generation's stamp, and others are dropped though the position has passed them: whole runs of messages, or of a
   table's changelog, are skipped in silence. Ours takes nothing from a partition between its assignment and the first
   seek, and after a seek believes a first record that lies beyond the place sought only when it comes a second time.
   A fetch that was under way during the seek may be dropped after it, and if no later record comes nobody notices: a
   partition whose position has moved though no record was believed is therefore sought once more.

5. It ends the process when a commit falls due while it owns no partition, as a worker does that stood still past its
   session. Ours commits nothing then: the new owners do.
6. It ends the process when a record that was fetched belongs to a partition that has been taken away since, as happens
   to the same worker: it asks for that partition's high watermark. Ours has none to tell, and drops the record.

The names with a leading underscore are Faust's and aiokafka's own; ``tests/stream/test_faust_overrides.py`` fails when a new
version moves one of them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

import faust
from aiokafka.errors import KafkaError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.types.tuples import ack_lock

from monitor.errors import MonitorError

READ_COMMITTED: Final = "read_committed"

LOOK_SECONDS: Final = 1.0
"""Between two looks for records that were passed; a page may come this much later after a rebalance."""


class ReadCommittedThread(driver.AIOKafkaConsumerThread):
    """Cures 1, 5 and 6. Runs aiokafka's consumer in its thread."""

    def highwater(self, tp: TP) -> int:
        try:
            return int(super().highwater(tp) or 0)
        except AssertionError:  # aiokafka's word for a partition that is not assigned
            return 0

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        if self.assignment().isdisjoint(offsets):
            return False
        return bool(await super()._commit(offsets))

    def _create_worker_consumer(self, transport: driver.Transport) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # The fetcher gets it at start, so it may be set until then.
        if not hasattr(consumer, "_isolation_level"):
            raise MonitorError(
                "this aiokafka has no AIOKafkaConsumer._isolation_level: the agents would read uncommitted "
                "records; install the version of requirements.lock"
            )
        consumer._isolation_level = READ_COMMITTED
        return consumer


class ExactCommitConsumer(driver.Consumer):
    """Cures 2, 3, 4 and 6."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.handed: dict[TP, int] = {}
        """Offset of the last message given to the streams: what lies behind it, up to the position, is no message."""

        self._looked = 0.0
        self._sought: dict[TP, _Sought | None] = {}
        """Partitions whose first record has yet to be believed; None: not even a seek has been made."""

    def _new_consumer_thread(self) -> ReadCommittedThread:
        return ReadCommittedThread(self, loop=self.loop, beacon=self.beacon)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        self._sought = dict.fromkeys(assigned)
        await super().on_partitions_assigned(assigned, generation_id)

    async def perform_seek(self) -> None:
        await super().perform_seek()
        for tp in self.assignment():
            if not self._is_changelog_tp(tp):
                self._sought[tp] = _Sought(self._read_offset[tp] or 0)

    async def seek_wait(self, partitions: Mapping[TP, int]) -> None:
        await super().seek_wait(partitions)
        for tp, offset in partitions.items():
            self._sought[tp] = _Sought(offset)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        await self._look_again()
        async for tp, message in super().getmany(timeout):
            if tp not in self.assignment():
                continue
            if tp not in self._sought or await self._believe(tp, message.offset):
                yield tp, message

    async def _look_again(self) -> None:
        """Seek anew, once, where records were passed and none was believed. No fetch is under way here."""
        now = time.monotonic()
        if not self.flow_active or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        for tp, sought in list(self._sought.items()):
            if sought is None or sought.seen is not None or sought.again:
                continue
            if self._is_changelog_tp(tp) or tp not in self.assignment():
                continue  # changelogs have a watch of their own: recovering.py
            try:
                position = await self.position(tp)
            except KafkaError:
                continue  # no longer ours, or not known yet
            if position is not None and position > sought.place:
                await super().seek_wait({tp: sought.place})
                self._sought[tp] = sought._replace(again=True)

    async def _believe(self, tp: TP, offset: int) -> bool:
        sought = self._sought[tp]
        if sought is None:
            return False
        if offset <= sought.place or (sought.seen is not None and offset <= sought.seen):
            del self._sought[tp]
            return True
        if sought.seen is None:
            # Markers, aborted and compacted records lie between, or messages that we were never given.
            await super().seek_wait({tp: sought.place})
            self._sought[tp] = sought._replace(seen=offset)
        return False

    def _to_message(self, tp: TP, record: Any) -> Any:
        self.handed[tp] = record.offset
        return super()._to_message(tp, record)

    def ack(self, message: Any) -> bool:
        if not self.flow_active or message.generation_id != self.app.consumer_generation_id:
            message.acked = True  # Faust is done with it; the new owner of its partition is not
            self._unacked_messages.discard(message)
            return False
        return super().ack(message)

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Nothing: `_new_offset` needs no gaps."""

    def _new_offset(self, tp: TP) -> int | None:
        with ack_lock:
            acked = self._acked[tp]
            if not acked:
                return None
            unacked = [m.offset for m in self._unacked_messages if m.tp == tp and not m.acked]
            offset = min(unacked, default=max(acked) + 1)
            kept = [a for a in acked if a >= offset]
            self._acked_index[tp].difference_update(a for a in acked if a < offset)
            acked[:] = kept
            return offset


class _Sought(NamedTuple):
    place: int
    seen: int | None = None
    """The first record that came, where it lay beyond the place."""
    again: bool = False
    """It was sought anew because the position had moved and no record had come."""


class Transport(driver.Transport):
    Consumer = ExactCommitConsumer


class OverriddenApp(faust.App):
    """A Faust app whose consumer has all four cures."""

    def _new_transport(self) -> Transport:
        return Transport(self.conf.broker_consumer, self)
