"""What `topics dump` writes is what `replay` reads, and `topics send` brings it back to a broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer

from monitor.cli.topics import captured
from monitor.codec import encode_json
from monitor.demo.services import INPUT_TOPIC, make_input_topic
from monitor.stack import KafkaBroker
from tests.replay.test_replay import of, replay, run, span, write


def dumped(topic: str, encoding: str | None, *values: bytes | None) -> list[str]:
    records = [
        SimpleNamespace(
            topic=topic, partition=1, offset=40 + n, timestamp=1_800_000_000_000 + n, timestamp_type=1, key=None,
            value=value,
        )
        for n, value in enumerate(values)
    ]  # fmt: skip
    return [encode_json(captured(cast(Any, record), encoding)).decode() for record in records]


def test_a_dump_of_an_input_topic_replays_with_its_own_coordinates(tmp_path: Path) -> None:
    lines = dumped("agent-spans", "json", span(2, at=0).encode(), None, b"{")
    records = replay(write(tmp_path / "in.jsonl", *lines))
    assert of(records, "summary")[0]["spans"] == 1
    (letter,) = of(records, "dead_letter")  # a tombstone is none
    assert letter["source"][:3] == ["agent-spans", 1, 42]


@pytest.mark.parametrize(
    ("topic", "encoding", "says"),
    [
        ("monitor.fragments", None, "--fragments"),
        ("some-topic", None, "has no `encoding`"),
        ("some-topic", "avro", "encoding 'avro' is not read"),
    ],
)
def test_a_dump_that_cannot_be_replayed_says_where_and_what_to_do(
    tmp_path: Path, topic: str, encoding: str | None, says: str
) -> None:
    path = write(tmp_path / "in.jsonl", "", *dumped(topic, encoding, b"{}"))
    done = run("replay", str(path))
    assert done.returncode == 2
    assert f"{path}:2: " in done.stderr
    assert says in done.stderr


def test_fragments_names_the_line_that_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "", span(2, at=0))
    done = run("replay", "--fragments", str(path))
    assert done.returncode == 2
    assert f"{path}:2: not a captured message" in done.stderr


@pytest.fixture(scope="module")
def kafka(require_binary: Callable[[str], Path]) -> Iterator[KafkaBroker]:
    require_binary("java")
    with KafkaBroker() as broker:
        asyncio.run(make_input_topic(broker.bootstrap))
        yield broker


@pytest.mark.kafka
@pytest.mark.timeout(120)
def test_what_is_sent_is_dumped_and_replayed(kafka: KafkaBroker, tmp_path: Path) -> None:
    spans = [span(n, at=n, parent=None if n == 1 else 1, score=0.9) for n in (3, 2, 1)]
    brokers = kafka.bootstrap
    sent = run(
        "topics", "send", INPUT_TOPIC, str(write(tmp_path / "a", *spans)), BOOTSTRAP_SERVERS=brokers
    )
    assert sent.stdout == f"sent 3 messages to {INPUT_TOPIC}\n", sent.stderr
    dump = run("topics", "dump", INPUT_TOPIC, BOOTSTRAP_SERVERS=brokers)
    assert dump.stderr == ""
    path = write(tmp_path / "in.jsonl", *dump.stdout.splitlines())
    assert {json.loads(line)["encoding"] for line in path.read_text().splitlines()} == {"json"}
    assert of(replay(path), "summary")[0]["spans"] == 3
    warned = run(
        "topics", "dump", INPUT_TOPIC, BOOTSTRAP_SERVERS=brokers, INPUTS="other=otlp_proto/traces"
    )
    assert f"MONITOR_INPUTS does not name {INPUT_TOPIC}" in warned.stderr
    again = run("topics", "send", INPUT_TOPIC, str(path), BOOTSTRAP_SERVERS=brokers)
    assert "sent 3 messages" in again.stdout


@pytest.mark.kafka
def test_spans_go_to_no_topic_that_is_not_there_or_ours(kafka: KafkaBroker, tmp_path: Path) -> None:
    path = str(write(tmp_path / "a", span(1, at=0)))
    missing = run("topics", "send", "nowhere", path, BOOTSTRAP_SERVERS=kafka.bootstrap)
    assert missing.returncode == 1
    assert "nowhere: not on" in missing.stderr
    ours = run("topics", "send", "monitor.fragments", path, BOOTSTRAP_SERVERS=kafka.bootstrap)
    assert ours.returncode == 2
    assert "only workers write to it" in " ".join(ours.stderr.replace("│", " ").split())


@pytest.mark.kafka
@pytest.mark.timeout(120)
def test_an_input_topic_is_dumped_in_order_of_time_over_its_partitions(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Partition by partition the trace would come apart: its two halves minutes from each other."""
    trace = [(0, 0), (1, 1), (1, 2), (0, 3)]  # partition, second
    others = [(0, 100), (1, 200)]
    began = int(time.time() * 1000) - 3_600_000  # a broker refuses time stamps of tomorrow

    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
            for number, (partition, second) in enumerate(trace, start=1):
                value = span(number, at=second * 1000, parent=None if number == 1 else 1).encode()
                await sent(producer, partition, second, value)
            for number, (partition, second) in enumerate(others, start=2):
                value = span(1, trace=number, at=second * 1000, parent=None).encode()
                await sent(producer, partition, second, value)

    async def sent(producer: AIOKafkaProducer, partition: int, second: int, value: bytes) -> None:
        await producer.send_and_wait(
            "timed", value, partition=partition, timestamp_ms=began + second * 1000
        )

    asyncio.run(make_input_topic(kafka.bootstrap, "timed"))
    asyncio.run(send())
    dump = run(
        "topics", "dump", "timed", BOOTSTRAP_SERVERS=kafka.bootstrap, INPUTS="timed=json"
    ).stdout.splitlines()
    stamps = [json.loads(line)["timestamp"] - began for line in dump]
    assert stamps == [0, 1_000, 2_000, 3_000, 100_000, 200_000]
    verdicts = of(replay(write(tmp_path / "a", *dump)), "verdict")
    assert [(v["revision"], v["span_count"]) for v in verdicts] == [(1, 4), (1, 1), (1, 1)]
