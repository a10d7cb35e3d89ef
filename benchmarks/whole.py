"""The whole job on a real broker: workers with all stages against a topic that is already full."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from monitor.codec import decode_fold_record
from monitor.model import Fragment
from monitor.settings import Settings
from monitor.stack import KafkaBroker, Worker
from monitor.stream.clients import group_id
from monitor.stream.topics import TopicNames

POLL_SECONDS: Final = 0.1
TIMEOUT_SECONDS: Final = 300


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
    progress = Progress(settings, topic)
    with ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(_spawned(Worker(variables)))
        first, started = _first_commit(progress)
        _until_done(progress, count, assemble="assemble" in stages)
        seconds = time.perf_counter() - started
    found = spans_in_fragments(settings)
    return WholeJob(count, seconds, (count - first) / seconds, found)


@contextmanager
def _spawned(worker: Worker) -> Iterator[Worker]:
    worker.spawn()
    try:
        yield worker
    finally:
        worker.close()


class Progress:
    """Committed positions of the two batch stages, as any Kafka client sees them."""

    def __init__(self, settings: Settings, topic: str) -> None:
        brokers = ",".join(settings.bootstrap_servers)
        self._admin = AdminClient({"bootstrap.servers": brokers})
        self._reader = Consumer({"bootstrap.servers": brokers, "group.id": "benchmark-looks-only"})
        self._settings = settings
        self._topic = topic
        self._fragments = TopicNames(settings.topic_prefix).fragments

    def ingested(self) -> int:
        """Input records behind the commits of ingest."""
        return sum(self._commits("ingest", self._topic).values())

    def folded(self) -> bool:
        """Whether assemble has committed all that stands in the fragments topic now."""
        commits = self._commits("assemble", self._fragments)
        if not commits:
            return False
        return all(
            commits.get(partition, 0)
            >= self._reader.get_watermark_offsets(
                TopicPartition(self._fragments, partition), timeout=10
            )[1]
            for partition in range(self._settings.partitions)
        )

    def _commits(self, stage: str, topic: str) -> dict[int, int]:
        group = group_id(self._settings, stage)
        future = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[
            group
        ]
        return {
            place.partition: place.offset
            for place in future.result(timeout=30).topic_partitions
            if place.topic == topic and place.offset >= 0
        }


def _first_commit(progress: Progress) -> tuple[int, float]:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (done := progress.ingested()) == 0:
        if time.monotonic() > deadline:
            raise RuntimeError("the workers committed nothing: see their logs")
        time.sleep(POLL_SECONDS / 2)
    return done, time.perf_counter()


def _until_done(progress: Progress, count: int, *, assemble: bool) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while progress.ingested() < count or (assemble and not progress.folded()):
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"only {progress.ingested()} of {count} spans after {TIMEOUT_SECONDS} s"
            )
        time.sleep(POLL_SECONDS)


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
    reader.assign([TopicPartition(topic, p, 0) for p in range(settings.partitions)])
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
