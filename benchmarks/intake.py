"""What intake costs a span: ``python -m benchmarks.intake``.

Decoding, regrouping and encoded fragments together, best of several runs. Native JSON: 20 spans a trace,
interleaved over 200 traces. OTLP: captured messages over and over, each time with ids, token counts and content
of their own, so that caches meet no more than they would in life. ``1 kB``: one kilobyte of content on each span
that can have some, as text of its own. Beside each figure its ratio to a baseline of the same run: what must be
done at the least, by a library in C (typed decoding of JSON lines; protobuf's ParseFromString and a walk over
all attributes). The ratio says more than the figure where the machine is busy.
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
from typing import Any

import msgspec
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from monitor.intake import Batch, Encoding, Intake, IntakeConfig
from monitor.intake.native import NativeSpan
from tests.intake.otlp import as_json

DATA = Path(__file__).resolve().parents[1].parent / "shared/data"
CONFIG = IntakeConfig(token_key=bytes(range(32)))
TRACES, SPANS, ROUNDS = 200, 20, 10
BATCH = 4_000  # spans a transaction
FETCH = 500  # records a call
RUNS = 7
MESSAGE = 200  # spans an OTLP message: what the Collector gathers in 200 ms of 1,000 spans a second
TURNS = 20  # of each capture


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


def otlp_lines(*, content: bool = False) -> list[Line]:
    """The same spans with their score as attributes of OpenTelemetry's conventions, MESSAGE a message."""
    rng = random.Random(2)
    operations = {
        "planner": "invoke_agent",
        "retrieval": "retrieval",
        "tool_call": "execute_tool",
        "completion": "chat",
    }
    spans = [json.loads(line.value) for line in native_lines({})]
    lines: list[Line] = []
    for first in range(0, len(spans), MESSAGE):
        message = TracesData()
        resource_spans = message.resource_spans.add()
        _set(resource_spans.resource, {"service.name": "support-bot"})
        into = resource_spans.scope_spans.add().spans
        for number, native in enumerate(spans[first : first + MESSAGE], first):
            span = into.add(
                trace_id=bytes.fromhex(native["trace_id"]),
                span_id=bytes.fromhex(native["span_id"]),
                parent_span_id=bytes.fromhex(native["parent_span_id"] or ""),
                name=native["name"],
                kind=1,
                start_time_unix_nano=native["start_unix_nano"],
                end_time_unix_nano=native["end_unix_nano"],
            )
            attributes = {
                "gen_ai.operation.name": operations[native["role"]],
                "gen_ai.provider.name": "openai",
                "gen_ai.agent.name": "support",
                "gen_ai.evaluation.name": "safety",
                "gen_ai.evaluation.score.value": native["scores"][0]["value"],
            }
            if native["role"] in ("planner", "completion"):
                attributes["gen_ai.response.model"] = native["model_version"]
                attributes["gen_ai.usage.input_tokens"] = rng.randint(50, 5_000)
                attributes["gen_ai.usage.output_tokens"] = rng.randint(5, 500)
            elif native["role"] == "tool_call":
                attributes["gen_ai.tool.name"] = "lookup_order"
                attributes["gen_ai.tool.call.id"] = f"call_{rng.randbytes(12).hex()}"
            _set(span, attributes)
            if content:
                _add_content(span, number)
        lines.append(Line(len(lines), 1_700_000_000_000, message.SerializeToString()))
    return lines


def _set(holder: Resource | Span, attributes: dict[str, Any]) -> None:
    for key, held in attributes.items():
        value = holder.attributes.add(key=key).value
        match held:
            case str():
                value.string_value = held
            case int():
                value.int_value = held
            case float():
                value.double_value = held


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


def parse_only(lines: Sequence[Line]) -> int:
    """Every attribute of every span handed out by protobuf's own messages."""
    spans = 0
    for line in lines:
        for resource_spans in TracesData.FromString(line.value).resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    spans += 1
                    for attribute in span.attributes:
                        attribute.key, attribute.value  # noqa: B018 - handing out is what is measured
    return spans


def through(encoding: Encoding, lines: Sequence[Line]) -> int:
    """Intake of all lines in batches; gives the number of spans, or of scores where there are no spans."""
    intake = Intake(CONFIG)
    items = first = 0
    while first < len(lines):
        batch, size = Batch(), 0
        while size < BATCH and first < len(lines):
            records = (
                lines[first : first + FETCH] if encoding == "json" else lines[first : first + 1]
            )
            intake.decode(encoding, "agent-spans", 0, records, batch)
            first += len(records)
            counts = batch.counts.items()  # by role and scorer: few
            size = sum(n for (what, _), n in counts if what in ("spans", "detached_scores"))
        for _ in batch.fragments():
            pass
        items += sum(map(len, (batch.spans or batch.scores).values()))
    return items


def text_of(number: int, size: int) -> str:
    """About ``size`` bytes of an agent's text, no two alike."""
    words = (
        f"order A-{number:07d} for user{number}@example.org, invoice 48{number:05d}.50 EUR, "
        f"see https://shop.example/orders/{number} "
    )
    prose = "the parcel was handed to the carrier and should arrive within three working days "
    return (words + prose * (size // len(prose) + 1))[:size]


def messages_of(number: int) -> str:
    """A kilobyte of a model's input."""
    parts = [{"type": "text", "content": text_of(number, 920)}]
    return json.dumps([{"role": "user", "parts": parts}])


def fresh(value: bytes, turn: int, *, content: bool) -> bytes:
    """A captured message as if sent by another run: other ids, other values where each span has its own."""
    message = TracesData.FromString(value)
    mask = turn.to_bytes(8, "big") * 2
    for resource_spans in message.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            for at, span in enumerate(scope_spans.spans):
                _renew(span, turn, mask)
                if content:
                    _add_content(span, turn * 1_000 + at)
    return message.SerializeToString()


def _renew(span: Span, turn: int, mask: bytes) -> None:
    span.trace_id, span.span_id = _masked(span.trace_id, mask), _masked(span.span_id, mask)
    for link in span.links:
        link.trace_id, link.span_id = _masked(link.trace_id, mask), _masked(link.span_id, mask)
    span.parent_span_id = _masked(span.parent_span_id, mask)
    for attribute in span.attributes:
        key, held = attribute.key, attribute.value
        if held.HasField("string_value") and key.endswith(("trace_id", "span_id")):
            held.string_value = _masked(bytes.fromhex(held.string_value), mask).hex()
        elif held.HasField("string_value") and key.endswith((".id", "_id", ".name_id")):
            held.string_value += f"-{turn}"
        elif held.HasField("int_value") and "token" in key:
            held.int_value += turn
        elif held.HasField("double_value") and "score" in key:
            held.double_value = min(held.double_value, 0.9) + turn / 10_000


def _masked(octets: bytes, mask: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(octets, mask, strict=False))


def _add_content(span: Span, number: int) -> None:
    operation = next(
        (a.value.string_value for a in span.attributes if a.key == "gen_ai.operation.name"), None
    )
    if operation is None or operation == "evaluation":
        return
    content = {"gen_ai.input.messages": messages_of(number)}
    if operation == "execute_tool":
        content = {
            "gen_ai.tool.call.arguments": json.dumps({"query": text_of(number, 280)}),
            "gen_ai.tool.call.result": json.dumps({"answer": text_of(number + 1, 680)}),
        }
    for key, text in content.items():
        span.attributes.add(key=key).value.string_value = text


def captured(source: str, turns: int, *, content: bool = False) -> list[Line]:
    """Messages of a capture, over and over, each turn with its own ids and values."""
    with gzip.open(DATA / f"otlp/{source}.otlp_proto.jsonl.gz", "rt") as file:
        values = [base64.b64decode(json.loads(line)["value_b64"]) for line in file]
    if not source.endswith(".logs"):
        values = [fresh(value, turn, content=content) for turn in range(turns) for value in values]
    else:
        values *= turns
    return [Line(i, 1_700_000_000_000, value) for i, value in enumerate(values)]


def row(title: str, cost: float, baseline: float) -> None:
    print(f"{title}: {cost:.2f} us, {cost / baseline:.1f} times the baseline of {baseline:.2f}")


def main() -> None:
    agent = {"gen_ai.agent.name": "support", "deployment.environment.name": "prod"}
    cases: tuple[tuple[str, list[Line]], ...] = (
        ("no attributes", native_lines({})),
        ("two attributes", native_lines(agent)),
        ("1 kB", native_lines({**agent, "input.value": messages_of(1)})),
    )
    for title, lines in cases:
        alone = best_of(partial(decode_only, lines))
        row(f"json, {title}", best_of(partial(through, "json", lines)), alone)
    traces: tuple[tuple[Encoding, Callable[[Line], Line]], ...] = (
        ("otlp_proto/traces", lambda line: line),
        ("otlp_json/traces", in_json),
    )
    for title, lines in (
        ("as json above, no content", otlp_lines()),
        ("google_adk, no content", captured("google_adk", TURNS)),
        ("late_evaluator, no content, half are evaluations", captured("late_evaluator", TURNS)),
        ("as json above, 1 kB", otlp_lines(content=True)),
        ("google_adk, 1 kB", captured("google_adk", TURNS, content=True)),
        ("langgraph_openinference as captured", captured("langgraph_openinference", TURNS)),
    ):
        alone = best_of(partial(parse_only, lines))
        for encoding, written in traces:
            cost = best_of(partial(through, encoding, list(map(written, lines))))
            row(f"{encoding}, {title}", cost, alone)
    logs = captured("pydantic_ai.logs", 10 * TURNS)
    texts = [in_json(line, logs=True) for line in logs]
    print(
        f"otlp_proto/logs: {best_of(partial(through, 'otlp_proto/logs', logs)):.2f} us an evaluation"
    )
    print(
        f"otlp_json/logs: {best_of(partial(through, 'otlp_json/logs', texts)):.2f} us an evaluation"
    )


def in_json(line: Line, *, logs: bool = False) -> Line:
    return Line(line.offset, line.timestamp, as_json(line.value, logs=logs))


if __name__ == "__main__":
    main()
