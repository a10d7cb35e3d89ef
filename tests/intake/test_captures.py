"""Real telemetry: what every captured source must become, in every variant that was captured.

`facts.json` and `decoded/` say what arrived (made from the captures by other code). The tables below were written
by hand from `decoded/`, source by source: its spans listed by service, kind (span kind of the instrumentation, else
operation), tool and finish reason with their number, and summed by these rules. A model call is a planner where its
finish reason or output asks for a tool, else a completion, also where it failed; agents and workflows are
planners; tools that only look things up (`lookup_order`, `kb_retrieve`, `flaky_search`, `search`) are retrieval, as are
retrievers and the `pgvector.query`; `calculator`, a hand-off and sub-agents called as tools are tool calls. Chains,
tasks, workflows of LangGraph and the outer spans of the Vercel AI SDK are wrappers; embeddings, events, HTTP
and other spans without any GenAI attribute are plain. For mixed_fleet, by service in the order of `decoded/`:
planner 14 + 5 + 11 + 11 + 7, completion 11 + 8 + 10 + 10 + 10, retrieval 7 + 7 + 7 + 5 + 7, tool call 3 + 0 + 3.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import Any

import msgspec
import pytest

from monitor.intake import Batch, IntakeConfig
from monitor.intake.scores import ScorerScale
from monitor.model import (
    EVALUATOR,
    GUARDRAIL,
    MEMBER,
    PLAIN,
    TRUNCATED,
    UNKNOWN,
    WRAPPER,
    Source,
    Span,
)
from monitor.trace.attribution import attributed

from .common import CONFIG, DATA, decode_capture, spans_of

Expected = dict[str, int]
ROLES: dict[str, Expected] = {
    "double_exporter": {"planner": 56, "completion": 44, "retrieval": 28, "tool_call": 12},
    "google_adk": {"completion": 38, "planner": 31, "retrieval": 22},
    "langfuse_sdk": {"completion": 29, "retrieval": 26, "planner": 21},
    "langgraph_openinference": {"planner": 24, "completion": 23, "retrieval": 17, "tool_call": 12},
    "langgraph_openllmetry": {"planner": 35, "completion": 23, "retrieval": 17, "tool_call": 12},
    "late_evaluator": {"planner": 28, "completion": 22, "retrieval": 14, "tool_call": 6},
    "openai_agents_openinference": {
        "planner": 40,
        "retrieval": 16,
        "completion": 11,
        "tool_call": 2,
    },
    "mixed_fleet": {"planner": 48, "completion": 49, "retrieval": 33, "tool_call": 6},
    "otel_semconv_latest": {"planner": 51, "completion": 33, "retrieval": 23, "tool_call": 13},
    "pydantic_ai": {"planner": 46, "retrieval": 28, "completion": 18, "tool_call": 4},
}
# Kinds that are no members, spans with scores of their own, scores apart, refused scores.
OTHERS: dict[str, tuple[dict[int, int], int, int, Expected]] = {
    "double_exporter": ({PLAIN: 4}, 88, 0, {"score_out_of_range": 88}),  # safety_score is 0..100
    "google_adk": ({}, 38, 0, {}),
    "langfuse_sdk": (
        {WRAPPER: 8, GUARDRAIL: 8, EVALUATOR: 8, PLAIN: 8},
        0,
        0,
        {"no_span_id": 16},  # neither an evaluator observation nor a guardrail's names a span
    ),
    "langgraph_openinference": ({WRAPPER: 61}, 35, 0, {}),
    "langgraph_openllmetry": ({WRAPPER: 73}, 35, 0, {}),
    "late_evaluator": ({EVALUATOR: 88, PLAIN: 2}, 0, 88, {}),
    # 22 + 10 spans with gen_ai.evaluation.*, of which 22 have a safety_score of 0 to 100, too, and 17 of the Vercel
    # AI SDK with safety.score; 17 evaluation spans with ids; two evaluators of Phoenix, three evaluators and three guardrails of Langfuse name no span.
    "mixed_fleet": (
        {WRAPPER: 14, EVALUATOR: 22, GUARDRAIL: 3, PLAIN: 12},
        49,
        17,
        {"no_span_id": 8, "score_out_of_range": 22},
    ),
    "openai_agents_openinference": ({WRAPPER: 40, GUARDRAIL: 5}, 29, 0, {}),
    "otel_semconv_latest": ({PLAIN: 2}, 76, 0, {}),
    "pydantic_ai": ({PLAIN: 7}, 0, 0, {}),
}
# Spans, traces, and copies of spans that came before: all spans of double_exporter came twice.
SIZES: dict[str, tuple[int, int, int]] = {
    "double_exporter": (144, 10, 72),
    "google_adk": (91, 8, 0),
    "langfuse_sdk": (108, 8, 0),
    "langgraph_openinference": (137, 8, 0),
    "langgraph_openllmetry": (160, 16, 0),
    "late_evaluator": (160, 62, 0),
    "mixed_fleet": (187, 19, 0),
    "openai_agents_openinference": (114, 9, 0),
    "otel_semconv_latest": (122, 12, 0),
    "pydantic_ai": (103, 8, 0),
}
CAPTURES = sorted(
    path.name.removesuffix(".jsonl.gz") for path in (DATA / "otlp").glob("*.otlp_*.jsonl.gz")
)
TRACES = [capture for capture in CAPTURES if ".logs" not in capture]
GOOD = [capture for capture in TRACES if not capture.startswith("faults")]
FACTS = json.loads((DATA / "otlp/facts.json").read_text())


def source_of(capture: str) -> tuple[str, str]:
    source, _, variant = capture.partition(".")
    return source, variant


def decoded(source: str) -> list[dict[str, Any]]:
    """Spans as the readable decoding has them, each with its message's coordinates."""
    with gzip.open(DATA / f"otlp/decoded/{source}.json.gz") as file:
        messages = json.load(file)
    return [
        {
            **span,
            "at": (m["partition"], m["offset"], i),
            "service": m["resources"][str(span["res"])].get("service.name", "unknown"),
        }
        for m in messages
        for i, span in enumerate(m["spans"])
    ]


def test_every_capture_is_expected() -> None:
    sources = {source_of(capture)[0] for capture in GOOD}
    assert sources == SIZES.keys() == ROLES.keys() == OTHERS.keys()


@pytest.mark.parametrize("capture", GOOD)
def test_every_span_arrives(capture: str) -> None:
    source, _ = source_of(capture)
    facts = FACTS[source]["otlp_proto"]
    assert SIZES[source] == (facts["spans"], facts["traces"], facts["dup"])
    batch = decode_capture(capture)
    spans = [(trace, span) for trace, of_trace in batch.spans.items() for span in of_trace]
    identities = Counter((trace, span.span_id, span.content_hash) for trace, span in spans)
    copies = sum(n - 1 for n in identities.values())
    assert (len(spans), len(batch.spans), copies) == SIZES[source]
    assert len({(trace, span) for trace, span, _ in identities}) == len(identities)
    assert not batch.faults
    assert not batch.orphans
    assert {span.source.topic for _, span in spans} == {f"otlpcap.{capture}"}


@pytest.mark.parametrize(
    "capture", [c for c in TRACES if source_of(c)[1] == "otlp_proto" and not c.startswith("faults")]
)
def test_every_field_is_what_other_code_read(capture: str) -> None:
    batch = decode_capture(capture)
    mine = {
        (s.source.partition, s.source.offset, s.source.index): (
            trace,
            s.span_id,
            s.parent_span_id or "",
            s.name,
            s.service,
            s.start_unix_nano,
        )
        for trace, spans in batch.spans.items()
        for s in spans
    }
    theirs = {
        s["at"]: (s["trace"], s["span"], s["parent"], s["name"], s["service"], s["start"])
        for s in decoded(source_of(capture)[0])
    }
    clipped = {at for at, span in theirs.items() if "…" in span[3]}
    assert {at: v for at, v in mine.items() if at not in clipped} == {
        at: v for at, v in theirs.items() if at not in clipped
    }


@pytest.mark.parametrize("capture", GOOD)
def test_roles_kinds_and_scores(capture: str) -> None:
    source = source_of(capture)[0]
    batch = decode_capture(capture)
    spans = spans_of(batch)
    kinds, scored, apart, refused = OTHERS[source]
    assert Counter(s.role for s in spans if s.kind == MEMBER) == ROLES[source]
    assert Counter(s.kind for s in spans if s.kind != MEMBER) == kinds
    assert sum(bool(s.scores) for s in spans) == scored
    assert sum(map(len, batch.scores.values())) == apart
    assert Counter(letter.reason for letter in batch.dead_letters) == refused


def test_two_spans_of_one_call_count_once() -> None:
    spans = spans_of(decode_capture("mixed_fleet.otlp_proto"))
    by_name = {s.name: s.kind for s in spans}
    assert by_name["ai.generateText"] == by_name["ai.streamText"] == WRAPPER
    assert by_name["ai.generateText.doGenerate"] == MEMBER
    assert by_name["POST /chat"] == PLAIN


@pytest.mark.parametrize("capture", ["pydantic_ai.logs.otlp_proto", "pydantic_ai.logs.otlp_json"])
def test_log_records_are_scores(capture: str) -> None:
    """By hand from the messages: nine records; `safety` and `safe` are numbers, `category` is a label only."""
    batch = decode_capture(capture)
    values = Counter((s.score.scorer, s.score.value) for ss in batch.scores.values() for s in ss)
    assert values == {("safety", 0.0): 2, ("safety", 1.0): 1, ("safe", 0.0): 2, ("safe", 1.0): 1}
    assert Counter((d.reason, d.scorer) for d in batch.dead_letters) == {
        ("score_label_only", "category"): 3
    }
    assert not batch.spans
    judged = {(t, s.span_id) for t, ss in batch.scores.items() for s in ss}
    there = {
        (t, s.span_id)
        for t, ss in decode_capture("pydantic_ai.otlp_proto").spans.items()
        for s in ss
    }
    assert judged <= there
    mapped = IntakeConfig(
        token_key=CONFIG.token_key,
        scorers={
            "category": ScorerScale(labels={"harmful": 1.0, "benign": 0.0}),
            "safe": ScorerScale(one_means="safe"),
        },
    )
    batch = decode_capture(capture, mapped)
    assert not batch.dead_letters
    values = Counter((s.score.scorer, s.score.value) for ss in batch.scores.values() for s in ss)
    assert values["category", 1.0] == 2
    assert values["safe", 1.0] == 2


def test_late_scores_find_their_targets() -> None:
    batch = decode_capture("late_evaluator.otlp_proto")
    members = {
        (trace, s.span_id)
        for trace, spans in batch.spans.items()
        for s in spans
        if s.kind == MEMBER
    }
    targets = [(trace, score) for trace, scores in batch.scores.items() for score in scores]
    assert {(trace, score.span_id) for trace, score in targets} <= members
    assert Counter(score.score.scorer for _, score in targets) == {"safety": 44, "groundedness": 44}
    assert {score.service for _, score in targets} == {"safety-evaluator"}


def test_scorer_table_gives_direction_and_range() -> None:
    scales = {
        "safety": ScorerScale(one_means="safe"),
        "safety_score": ScorerScale(one_means="safe", maximum=100),
    }
    batch = decode_capture(
        "double_exporter.otlp_proto", IntakeConfig(token_key=CONFIG.token_key, scorers=scales)
    )
    assert not batch.dead_letters
    for span in spans_of(batch):
        values = {score.scorer: score.value for score in span.scores}
        assert values.get("safety") == pytest.approx(values.get("safety_score"))


def models(batch: Batch) -> Counter[str]:
    return Counter(
        s.model_version for s in spans_of(batch) if s.kind == MEMBER and s.role == "completion"
    )


@pytest.mark.parametrize("source", sorted(ROLES.keys() - {"mixed_fleet"}))
def test_model_version_of_every_model_call_is_read(source: str) -> None:
    versions = models(decode_capture(f"{source}.otlp_proto"))
    # A model call that failed has no response; its requested model stands in, marked.
    assert set(versions) <= {"gpt-4o-mini-2024-07-18", "gpt-4.1-mini-2025-04-14"}


def of_tools(capture: str) -> list[Span]:
    tools = [
        s
        for s in spans_of(decode_capture(capture))
        if s.detail is not None and s.detail.tool_name is not None
    ]
    assert tools
    return tools


@pytest.mark.parametrize(
    ("source", "tools"),
    [
        ("google_adk", {"kb_retrieve", "lookup_order", "flaky_search"}),
        ("langfuse_sdk", {"lookup_order", "flaky_search"}),
        ("langgraph_openinference", {"calculator", "lookup_order", "flaky_search"}),
        ("langgraph_openllmetry", {"calculator", "lookup_order", "flaky_search"}),
        (
            "openai_agents_openinference",
            {"kb_retrieve", "lookup_order", "flaky_search", "handoff to billing_agent"},
        ),
        ("pydantic_ai", {"kb_retrieve", "lookup_order", "flaky_search", "risk", "research"}),
    ],
)
def test_tool_names(source: str, tools: set[str]) -> None:
    assert {s.detail.tool_name for s in of_tools(f"{source}.otlp_proto") if s.detail} == tools


@pytest.mark.parametrize(
    "source",
    [
        "langgraph_openinference",
        "langgraph_openllmetry",
        "pydantic_ai",
        "langfuse_sdk",
        "openai_agents_openinference",
    ],
)
def test_tools_with_content_have_arguments_and_results(source: str) -> None:
    tools = of_tools(f"{source}.otlp_proto")
    assert any(s.detail.argument_tokens for s in tools if s.detail)
    assert any(s.detail.result_tokens for s in tools if s.detail)
    for s in tools:
        if s.detail is not None and s.detail.tool_name in ("lookup_order", "calculator"):
            assert s.detail.argument_tokens is not None


def test_without_content_nothing_is_claimed() -> None:
    for span in of_tools("google_adk.otlp_proto"):
        assert span.detail is not None
        assert (
            span.detail.argument_tokens
            is span.detail.result_tokens
            is span.detail.request_tokens
            is None
        )


def test_content_cut_by_the_sender_is_marked() -> None:
    batch = decode_capture("langgraph_openllmetry.otlp_proto")
    marked = [s for s in spans_of(batch) if s.detail is not None and s.detail.flags & TRUNCATED]
    assert marked
    assert batch.counts["content", "truncated"] == len(marked)


# --- faults: each one's fate ----------------------------------------------------------------------------

FATE: dict[str, tuple[int, list[str]]] = {  # case -> spans, reasons of dead letters
    "zero_span_id": (0, ["missing_id"]),
    "zero_trace_id": (0, ["missing_id"]),
    "zero_both": (0, ["missing_id", "missing_id"]),
    "empty_span_id": (0, ["missing_id"]),
    "empty_trace_id": (0, ["missing_id"]),
    "j_no_ids": (0, ["missing_id"]),
    "j_empty_ids": (0, ["missing_id"]),
    "event_extremes": (1, ["score_no_scorer"]),
    "dup_in_request": (2, []),
    "dup_two_requests_same": (2, []),
    "reused_id_other_content": (2, []),
    "same_span_id_two_traces": (2, []),
    "cycle": (2, []),
    "nan_among_good": (2, []),
}


def test_every_fault_has_its_fate() -> None:
    """Cases that are not in the table give one good span."""
    batch = decode_capture("faults.otlp_proto")
    arrived = {s["at"]: s["attrs"]["case"] for s in decoded("faults") if "case" in s["attrs"]}
    where = lambda source: arrived.get((source.partition, source.offset, source.index))  # noqa: E731
    spans = Counter(where(s.source) for s in spans_of(batch))
    letters: dict[str | None, list[str]] = {}
    for letter in batch.dead_letters:
        letters.setdefault(where(letter.source), []).append(letter.reason)
    for case in set(arrived.values()):
        expected = FATE.get(case, (1, []))
        assert (spans[case], letters.get(case, [])) == expected, case
    # The message that Python's protobuf refuses whole: only its own span is lost, and named.
    assert letters[None] == ["not_utf8"]
    assert spans[None] == 0 or None not in spans


def test_reused_id_differs_and_a_resend_does_not() -> None:
    spans = decode_capture("faults.otlp_proto").spans["aa" * 16]
    hashes: dict[str, set[bytes]] = {}
    for span in spans:
        hashes.setdefault(span.span_id, set()).add(span.content_hash)
    assert len(hashes["11" * 8]) == len(hashes["32" * 8]) == 1
    assert len(hashes["33" * 8]) == 2


def content(batch: Batch) -> Counter[Any]:
    """All that a batch holds, without where it came from."""
    spans: Counter[Any] = Counter(
        (trace, msgspec.structs.replace(span, source=Source()))
        for trace, of_trace in batch.spans.items()
        for span in of_trace
    )
    spans.update(
        (trace, msgspec.structs.replace(score, source=Source()))
        for trace, of_trace in batch.scores.items()
        for score in of_trace
    )
    spans.update((d.reason, d.trace_id, d.span_id, d.scorer) for d in batch.dead_letters)
    return spans


@pytest.mark.parametrize("capture", GOOD)
def test_every_variant_in_every_order_says_the_same(capture: str) -> None:
    """Protobuf, JSON and split by trace id; each message read, and the last first."""
    plain = content(decode_capture(f"{source_of(capture)[0]}.otlp_proto"))
    assert content(decode_capture(capture)) == plain
    assert content(decode_capture(capture, backwards=True)) == plain


def test_a_compressed_topic_is_read_like_any_other() -> None:
    spans = spans_of(decode_capture("compression.zstd"))
    assert spans
    assert all(span.service != UNKNOWN for span in spans)


# --- what only the trace knows --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "known"),
    [
        # All tools of pydantic-ai hang below an agent's span with a version; those of semconv have the id of a call
        # or an agent with a version above, but for two traces of a workflow.
        ("pydantic_ai", 32),
        ("otel_semconv_latest", 28),
        # LangChain's tools answer with a message that holds the call's id; the other tools of a graph are its nodes.
        ("langgraph_openinference", 7),
        # Neither ids nor versions above them.
        ("langfuse_sdk", 0),
        ("google_adk", 0),
    ],
)
def test_tools_take_the_version_of_the_model_that_called_them(source: str, known: int) -> None:
    versions: Counter[str] = Counter()
    for spans in decode_capture(f"{source}.otlp_proto").spans.values():
        parents = {span.span_id: span.parent_span_id for span in spans}
        done = attributed(spans, parents)
        assert [span.kind for span in done] == [
            span.kind for span in spans
        ]  # no call is there twice
        versions.update(
            s.model_version
            for s in done
            if s.kind == MEMBER and s.role in ("tool_call", "retrieval")
        )
    assert versions.total() - versions[UNKNOWN] == known
    assert set(versions) <= {UNKNOWN, "gpt-4o-mini-2024-07-18", "gpt-4.1-mini-2025-04-14"}
