"""The batch loops against a real broker: spans in, verdicts out."""

from __future__ import annotations

import gzip
import json
import urllib.request
from pathlib import Path

import pytest

from monitor.codec import decode_fold_record
from monitor.model import SettingsRecord
from monitor.stack import KafkaBroker, Worker
from tests.chaos.lab import (
    SHORT_LIVES,
    Lab,
    assert_same,
    spans_in_fragments,
    spans_in_input,
)

pytestmark = pytest.mark.kafka

SPANS = Path(__file__).resolve().parents[2].parent / "shared/data/agentdojo/spans.jsonl.gz"


def agentdojo(limit: int) -> list[bytes]:
    with gzip.open(SPANS, "rb") as lines:
        return [line.rstrip() for _, line in zip(range(limit), lines, strict=False)]


def test_every_trace_of_the_input_gets_one_verdict(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    lab = Lab(kafka.bootstrap, unique, tmp_path, SHORT_LIVES)
    lab.make_input()
    lines = agentdojo(2_000)
    lab.produce(lines)
    lab.start_worker()
    try:
        lab.wait("every life closed", lambda: lab.all_closed(), 60)
        assert lab.stop_workers() == [0]
    finally:
        lab.kill_workers()
    traces = {json.loads(line)["trace_id"] for line in lines}
    out = assert_same(lab)
    verdicts = [json.loads(raw) for raws in out.verdicts.values() for raw in raws]
    assert {verdict["trace_id"] for verdict in verdicts} == traces
    assert spans_in_fragments(lab) == spans_in_input(lab)
    assert max(spans_in_fragments(lab).values()) == 1


def test_a_log_that_ingest_begins_alone_begins_with_settings(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    """An assemble stage that starts days later must not hold all of it in memory until it has said by what
    settings it is to be judged."""
    lab = Lab(kafka.bootstrap, unique, tmp_path, SHORT_LIVES)
    lab.make_input()
    lab.produce(agentdojo(300))
    lab.start_worker(MONITOR_STAGES="ingest")
    try:
        lab.wait(
            "every span in fragments", lambda: spans_in_fragments(lab) == spans_in_input(lab), 60
        )
        first: dict[int, bytes] = {}
        for message in lab.read(lab.names.fragments):
            first.setdefault(message.partition, message.value)
        assert len(first) == lab.partitions
        for raw in first.values():
            record = decode_fold_record(raw)
            assert isinstance(record, SettingsRecord)
            assert record.sha256 == lab.settings().fold_settings().sha256
        lab.start_worker(MONITOR_STAGES="assemble")
        lab.wait("every life closed", lambda: lab.all_closed(), 60)
        assert lab.stop_workers() == [0, 0]
    finally:
        lab.kill_workers()
    assert_same(lab)


def test_what_waits_for_a_worker_is_counted_from_its_first_transaction(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    """The fold's counters are part of its state: a worker counts from where it took over, not from its first commit."""
    lab = Lab(kafka.bootstrap, unique, tmp_path, SHORT_LIVES)
    lab.make_input()
    lines = agentdojo(300)
    lab.produce(lines)
    lab.start_worker(MONITOR_STAGES="ingest")
    try:
        lab.wait(
            "every span in fragments", lambda: spans_in_fragments(lab) == spans_in_input(lab), 60
        )
        lab.stop_workers()
        with Worker({**lab.env, "MONITOR_STAGES": "assemble"}) as worker:
            folded = 'agent_monitor_fold_events_total{event="spans"} '

            def counted() -> list[float]:
                with urllib.request.urlopen(f"{worker.url}/metrics", timeout=10) as answer:
                    page = answer.read().decode().splitlines()
                return [
                    float(line.removeprefix(folded)) for line in page if line.startswith(folded)
                ]

            lab.wait("every life closed", lambda: lab.all_closed(), 60)
            lab.wait("every span counted", lambda: counted() == [len(lines)], 20)
    finally:
        lab.kill_workers()
