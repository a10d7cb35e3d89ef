"""The drift agent: score deltas into fenced tables of windows and totals, and what their comparison says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from typing import Any, ClassVar, Final

import faust
from aiokafka import TopicPartition

from monitor import codec
from monitor.drift.engine import DriftEngine, Plan
from monitor.drift.values import is_ledger_key
from monitor.logs import get_logger
from monitor.settings import Settings
from monitor.stream.fence import Lease
from monitor.stream.keyed import KeyedAgent
from monitor.stream.routing import Routed
from monitor.stream.tables import DRIFT_TOTALS, DRIFT_WINDOWS, FencedTable, fenced_table
from monitor.stream.topics import TopicNames
from monitor.telemetry import Telemetry

_SHOWN: Final = 200  # characters of a key in the log
_log: Final = get_logger(__name__)


class DriftAgent(KeyedAgent):
    """Sends what a delta causes, awaits the acks, then writes; the engine holds all that is statistics.

    Reports, gates and baselines go to the partition of the delta: one key, one partition, on every topic.
    """

    name: ClassVar[str] = "drift"

    def __init__(
        self, app: faust.App, settings: Settings, telemetry: Telemetry, lease: Lease
    ) -> None:
        self.windows = fenced_table(app, settings, DRIFT_WINDOWS)
        self.totals = fenced_table(app, settings, DRIFT_TOTALS)
        self._names = TopicNames(settings.topic_prefix)
        super().__init__(
            app,
            settings,
            telemetry,
            lease,
            topic=self._names.score_deltas,
            tables=[self.windows, self.totals],
        )
        self._views = (TableView(self.windows), TableView(self.totals))
        self._engine = DriftEngine(settings.drift_settings(), *self._views, keys_in=self._keys_in)
        self._told: set[str] = set()  # bounds whose refusals were logged
        self._partitions: dict[tuple[str, str], int] = {}  # of what is shown

    async def handle(self, message: Any) -> list[asyncio.Future[Any]]:
        plan = self._engine.plan(message.value or b"", message.offset, message.partition)
        await self.publish(self._routed(plan, message.partition))
        if plan.settle:
            await self.settle()
        self._lease.require()
        for view in self._views:
            view.begin(message.partition, message.offset)
        self._engine.commit(plan)
        self._show(plan, message.partition)
        self._tell(plan)
        self._count("skipped" if plan.skipped else "applied")
        return [write for view in self._views for write in view.writes]

    async def on_recovered(self) -> None:
        """A key that went to another owner is its to show."""
        self._engine.recount()
        ours = {tp.partition for tp in self.app.consumer.assignment() if tp.topic == self.topic}
        self._partitions = {pair: p for pair, p in self._partitions.items() if p in ours}
        self._telemetry.forget_drift(
            lambda service, scorer: (service, scorer) not in self._partitions
        )

    def _keys_in(self, partition: int) -> int:
        return sum(
            place == partition and is_ledger_key(key) for key, place, _ in self.totals.rows.held()
        )

    def _tell(self, plan: Plan) -> None:
        for bound, count in plan.refused.items():
            self._telemetry.drift_refused_total.labels(bound).inc(count)
            if bound not in self._told:
                self._told.add(bound)
                _log.warning(
                    "drift sums are full: what is new is left out (this is said once)",
                    bound=bound,
                    key=plan.key.decode()[:_SHOWN],
                    next="names that grow without end come from the agents: find them in /metrics or the "
                    "verdicts, and give those spans a steady service.name, model and scorer version",
                )

    def _routed(self, plan: Plan, partition: int) -> list[Routed]:
        names = self._names
        return [
            (TopicPartition(topic, partition), plan.key, codec.encode_json(record))
            for topic, records in (
                (names.drift_reports, plan.outputs),
                (names.gates, plan.gates),
                (names.baselines, plan.controls),
            )
            for record in records
        ]

    def _show(self, plan: Plan, partition: int) -> None:
        for report in plan.outputs:
            self._partitions[report.service, report.scorer] = partition
            self._telemetry.observe_report(report)
        for gate in plan.gates:
            self._partitions[gate.service, gate.scorer] = partition
            self._telemetry.observe_gate(gate)


class TableView(MutableMapping[bytes, bytes]):
    """A fenced table as the engine sees it. ``begin`` names the message whose writes follow; ``writes`` are on their way."""

    def __init__(self, table: FencedTable) -> None:
        self._table = table
        self._partition, self._offset = -1, -1
        self.writes: list[asyncio.Future[Any]] = []

    def begin(self, partition: int, offset: int) -> None:
        self._partition, self._offset = partition, offset
        self.writes = []

    def __getitem__(self, key: bytes) -> bytes:
        payload = self._table.payload(key)
        if payload is None:
            raise KeyError(key)
        return payload

    def __setitem__(self, key: bytes, value: bytes) -> None:
        # A redelivered message may mend a value that was written after it: the fence never goes back.
        fence = max(self._offset, self._table.fence(key))
        self.writes.append(self._table.put(self._partition, key, fence, value))

    def __delitem__(self, key: bytes) -> None:
        if self._table.payload(key) is None:
            raise KeyError(key)
        self.writes.append(self._table.drop(key))

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self._table.rows.data))

    def __len__(self) -> int:
        return len(self._table.rows.data)
