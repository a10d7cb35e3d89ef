"""The batch loops against a real broker: spans in, verdicts out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from monitor.stack import KafkaBroker
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
