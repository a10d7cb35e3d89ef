"""What the intake tests share: records, a configuration, and the captures."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor.intake import Batch, Encoding, Intake, IntakeConfig
from monitor.model import Span

DATA = Path(__file__).resolve().parents[2].parent / "shared/data"
CONFIG = IntakeConfig(token_key=bytes(range(32)))
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
OTHER = "00f067aa0ba902b7"


@dataclass
class Record:
    value: bytes | None
    offset: int = 0
    timestamp: int = 1_700_000_000_000


def native(**fields: Any) -> bytes:
    """A native span as a line; given fields replace or add, `...` removes."""
    span: dict[str, Any] = {"trace_id": TRACE, "span_id": SPAN, "role": "tool_call", **fields}
    return json.dumps({key: value for key, value in span.items() if value is not ...}).encode()


def decode(
    *values: bytes | None,
    encoding: Encoding = "json",
    config: IntakeConfig = CONFIG,
    intake: Intake | None = None,
) -> Batch:
    batch = Batch()
    records = [Record(value, offset) for offset, value in enumerate(values)]
    (intake or Intake(config)).decode(encoding, "agent-spans", 3, records, batch)
    return batch


def only(batch: Batch) -> Span:
    """The one span of a batch that holds nothing else."""
    [[span]] = batch.spans.values()
    assert not batch.dead_letters
    return span


def spans_of(batch: Batch) -> list[Span]:
    return [span for spans in batch.spans.values() for span in spans]


def messages(capture: str) -> Iterator[dict[str, Any]]:
    """Captured Kafka messages, with their bytes as `value`."""
    with gzip.open(DATA / "otlp" / f"{capture}.jsonl.gz", "rt") as file:
        for line in file:
            message = json.loads(line)
            yield {**message, "value": base64.b64decode(message["value_b64"])}


def decode_capture(
    capture: str, config: IntakeConfig = CONFIG, *, backwards: bool = False
) -> Batch:
    """A capture as ingest reads it, message by message; ``backwards``: the last message first."""
    batch, intake = Batch(), Intake(config)
    signal = "logs" if ".logs." in capture else "traces"
    read = list(messages(capture))
    for message in reversed(read) if backwards else read:
        record = Record(message["value"], message["offset"], message["timestamp"])
        encoding: Any = f"{message['encoding']}/{signal}"
        intake.decode(encoding, message["topic"], message["partition"], [record], batch)
    return batch
