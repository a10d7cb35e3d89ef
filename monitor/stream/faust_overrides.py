"""What Faust 0.15.3 gets wrong for at-least-once over transactional topics, and the cure of each.

1. It reads uncommitted data: the isolation level hangs on the processing guarantee alone. Ours reads committed.
2. Its commit walks an unbroken run of acked offsets and treats offsets without a record (transaction markers,
   aborted records) as gaps, each of which it closes one commit late; the record that revealed a gap counts as part
   of it. With a transaction a second the commit falls ever further behind. Ours needs no gaps: it commits the lowest
   unacked offset, or where there is none the highest acked + 1.
3. While partitions move, it acks the buffered messages that it throws away, and these acks land in the books of the
   next assignment, past messages that nobody has processed. Ours counts no ack of another generation, and none
   while the flow is stopped.

The names with a leading underscore are Faust's and aiokafka's own; ``tests/stream/test_faust_overrides.py`` fails when a new
version moves one of them.
"""

from __future__ import annotations

from typing import Any, Final

import faust
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.types.tuples import ack_lock

from monitor.errors import MonitorError

READ_COMMITTED: Final = "read_committed"


class ReadCommittedThread(driver.AIOKafkaConsumerThread):
    """Cure 1. Runs aiokafka's consumer in its thread."""

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
    """Cures 2 and 3."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.handed: dict[TP, int] = {}
        """Offset of the last message given to the streams: what lies behind it, up to the position, is no message."""

    def _new_consumer_thread(self) -> ReadCommittedThread:
        return ReadCommittedThread(self, loop=self.loop, beacon=self.beacon)

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


class Transport(driver.Transport):
    Consumer = ExactCommitConsumer


class OverriddenApp(faust.App):
    """A Faust app whose consumer has all three cures."""

    def _new_transport(self) -> Transport:
        return Transport(self.conf.broker_consumer, self)
