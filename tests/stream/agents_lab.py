"""The agents under test: their own topics on a shared broker, workers as processes, and what stands in the changelogs."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from monitor.settings import Settings
from monitor.stack.process import ChildProcess, free_ports
from monitor.stream import topics
from monitor.stream.fence import fence_of, payload_of
from monitor.stream.routing import Routed
from monitor.stream.tables import changelog_name
from monitor.stream.worker import ensure_topics

RUN = """
import sys
from monitor.settings import Settings
from monitor.stream.worker import run_worker
settings = Settings.load()
sys.exit(run_worker(settings))
"""


@dataclass
class AgentsLab:
    """``extra``: settings by field name, as their variables spell them."""

    bootstrap: str
    prefix: str
    folder: Path
    extra: dict[str, str] = field(default_factory=dict)
    partitions: int = 4
    workers: list[ChildProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.env = {
            "MONITOR_BOOTSTRAP_SERVERS": self.bootstrap,
            "MONITOR_GROUP": self.prefix,
            "MONITOR_TOPIC_PREFIX": f"{self.prefix}.",
            "MONITOR_PARTITIONS": str(self.partitions),
            "MONITOR_STAGES": "agents",
            "MONITOR_WEB_PORT": "0",
            "MONITOR_LOG_FORMAT": "console",
            **{f"MONITOR_{name.upper()}": value for name, value in self.extra.items()},
        }
        self.settings = Settings.load(self.env)
        self.names = topics.TopicNames(f"{self.prefix}.")

    async def make_topics(self) -> None:
        await ensure_topics(self.settings)

    async def send(
        self, records: Iterable[Routed], *, batch: int = 20, seconds: float = 0.0
    ) -> int:
        """In transactions of ``batch`` records, every third preceded by an aborted one, over about ``seconds``."""
        records = list(records)
        pause = seconds * batch / max(1, len(records))
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=f"{self.prefix}-source",
            retry_backoff_ms=20,
        )
        await producer.start()
        try:
            for start in range(0, len(records), batch):
                some = records[start : start + batch]
                for commit in (False, True) if start // batch % 3 == 0 else (True,):
                    await producer.begin_transaction()
                    sends = [
                        await producer.send(place.topic, value, key, place.partition)
                        for place, key, value in some
                    ]
                    await asyncio.gather(*sends)
                    await (
                        producer.commit_transaction() if commit else producer.abort_transaction()
                    )
                await asyncio.sleep(pause)
        finally:
            await producer.stop()
        return len(records)

    def start_worker(self, instance: str | None = None, **env: str) -> ChildProcess:
        port = free_ports(1)[0]
        identity = {} if instance is None else {"MONITOR_INSTANCE": instance}
        number = len(self.workers)
        worker = ChildProcess(
            f"agents-{number}",
            [sys.executable, "-c", RUN],
            log_path=self.folder / f"agents-{number}.log",
            cwd=Path(__file__).resolve().parents[2],
            env=dict(os.environ) | self.env | identity | {"MONITOR_WEB_PORT": str(port)} | env,
        )
        worker.start()
        self.workers.append(worker)
        return worker

    def stop_all(self) -> None:
        for worker in self.workers:
            worker.stop()

    def rows(self, table: str) -> dict[bytes, bytes]:
        """Key -> payload of a table as recovery would read it: the value with the higher fence."""
        rows: dict[bytes, bytes] = {}
        for key, value in self.read(changelog_name(self.settings, table)):
            if value is None:
                rows.pop(key, None)
            elif key not in rows or fence_of(value) >= fence_of(rows[key]):
                rows[key] = value
        return {key: payload_of(value) for key, value in rows.items()}

    def read(self, topic: str) -> list[tuple[bytes, Any]]:
        """(key, value) of all committed records of a topic."""
        return [(message.key(), message.value()) for message in self.messages(topic)]

    def messages(self, topic: str) -> list[Message]:
        """All committed records of a topic, by confluent-kafka."""
        reader = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"{self.prefix}-reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        try:
            left = set(range(self.partitions))
            reader.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in left])
            found = []
            while left:
                message = reader.poll(10)
                assert message is not None, f"{topic} does not come to its end"
                if message.error():
                    left.discard(message.partition())
                else:
                    found.append(message)
            return found
        finally:
            reader.close()


async def until(condition: Callable[[], object], seconds: float, what: str = "") -> None:
    """Poll a blocking condition in a thread."""
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.2)
