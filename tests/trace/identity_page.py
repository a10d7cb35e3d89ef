"""docs/identity.md out of the shapes that the tests hold: ``python -m tests.trace.identity_page [--check]``.

Class and faults are what a test asserts of the shape; the outcome is what the fold published when one span of it
was over its threshold, so that the page cannot say what the code does not do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from monitor.intake import Batch, Intake, IntakeConfig
from monitor.model import Incident, Score, SpanFault, Verdict
from monitor.trace.config import FoldSettings
from tests.trace.folding import START, Log
from tests.trace.test_identity import SHAPES, Shape
from tests.trace.truth import span

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "identity.md"
OVER: Final = 0.91  # what the one span scores; a tool call's threshold is .30
CLOSED: Final = 120.0  # seconds after which every trace of a test is closed

HEAD: Final = f"""\
# Identity: what is done with which shape of trace

A span's identity is (trace_id, span_id). What breaks it is never repaired, since a wrong causal chain is worse than
an admitted gap; what is missing is listed and never bridged. In each shape below one span, the last of the trace or
one whose id is unusable, is a tool call that scores {OVER}. The outcome is what was published of it: **page** is an
incident of severity critical; *tree* says that its causal neighbourhood was drawn, *partial* that it was drawn with
its gap marked, *refused* that no edge was. Every outcome names the worst score and the Kafka coordinates of the
record that had it.

Generated from the tests by `python -m tests.trace.identity_page`; a test fails where this page is not what the code does.

| shape | class | faults | spans, copies collapsed | outcome |
|---|---|---|---|---|
"""


class Record(NamedTuple):
    offset: int
    timestamp: int
    value: bytes


class Messages(NamedTuple):
    """A shape as it is sent, in native JSON: what intake makes of ids is part of it."""

    name: str
    spans: list[dict[str, Any]]
    status: str  # of every trace; "dead letter" where there is none
    traces: int = 1


def _large() -> list[Shape]:
    chain = [span(n, n - 1 if n else None) for n in range(10_000)]
    return [
        Shape("chain of 10,000", chain, "complete"),
        Shape("chain of 10,000, last span first", [*chain[1:][::-1], chain[0]], "complete"),
        Shape(
            "circle of 10,000",
            [span(n, (n - 1) % 10_000) for n in range(10_000)],
            "rejected",
            {"cycle": [*range(10_000)], "no_root": []},
        ),
        Shape(
            "a thousand roots",
            [span(n) for n in range(1000)],
            "incomplete",
            {"multiple_roots": [*range(1000)]},
        ),
    ]


def _native(span_id: object, parent: object, trace_id: object = "ab" * 16, **more: Any) -> Any:
    return {
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_span_id": parent,
        "service": "agents",
        "name": "step",
        "role": "tool_call",
        "model_version": "m-1",
        "start_unix_nano": 1_790_000_000_000_000_000,
        "end_unix_nano": 1_790_000_001_000_000_000,
        "scores": [],
        "attributes": {},
    } | more


_ROOT: Final = _native("0a" * 8, None)
_OVER: Final = {"scores": [{"scorer": "judge", "version": "1", "value": OVER}]}
_UUID: Final = "7f3b1c52-9d0e-4c1a-8b7e-2f1d3c4b5a69"

MESSAGES: Final = [
    Messages("ids in capitals", [_ROOT, _native("0B" * 8, "0A" * 8, **_OVER)], "complete"),
    Messages("span id is a UUID", [_ROOT, _native(_UUID, "0a" * 8, **_OVER)], "rejected"),
    Messages(
        "span id is a UUID without hyphens",
        [_ROOT, _native(_UUID.replace("-", ""), "0a" * 8, **_OVER)],
        "rejected",
    ),
    Messages("span id is base64", [_ROOT, _native("CwsLCwsLCws=", "0a" * 8, **_OVER)], "rejected"),
    Messages("span id is all zeros", [_ROOT, _native("00" * 8, "0a" * 8, **_OVER)], "rejected"),
    Messages("span id is a number", [_ROOT, _native(17, "0a" * 8, **_OVER)], "rejected"),
    Messages("span id is absent", [_ROOT, _native(None, "0a" * 8, **_OVER)], "rejected"),
    Messages("parent id is malformed", [_ROOT, _native("0b" * 8, "parent", **_OVER)], "rejected"),
    Messages("trace id of 64 bits", [_native("0b" * 8, None, "ab" * 8, **_OVER)], "dead letter", 0),
    Messages(
        "trace id is a UUID with hyphens",
        [_native("0b" * 8, None, _UUID, **_OVER)],
        "dead letter",
        0,
    ),
    Messages("trace id is absent", [_native("0b" * 8, None, None, **_OVER)], "dead letter", 0),
    Messages(
        "the same span ids in two traces",
        [_ROOT, {**_ROOT, "trace_id": "cd" * 16}]
        + [_native("0b" * 8, "0a" * 8, trace * 16, **_OVER) for trace in ("ab", "cd")],
        "complete",
        2,
    ),
]


class Outcome(NamedTuple):
    verdicts: list[Verdict]
    incidents: list[Incident]

    @property
    def words(self) -> str:
        """The last revision of each incident; equal ones once."""
        last = {incident.incident_id: incident for incident in self.incidents}
        return "; ".join(dict.fromkeys(map(_words, last.values()))) or "nothing to judge"


def _words(incident: Incident) -> str:
    drawn = {"edges": "tree", "partial": "partial", "refused": "refused"}
    page = "page" if incident.severity == "critical" else incident.severity
    said = f"worst score {incident.max_score:.2f}" if incident.max_score is not None else "no score"
    return f"{page}, `{incident.reason}`: {drawn[incident.neighbourhood.status]}, {said}"


def of_shape(shape: Shape) -> Outcome:
    """What the fold publishes of it with one span over its threshold."""
    log = Log(FoldSettings(redelivery=shape.redelivery))  # type: ignore[arg-type]
    over = (Score("judge", "1", OVER),)
    faults = [
        SpanFault(kind, service="agents", role="tool_call", scores=over) for kind in shape.unusable
    ]
    spans = list(shape.spans)
    if spans and not faults:
        judged = next(one for one in reversed(spans) if one.kind == 0).span_id
        spans = [
            msgspec.structs.replace(one, role="tool_call", scores=over)
            if one.span_id == judged
            else one
            for one in spans
        ]
    if spans:
        log.spans("shape", *spans)
    if faults:
        log.faults("shape", *faults)
    log.until(CLOSED)
    return Outcome(log.verdicts, log.incidents)


def of_messages(shape: Messages) -> Outcome:
    batch = Batch()
    records = [Record(n, START, json.dumps(one).encode()) for n, one in enumerate(shape.spans)]
    Intake(IntakeConfig(token_key=b"k" * 32)).decode("json", "agent-spans", 0, records, batch)
    log = Log()
    for _, raw in batch.encoded_fragments():
        log.put(raw)
    for orphan in batch.orphans:
        log.put(orphan)
    log.until(CLOSED)
    return Outcome(log.verdicts, log.incidents)


def rows() -> Iterable[tuple[str, str, str, str, str]]:
    for shape in [*SHAPES, *_large()]:
        found = of_shape(shape)
        verdict = found.verdicts[-1] if found.verdicts else None
        said = {} if verdict is None else {f.kind: f.count for f in verdict.forensics.faults}
        faults = ", ".join(
            f"`{kind}`" + (f" x{len(names):,}" if len(names) > 1 else "")
            for kind, names in shape.faults.items()
        )
        kept = len(shape.spans) - shape.redelivered
        if verdict is not None and (
            str(verdict.forensics.status) != shape.status or said.keys() != shape.faults.keys()
        ):
            raise AssertionError(f"{shape.name}: the fold says {verdict.forensics}")
        copies = f"{kept:,}, {shape.redelivered}" if shape.redelivered else f"{kept:,}"
        yield shape.name, shape.status, faults, copies, found.words
    for sent in MESSAGES:
        found = of_messages(sent)
        classes = [str(v.forensics.status) for v in found.verdicts] or ["dead letter"]
        if classes != [sent.status] * max(sent.traces, 1):
            raise AssertionError(f"{sent.name}: the fold says {classes}")
        kinds = dict.fromkeys(f.kind for v in found.verdicts for f in v.forensics.faults)
        if not kinds:
            kinds = dict.fromkeys(f.kind for i in found.incidents for f in i.forensics.faults)
        yield (
            sent.name,
            sent.status,
            ", ".join(f"`{kind}`" for kind in kinds),
            f"{len(sent.spans)}",
            found.words,
        )


def page() -> str:
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows()) + _FOOT


_FOOT: Final = """
A trace id that is not one of 128 bits cannot be joined to anything: such a span is a dead letter and, over its
threshold, an incident of its own. A trace without any span and fault is never opened. Copies without both times are
a conflict, since two calls in a loop look just like that; `MONITOR_REDELIVERY=reject` refuses the others too, and
`monitor.reduce_trace` always does.
"""


def main(arguments: list[str], build: Callable[[], str] = page, path: Path = PAGE) -> int:
    text = build()
    if "--check" not in arguments:
        path.write_text(text, "utf-8")
        return 0
    if path.is_file() and path.read_text("utf-8") == text:
        return 0
    sys.stderr.write(f"{path} is stale: run `python -m tests.trace.identity_page`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
