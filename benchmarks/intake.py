"""What intake costs a span: ``.venv/bin/python benchmarks/intake.py``.

Native JSON: 20 spans a trace, interleaved over 200 traces, about 450 bytes a line, without content; decoding,
regrouping and encoded fragments together. OTLP: the real captures, with and without content. Best of several
runs, beside the bare typed decoder on the same lines, so that a busy machine shows.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from monitor.intake import Batch, Encoding, Intake, IntakeConfig
from monitor.intake.native import NativeSpan

DATA = Path(__file__).resolve().parents[1].parent / "shared/data"
CONFIG = IntakeConfig(token_key=bytes(range(32)))
TRACES, SPANS, ROUNDS = 200, 20, 10
BATCH = 4_000  # spans a transaction
FETCH = 500  # records a call
RUNS = 7


@dataclass(slots=True)
class Line:
    offset: int
    timestamp: int
    value: bytes


def native_lines(attributes: dict[str, str]) -> list[Line]:
    """Interleaved: the first span of 200 traces, then the second of each, and so on."""
    rng = random.Random(1)
    names = {
        "planner": "chat gpt-4.1-mini",
        "retrieval": "retrieve kb-main",
        "tool_call": "execute_tool lookup_order",
        "completion": "chat gpt-4.1-mini",
    }
    roles = list(names)
    lines: list[Line] = []
    for _ in range(ROUNDS):
        ids = [(rng.randbytes(16).hex(), rng.randbytes(8).hex()) for _ in range(TRACES)]
        for place in range(SPANS):
            role = roles[place % len(roles)]
            for trace_id, root in ids:
                span = {
                    "trace_id": trace_id,
                    "span_id": rng.randbytes(8).hex() if place else root,
                    "parent_span_id": root if place else None,
                    "service": "support-bot",
                    "name": names[role],
                    "role": role,
                    "model_version": "gpt-4.1-mini-2025-04-14",
                    "start_unix_nano": 1722427291000000000 + place,
                    "end_unix_nano": 1722427291000400000 + place,
                    "scores": [{"scorer": "safety", "version": "3", "value": rng.random() / 5}],
                    "attributes": attributes,
                }
                value = json.dumps(span, separators=(",", ":")).encode()
                lines.append(Line(len(lines), 1_700_000_000_000, value))
    return lines


def best_of(run: Callable[[], int]) -> float:
    """Microseconds a span, best of RUNS. ``run`` gives the number of spans."""
    times = []
    for _ in range(RUNS):
        begin = time.process_time()
        spans = run()
        times.append((time.process_time() - begin) / spans * 1e6)
    return min(times)


def decode_only(lines: Sequence[Line]) -> int:
    decode = msgspec.json.Decoder(NativeSpan).decode
    return len([decode(line.value) for line in lines])


def through(encoding: Encoding, lines: Sequence[Line]) -> int:
    """Intake of all lines in batches; gives the number of spans."""
    intake = Intake(CONFIG)
    spans = 0
    for first in range(0, len(lines), BATCH):
        batch = Batch()
        for start in range(first, min(first + BATCH, len(lines)), FETCH):
            intake.decode(encoding, "agent-spans", 0, lines[start : start + FETCH], batch)
        for _ in batch.fragments():
            pass
        spans += sum(map(len, batch.spans.values()))
    return spans


def captured(source: str, repeat: int) -> list[Line]:
    """Messages of a capture, over and over."""
    with gzip.open(DATA / f"otlp/{source}.jsonl.gz", "rt") as file:
        values = [base64.b64decode(json.loads(line)["value_b64"]) for line in file]
    return [Line(i, 1_700_000_000_000, value) for i, value in enumerate(values * repeat)]


def main() -> None:
    attributes = {"gen_ai.agent.name": "support", "deployment.environment.name": "prod"}
    cases: tuple[tuple[str, dict[str, str]], ...] = (("bare", {}), ("two attributes", attributes))
    for title, given in cases:
        lines = native_lines(given)
        size = sum(len(line.value) for line in lines) / len(lines)
        alone = best_of(partial(decode_only, lines))
        whole = best_of(partial(through, "json", lines))
        print(
            f"native JSON, {title}, {size:.0f} bytes: {whole:.2f} us a span (typed decode alone {alone:.2f})"
        )
    for source, what in (
        ("late_evaluator.otlp_proto", "no content"),
        ("google_adk.otlp_proto", "no content"),
        ("otel_semconv_latest.otlp_proto", "some content"),
        ("langgraph_openinference.otlp_proto", "1.9 kB a span, mostly content"),
    ):
        lines = captured(source, 20)
        cost = best_of(partial(through, "otlp_proto/traces", lines))
        print(f"{source}, {what}: {cost:.2f} us a span")


if __name__ == "__main__":
    main()
