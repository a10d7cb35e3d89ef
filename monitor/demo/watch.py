"""What came out so far: the monitor's output topics and Alertmanager's view, for the story to ask."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, TypeVar

import aiohttp
import msgspec
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from monitor.drift.report import DriftReport, MixReport
from monitor.errors import MonitorError
from monitor.model import Incident, Verdict
from monitor.stream.topics import TopicNames

T = TypeVar("T")

_decoder = msgspec.json.Decoder(Verdict | Incident | DriftReport | MixReport)

POLL_SECONDS: Final = 0.1


class StoryTimeout(MonitorError):
    """What the story waits for did not come in time."""


class Watch:
    """Reads verdicts, incidents and drift reports from their topics' start, committed ones only."""

    def __init__(self, bootstrap: str, alertmanager_url: str, partitions: int) -> None:
        self.verdicts: dict[str, Verdict] = {}  # last revision by trace id
        self.incidents: dict[str, list[Incident]] = defaultdict(list)  # last revisions by trace id
        self.drift: dict[
            tuple[str, str], DriftReport
        ] = {}  # last report by (current version, role)
        self.mix: dict[str, MixReport] = {}  # last report by current version
        self._alerts_url = f"{alertmanager_url}/api/v2/alerts"
        names = TopicNames()
        self._places = [
            TopicPartition(topic, partition)
            for topic in (names.verdicts, names.incidents, names.drift_reports)
            for partition in range(partitions)
        ]
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Watch:
        await self._consumer.start()
        self._consumer.assign(self._places)
        await self._consumer.seek_to_beginning()
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._task is not None:
            self._task.cancel()
        await self._consumer.stop()

    async def until(self, look: Callable[[], T | None], what: str, seconds: float) -> T:
        """``look()`` as soon as it is not None. Raises StoryTimeout, also if reading the topics failed."""
        deadline = asyncio.get_running_loop().time() + seconds
        while (found := look()) is None:
            if self._task is not None and self._task.done():
                self._task.result()
            if asyncio.get_running_loop().time() > deadline:
                raise StoryTimeout(f"{what}: not within {seconds:g} s; the worker's log says why")
            await asyncio.sleep(POLL_SECONDS)
        return found

    async def page(self, service: str, seconds: float) -> dict[str, Any]:
        """The alert of a service that Alertmanager holds, once it does."""
        deadline = asyncio.get_running_loop().time() + seconds
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(
                    self._alerts_url, params={"filter": f'service="{service}"'}
                ) as answer:
                    alerts: list[dict[str, Any]] = await answer.json()
                if alerts:
                    return alerts[0]
                if asyncio.get_running_loop().time() > deadline:
                    raise StoryTimeout(
                        f"Alertmanager holds no alert of {service} after {seconds:g} s"
                    )
                await asyncio.sleep(POLL_SECONDS)

    async def _read(self) -> None:
        async for record in self._consumer:
            if record.value is not None:
                self._keep(record.value)

    def _keep(self, value: bytes) -> None:
        match _decoder.decode(value):
            case Verdict() as verdict:
                self.verdicts[verdict.trace_id] = verdict
            case Incident(trace_id=str(trace_id)) as incident:
                known = self.incidents[trace_id]
                known[:] = [i for i in known if i.incident_id != incident.incident_id]
                known.append(incident)
            case DriftReport() as drift:
                self.drift[drift.current, drift.role] = drift
            case MixReport() as mix:
                self.mix[mix.current] = mix
