"""Input topics of every encoding at once, each with partitions of its own number and another codec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from monitor.intake import Batch, Encoding, Intake
from monitor.model import Fragment
from monitor.stack import KafkaBroker
from tests.chaos.lab import Lab
from tests.intake.common import Record, messages, native
from tests.intake.otlp import as_json

pytestmark = pytest.mark.kafka

# Encoding, codec of its producer; the first topic has one partition, the next two, and so on.
INPUTS: tuple[tuple[Encoding, str], ...] = (
    ("json", "none"),
    ("otlp_proto/traces", "zstd"),
    ("otlp_json/traces", "gzip"),
    ("otlp_proto/logs", "snappy"),
    ("otlp_json/logs", "lz4"),
)


@pytest.fixture
def lab(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(kafka.bootstrap, unique, tmp_path)
    yield made
    made.kill_workers()


def values_of(encoding: Encoding) -> list[bytes]:
    """Each encoding its own source, so that no two topics hold the same span."""
    match encoding:
        case "json":
            return [native(span_id=f"{n + 1:016x}") for n in range(50)]
        case "otlp_proto/traces":
            return [each["value"] for each in messages("late_evaluator.otlp_proto")]
        case "otlp_json/traces":
            return [as_json(each["value"]) for each in messages("google_adk.otlp_proto")]
        case "otlp_proto/logs" | "otlp_json/logs":
            kind = encoding.partition("/")[0]
            return [each["value"] for each in messages(f"pydantic_ai.logs.{kind}")]


def content(fragments: Iterable[Fragment]) -> Counter[Hashable]:
    """Spans and scores by identity and what they say. Hashes are keyed, and the keys differ."""
    found: Counter[Hashable] = Counter()
    for fragment in fragments:
        found.update((fragment.trace_id, s.span_id, s.role, s.scores) for s in fragment.spans)
        found.update((fragment.trace_id, s.span_id, s.score) for s in fragment.scores)
    return found


def test_every_encoding_and_codec_at_once(lab: Lab) -> None:
    expected, intake = Batch(), Intake(lab.settings().intake_config())
    admin = AdminClient({"bootstrap.servers": lab.bootstrap})
    topics = {f"{lab.prefix}-in-{n}": given for n, given in enumerate(INPUTS, start=1)}
    made = [NewTopic(topic, n, 1) for n, topic in enumerate(topics, start=1)]
    for future in admin.create_topics(made).values():
        future.result(timeout=30)
    for partitions, (topic, (encoding, codec)) in enumerate(topics.items(), start=1):
        producer = Producer({"bootstrap.servers": lab.bootstrap, "compression.type": codec})
        for n, value in enumerate(values_of(encoding)):
            producer.produce(topic, value, partition=n % partitions)
            intake.decode(encoding, topic, n % partitions, [Record(value, n)], expected)
        assert producer.flush(30) == 0
    inputs = ",".join(f"{topic}={encoding}" for topic, (encoding, _) in topics.items())
    worker = lab.start_worker(MONITOR_INPUTS=inputs)
    wanted = content(fragment for _, fragment in expected.fragments())

    def arrived() -> Counter[Hashable]:
        return content(record for _, record in lab.records() if isinstance(record, Fragment))

    lab.wait("all spans and scores", lambda: arrived().total() >= wanted.total())
    assert worker.stop(grace=20) == 0
    assert arrived() == wanted
    refused = [message for message in lab.read(lab.names.deadletters) if message.value]
    assert len(refused) == len(expected.dead_letters) > 0
