"""Follows the cardinality gates that the drift agent publishes, so that owners can copy them into the log."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import aiokafka.errors
import msgspec
import structlog
from aiokafka import TopicPartition
from mode import Service

from monitor.model import GateRecord
from monitor.settings import Settings
from monitor.stream import clients
from monitor.stream.topics import TopicNames

log = structlog.get_logger()

_RETRY_SECONDS: Final = 2.0


class _Gate(msgspec.Struct):
    """What is needed of a gate's value; it has more."""

    service: str
    scorer: str
    state: str


_DECODER: Final = msgspec.json.Decoder(_Gate)


class GateReader(Service):
    """Reads the gates topic from its beginning and stays at its end."""

    def __init__(self, settings: Settings, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._settings = settings
        self._topic = TopicNames(settings.topic_prefix).gates
        self._gates: dict[tuple[str, str], GateRecord] = {}
        self._known: Counter[int] = Counter()  # keys by partition
        self._full: set[int] = set()  # partitions of which keys were left out, said once each
        # The drift agent publishes no more keys than that; the topic may be older than its bound.
        self._limit = settings.drift_settings().max_keys
        self._current: tuple[GateRecord, ...] = ()
        self._at_end = False

    def current(self) -> tuple[GateRecord, ...]:
        """The last of each (service, scorer), in a fixed order; none before the end has been reached once."""
        return self._current

    @Service.task
    async def _follow(self) -> None:
        while not self.should_stop:
            try:
                await self._read()
            except (aiokafka.errors.KafkaError, OSError) as error:
                log.warning("gates.not_read", error=repr(error), again_in=_RETRY_SECONDS)
                await self.sleep(_RETRY_SECONDS)

    async def _read(self) -> None:
        partitions = [TopicPartition(self._topic, p) for p in range(self._settings.partitions)]
        async with clients.reader(self._settings, wait_ms=clients.FOLLOW_WAIT_MS) as reader:
            firsts = await reader.beginning_offsets(partitions)
            ends = await reader.end_offsets(partitions)
            reader.assign(partitions)
            for tp in partitions:
                reader.seek(tp, firsts[tp])
            while not self.should_stop:
                found = await reader.getmany(timeout_ms=500)
                for records in found.values():
                    for record in records:
                        self._take(record)
                if not self._at_end:
                    reached = [await reader.position(tp) >= ends[tp] for tp in partitions]
                    self._at_end = all(reached)
                if self._at_end:
                    self._current = tuple(self._gates[key] for key in sorted(self._gates))

    def _take(self, record: Any) -> None:
        if record.value is None:
            return
        try:
            gate = _DECODER.decode(record.value)
        except msgspec.MsgspecError as error:
            log.warning("gate.undecodable", offset=record.offset, error=str(error))
            return
        key = (gate.service, gate.scorer)
        if key not in self._gates:
            if self._known[record.partition] == self._limit:
                if record.partition not in self._full:
                    self._full.add(record.partition)
                    log.warning("gates.past_limit", partition=record.partition, limit=self._limit)
                return
            self._known[record.partition] += 1
        self._gates[key] = GateRecord(*key, gate.state, record.partition, record.offset)
