"""A Kafka spine under test: its own topics on a shared broker, workers as real processes, and what came of it.

Everything that is compared is read by confluent-kafka: another client than the one that wrote it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from monitor import codec
from monitor.model import DeadLetter, FoldRecord, Fragment, Incident, Verdict
from monitor.settings import Settings
from monitor.stack.process import ChildProcess
from monitor.stream import clients
from monitor.stream.commits import read_commits
from monitor.stream.routing import Router
from monitor.stream.topics import TopicNames
from monitor.trace.fold import PartitionFold

TOKEN_KEY = "0123456789abcdef0123456789abcdef"

SHORT_LIVES = {
    "root_grace": "300ms",
    "idle": "2s",
    "max_lifetime": "20s",
    "late_window": "6s",
    "revision_flush": "500ms",
    "delta_flush": "2s",
}


@dataclass(frozen=True)
class Message:
    partition: int
    offset: int
    timestamp_ms: int | None  # None where it is not the log's append time
    key: bytes | None
    value: bytes


@dataclass
class Lab:
    """``extra``: settings by field name, as their environment variables spell them."""

    bootstrap: str
    prefix: str
    folder: Path
    extra: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 4
    lanes: int = 4
    workers: list[ChildProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.input = f"{self.prefix}-spans"
        self.env = {
            "MONITOR_BOOTSTRAP_SERVERS": self.bootstrap,
            "MONITOR_GROUP": self.prefix,
            "MONITOR_TOPIC_PREFIX": f"{self.prefix}.",
            "MONITOR_INPUTS": f"{self.input}=json",
            "MONITOR_PARTITIONS": str(self.partitions),
            "MONITOR_LANES": str(self.lanes),
            "MONITOR_START": "earliest",
            "MONITOR_TOKEN_KEY": TOKEN_KEY,
            "MONITOR_STAGES": "ingest,assemble",
            **{f"MONITOR_{name.upper()}": value for name, value in self.extra.items()},
        }
        self.names = TopicNames(f"{self.prefix}.")
        self._producer: Producer | None = None
        self.produced = 0

    def settings(self, **changes: str) -> Settings:
        return Settings.load(
            self.env | {f"MONITOR_{name.upper()}": value for name, value in changes.items()}
        )

    def use_input(self, topic: str) -> None:
        """Read another lab's input topic."""
        self.input = topic
        self.env["MONITOR_INPUTS"] = f"{topic}=json"

    # --- the input ------------------------------------------------------------------------------------

    def make_input(self, configs: Mapping[str, str] | None = None) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topic = NewTopic(self.input, self.partitions, 1, config=dict(configs or {}))
        for made in admin.create_topics([topic]).values():
            made.result()

    def produce(self, lines: Iterable[bytes | Mapping[str, Any]]) -> int:
        """Spread over the input's partitions as they come; returns how many."""
        if self._producer is None:
            self._producer = Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "linger.ms": 5,
                    "queue.buffering.max.messages": 1_000_000,
                }
            )
        count = 0
        for line in lines:
            value = line if isinstance(line, bytes) else json.dumps(line).encode()
            while True:
                try:
                    self._producer.produce(
                        self.input, value, partition=self.produced % self.partitions
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self.produced += 1
            count += 1
        left = self._producer.flush(60)
        assert left == 0, f"{left} input records were not taken by the broker"
        return count

    def produce_to(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        refused: list[object] = []
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(
            topic,
            value,
            key,
            partition,
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
        assert producer.flush(30) == 0
        assert not refused, refused

    # --- workers --------------------------------------------------------------------------------------

    def start_worker(self, module: str = "monitor.stream.batch", **env: str) -> ChildProcess:
        worker = ChildProcess(
            f"worker-{len(self.workers)}",
            [sys.executable, "-m", module],
            log_path=self.folder / f"worker-{len(self.workers)}.log",
            cwd=Path(__file__).resolve().parents[2],
            env=dict(os.environ) | self.env | env,
        )
        worker.start()
        self.workers.append(worker)
        return worker

    def stop_workers(self) -> list[int | None]:
        return [worker.stop(grace=20) for worker in self.workers]

    def kill_workers(self) -> None:
        for worker in self.workers:
            worker.kill()

    # --- what came of it --------------------------------------------------------------------------------

    def read(self, topic: str) -> list[Message]:
        """Every committed record, partition by partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"{self.prefix}-check",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        found: list[Message] = []
        try:
            count = len(consumer.list_topics(topic, 10).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(count)])
            at_end: set[int] = set()
            while len(at_end) < count:
                message = consumer.poll(30)
                assert message is not None, f"{topic}: no answer"
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    at_end.add(message.partition())
                    continue
                kind, stamp = message.timestamp()
                found.append(
                    Message(
                        message.partition(),
                        message.offset(),
                        stamp if kind == TIMESTAMP_LOG_APPEND_TIME else None,
                        message.key(),
                        message.value(),
                    )
                )
        finally:
            consumer.close()
        return sorted(found, key=lambda m: (m.partition, m.offset))

    def records(self) -> list[tuple[Message, FoldRecord]]:
        """The fragments log, decoded."""
        return [(m, codec.decode_fold_record(m.value)) for m in self.read(self.names.fragments)]

    def ends(self, topic: str) -> dict[int, int]:
        """Of what is committed (last stable offsets), by partition."""
        return asyncio.run(_ends(self.settings(), topic, self.partitions))

    def commits(self, stage: str) -> dict[int, tuple[int, str]]:
        """Partition -> (offset, metadata) of the stage's group, all its topics in one."""
        return asyncio.run(_commits(self.settings(), stage))

    def wait(self, what: str, ready: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}\n" + self.stuck()
            time.sleep(0.3)

    def stuck(self) -> str:
        """Where the tasks of the running workers stand (tests.chaos.crashing shows them), and their logs."""
        for worker in self.workers:
            if worker.running and "tests.chaos.crashing" in worker.command:
                worker.send(signal.SIGUSR1)
        time.sleep(1.0)
        return "\n".join(f"--- {w.name}\n{w.log_tail(400)}" for w in self.workers if w.running)

    def tails(self) -> str:
        return "\n".join(f"--- {w.name}\n{w.log_tail(30)}" for w in self.workers)

    def caught_up(self) -> bool:
        """Both stages have committed all that there is."""
        return self._at_end("ingest", self.input) and self._at_end("assemble", self.names.fragments)

    def _at_end(self, stage: str, topic: str) -> bool:
        commits, ends = self.commits(stage), self.ends(topic)
        return all(commits.get(p, (0, ""))[0] >= end for p, end in ends.items())

    def all_closed(self) -> bool:
        """No life is open: every trace of the input has a verdict at its end."""
        return self.caught_up() and not any(
            fold.open_lives
            or (fold._lives and (fold._lives.memory.dirty or fold._lives.deltas_at is not None))
            for fold in self.folds().values()
        )

    def folds(self) -> dict[int, PartitionFold]:
        folds = {p: PartitionFold(p) for p in range(self.partitions)}
        for m in self.read(self.names.fragments):
            folds[m.partition].apply(m.offset, m.timestamp_ms, m.value)
        return folds


async def _ends(settings: Settings, topic: str, partitions: int) -> dict[int, int]:
    from aiokafka import TopicPartition as Tp

    async with clients.reader(settings) as reader:
        found = await reader.end_offsets([Tp(topic, p) for p in range(partitions)])
    return {tp.partition: end for tp, end in found.items()}


async def _commits(settings: Settings, stage: str) -> dict[int, tuple[int, str]]:
    async with clients.bare_client(settings) as client:
        found = await read_commits(client, clients.group_id(settings, stage))
    return {tp.partition: (commit.offset, commit.metadata) for tp, commit in found.items()}


# --- the comparisons of the design's section 2 ---------------------------------------------------------------


FOLD_REASONS = frozenset({"undecodable_fragment", "span_not_in_memory"})


@dataclass
class Outputs:
    """What is in the output topics, or what the offline fold says should be: comparable as it is."""

    verdicts: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    incidents: dict[tuple[int, int], list[bytes]] = field(default_factory=lambda: defaultdict(list))
    deltas: Counter[bytes] = field(default_factory=Counter)
    dead_letters: Counter[bytes] = field(default_factory=Counter)

    def add(self, topic_partition: int, raw: bytes, kind: str) -> None:
        if kind == "score_delta":
            self.deltas[raw] += 1
            return
        record = codec.decode_output(raw)
        match record:
            case Verdict():
                self.verdicts[topic_partition].append(raw)
            case Incident():
                self.incidents[record.provenance.partition, topic_partition].append(raw)
            case DeadLetter():
                if record.source.topic.endswith("fragments") or record.reason in FOLD_REASONS:
                    self.dead_letters[raw] += 1


def published(lab: Lab) -> Outputs:
    out = Outputs()
    names = lab.names
    for topic, kind in (
        (names.verdicts, "json"),
        (names.incidents, "json"),
        (names.deadletters, "json"),
        (names.score_deltas, "score_delta"),
    ):
        for m in lab.read(topic):
            out.add(m.partition, m.value, kind)
    return out


def refolded(lab: Lab, lost: Mapping[int, tuple[int, int]]) -> Outputs:
    """(a): the offline fold over the final fragments log, up to what assemble has committed.

    ``lost``: partition -> the range before a reset that nobody published.
    """
    out = Outputs()
    router = Router(lab.settings())
    committed = lab.commits("assemble")
    folds = {p: PartitionFold(p) for p in range(lab.partitions)}
    for m in lab.read(lab.names.fragments):
        first_lost, end_lost = lost.get(m.partition, (0, 0))
        if m.offset >= committed[m.partition][0] or first_lost <= m.offset < end_lost:
            continue
        fold = folds[m.partition]
        fold.apply(m.offset, m.timestamp_ms, m.value)
        for record in fold.drain().records:
            kind = "score_delta" if type(record).__name__ == "ScoreDelta" else "json"
            for tp, _, raw in router.routes(record):
                out.add(tp.partition, raw, kind)
    return out


def assert_same(lab: Lab, lost: Mapping[int, tuple[int, int]] | None = None) -> Outputs:
    """(a), record for record and in order."""
    ours, theirs = published(lab), refolded(lab, lost or {})
    for p in ours.verdicts.keys() | theirs.verdicts.keys():
        _same_list(f"verdicts of partition {p}", ours.verdicts[p], theirs.verdicts[p])
    for key in ours.incidents.keys() | theirs.incidents.keys():
        _same_list(f"incidents {key}", ours.incidents[key], theirs.incidents[key])
    assert ours.deltas == theirs.deltas, _difference(ours.deltas, theirs.deltas)
    assert ours.dead_letters == theirs.dead_letters
    return ours


def _difference(ours: Counter[bytes], theirs: Counter[bytes]) -> str:
    return f"doubled or extra {list((ours - theirs).items())[:3]}, missing {list((theirs - ours).items())[:3]}"


def _same_list(what: str, ours: list[bytes], theirs: list[bytes]) -> None:
    if ours == theirs:
        return
    a, b = Counter(ours), Counter(theirs)
    place = next(
        (i for i, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y),
        min(len(ours), len(theirs)),
    )
    raise AssertionError(
        f"{what}: published {len(ours)}, folded {len(theirs)}; extra {sum((a - b).values())}, missing "
        f"{sum((b - a).values())}; first difference at {place}:\n"
        f"published {ours[place : place + 1]}\nfolded    {theirs[place : place + 1]}"
    )


def spans_in_fragments(lab: Lab) -> Counter[tuple[str, str, int, int]]:
    """(b): (trace_id, span_id, input partition, input offset) of each span in the fragments log."""
    found: Counter[tuple[str, str, int, int]] = Counter()
    for m in lab.read(lab.names.fragments):
        record = codec.decode_fold_record(m.value)
        if isinstance(record, Fragment):
            for span in record.spans:
                found[record.trace_id, span.span_id, span.source.partition, span.source.offset] += 1
    return found


def spans_in_input(lab: Lab) -> Counter[tuple[str, str, int, int]]:
    found: Counter[tuple[str, str, int, int]] = Counter()
    for m in lab.read(lab.input):
        span = json.loads(m.value)
        found[span["trace_id"], span["span_id"], m.partition, m.offset] += 1
    return found


def last_verdicts(lab: Lab) -> dict[str, dict[str, Any]]:
    """(c): trace id -> its last verdict, less offsets and times."""
    last: dict[str, dict[str, Any]] = {}
    for m in lab.read(lab.names.verdicts):
        verdict = json.loads(m.value)
        for gone in ("life", "revision", "provenance", "closed_at_ms"):
            del verdict[gone]
        last[verdict["trace_id"]] = verdict
    return last


def chunked(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
