"""The whole job on a real broker: workers with all stages against a topic that is already full."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from aiokafka.structs import TopicPartition
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from monitor.codec import decode_fold_record
from monitor.model import Fragment
from monitor.settings import Settings
from monitor.stack import KafkaBroker, Worker
from monitor.stream import clients
from monitor.stream.clients import group_id
from monitor.stream.commits import read_commits
from monitor.stream.topics import TopicNames

POLL_SECONDS: Final = 0.1
TIMEOUT_SECONDS: Final = 120


@dataclass(frozen=True)
class WholeJob:
    spans: int
    seconds: float
    spans_per_s: float
    spans_in_fragments: int  # read back afterwards: each input span, once


def settings_for(bootstrap: str, topic: str, **more: str) -> dict[str, str]:
    return {
        "MONITOR_BOOTSTRAP_SERVERS": bootstrap,
        "MONITOR_INPUTS": f"{topic}=json",
        "MONITOR_TOKEN_KEY": "0" * 64,
        "MONITOR_START": "earliest",
        **{f"MONITOR_{name}": value for name, value in more.items()},
    }


def run(
    kafka: KafkaBroker, topic: str, count: int, *, workers: int, prefix: str, stages: str
) -> WholeJob:
    """From the first commit seen to the last span folded and committed."""
    variables = settings_for(
        kafka.bootstrap, topic, TOPIC_PREFIX=prefix, GROUP=prefix.rstrip("."), STAGES=stages
    )
    settings = Settings.load(variables)
    with ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(_spawned(Worker(variables)))
        first, seconds = asyncio.run(_watch(settings, topic, count, assemble="assemble" in stages))
    found = spans_in_fragments(settings)
    return WholeJob(count, seconds, (count - first) / seconds, found)


@contextmanager
def _spawned(worker: Worker) -> Iterator[Worker]:
    worker.spawn()
    try:
        yield worker
    finally:
        worker.close()


async def _watch(
    settings: Settings, topic: str, count: int, *, assemble: bool
) -> tuple[int, float]:
    """Spans behind the first commit seen, and seconds from it to the last."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    fragments = TopicNames(settings.topic_prefix).fragments
    first = 0
    started = 0.0
    async with clients.bare_client(settings) as client, clients.reader(settings) as reader:

        async def ingested() -> int:
            commits = await read_commits(client, group_id(settings, "ingest"))
            return sum(commit.offset for tp, commit in commits.items() if tp.topic == topic)

        async def folded() -> bool:
            commits = await read_commits(client, group_id(settings, "assemble"))
            places = [TopicPartition(fragments, p) for p in range(settings.partitions)]
            ends = await reader.end_offsets(places)
            return all(tp in commits and commits[tp].offset >= ends[tp] for tp in places)

        while True:
            done = await ingested()
            if done and not first:
                first, started = done, time.perf_counter()
            if done >= count and (not assemble or await folded()):
                return first, time.perf_counter() - started
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"only {done} of {count} spans after {TIMEOUT_SECONDS} s: see the workers' logs"
                )
            await asyncio.sleep(POLL_SECONDS)


def spans_in_fragments(settings: Settings) -> int:
    """Spans of all committed fragments."""
    topic = TopicNames(settings.topic_prefix).fragments
    reader = Consumer(
        {
            "bootstrap.servers": ",".join(settings.bootstrap_servers),
            "group.id": "benchmark-counts",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    reader.assign([Place(topic, p, 0) for p in range(settings.partitions)])
    found, ends = 0, 0
    while ends < settings.partitions:
        for message in reader.consume(5_000, timeout=5):
            if message.error():
                ends += 1
                continue
            record = decode_fold_record(message.value() or b"")
            if isinstance(record, Fragment):
                found += len(record.spans)
    reader.close()
    return found
