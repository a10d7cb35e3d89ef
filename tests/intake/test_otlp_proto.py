"""OTLP protobuf: hostile bytes, field order, and that one broken span costs only itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from monitor.intake import Batch, Bounds, IntakeConfig, wire
from monitor.intake.reasons import REASONS
from monitor.model import (
    ALIAS_MODEL,
    EVALUATOR,
    GUARDRAIL,
    MEMBER,
    PLAIN,
    WRAPPER,
    Link,
    Score,
    Span,
)

from .common import CONFIG, OTHER, SPAN, TRACE, decode, messages, only, spans_of


def any_value(value: Any) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case list():
            return AnyValue(array_value=ArrayValue(values=[any_value(each) for each in value]))
        case dict():
            return AnyValue(kvlist_value=KeyValueList(values=pairs(value)))
        case _:
            return AnyValue()


def pairs(attributes: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def span(**fields: Any) -> pb.Span:
    """A span as an SDK makes it; ids in hex, attributes as a dict."""
    ids = {
        field: bytes.fromhex(fields.pop(field, default))
        for field, default in (("trace_id", TRACE), ("span_id", SPAN), ("parent_span_id", ""))
    }
    attributes = pairs(fields.pop("attributes", {}))
    return pb.Span(**ids, attributes=attributes, **fields)


def message(*spans: pb.Span, service: str | None = "bot") -> bytes:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    if service is not None:
        resource_spans.resource.attributes.extend(pairs({"service.name": service}))
    resource_spans.scope_spans.add().spans.extend(spans)
    return request.SerializeToString()


def take(*values: bytes | None, config: IntakeConfig = CONFIG) -> Batch:
    return decode(*values, encoding="otlp_proto/traces", config=config)


def one(**fields: Any) -> Span:
    return only(take(message(span(**fields))))


def test_every_field_arrives() -> None:
    got = one(
        parent_span_id=OTHER,
        name="execute_tool send_email",
        start_time_unix_nano=5,
        end_time_unix_nano=2**64 - 1,
        attributes={
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "send_email",
            "gen_ai.tool.call.id": "call_1",
            "gen_ai.agent.name": "writer",
            "gen_ai.conversation.id": "c1",
            "gen_ai.evaluation.name": "pii",
            "gen_ai.evaluation.score.value": 0.25,
        },
        links=[pb.Span.Link(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(OTHER))],
    )
    assert (got.span_id, got.parent_span_id, got.service, got.role, got.kind) == (
        SPAN,
        OTHER,
        "bot",
        "tool_call",
        MEMBER,
    )
    assert (got.start_unix_nano, got.end_unix_nano) == (5, 2**64 - 1)
    assert got.scores == (Score("pii", "unknown", 0.25),)
    detail = got.detail
    assert detail is not None
    assert (
        detail.tool_name,
        detail.tool_call_id,
        detail.agent,
        detail.session_id,
        detail.tags,
        detail.links,
    ) == (
        "send_email",
        "call_1",
        "writer",
        "c1",
        ("egress",),
        (Link(TRACE, OTHER),),
    )


@pytest.mark.parametrize("parent", ["", "0" * 16])
def test_root(parent: str) -> None:
    assert one(parent_span_id=parent).parent_span_id is None


@pytest.mark.parametrize(
    ("fields", "reason", "said"),
    [
        ({"trace_id": ""}, "missing_id", "trace_id"),
        ({"trace_id": "00" * 16}, "missing_id", "trace_id"),
        ({"trace_id": "ab" * 8}, "malformed_id", "trace_id has 8 bytes"),
        ({"span_id": ""}, "missing_id", "span_id"),
        ({"span_id": "ab" * 9}, "malformed_id", "span_id has 9 bytes"),
        ({"parent_span_id": "ab" * 4}, "malformed_id", "parent_span_id has 4 bytes"),
    ],
)
def test_unusable_id_costs_its_span_alone(fields: dict[str, str], reason: str, said: str) -> None:
    scored = {"agent_monitor.score.pii": 0.9}
    batch = take(
        message(span(span_id=OTHER), span(**fields, attributes=scored), span(span_id="ab" * 8))
    )
    assert [s.span_id for s in batch.spans[TRACE]] == [OTHER, "ab" * 8]
    [letter] = batch.dead_letters
    assert letter.reason == reason
    assert said in letter.detail
    assert letter.source.index == 1
    faults = [orphan.fault for orphan in batch.orphans] + batch.faults.get(TRACE, [])
    assert [(f.fault, f.service, [s.value for s in f.scores]) for f in faults] == [
        (reason, "bot", [0.9])
    ]
    # What the dead letter keeps is a message that comes to the same end.
    again = take(letter.value)
    assert [a.reason for a in again.dead_letters] == [reason]
    assert [a.value for a in again.dead_letters] == [letter.value]


def test_bad_utf8_costs_its_span_alone() -> None:
    for field in ("name", "attribute", "unread attribute"):
        bad = span(
            name="NAME",
            attributes={"gen_ai.agent.name": "AGENT", "unread": "UNREAD"},
        )
        value = message(span(span_id=OTHER), bad)
        mark = {"name": b"NAME", "attribute": b"AGENT", "unread attribute": b"UNREAD"}[field]
        value = value.replace(mark, b"\xff" + mark[1:])
        with pytest.raises(Exception, match="pars"):
            ExportTraceServiceRequest.FromString(value)
        batch = take(value)
        assert [s.span_id for s in spans_of(batch)] == [OTHER]
        assert [d.reason for d in batch.dead_letters] == ["not_utf8"]


def test_broken_span_costs_itself_alone() -> None:
    broken = b"\x0a\x10only a few"
    scope = wire.SlicedScope(items=[span().SerializeToString(), broken]).SerializeToString()
    resource = wire.SlicedResource(scopes=[scope]).SerializeToString()
    value = wire.SlicedMessage(resources=[resource]).SerializeToString()
    batch = take(value)
    assert [s.span_id for s in spans_of(batch)] == [SPAN]
    assert [d.reason for d in batch.dead_letters] == ["not_protobuf"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"resourceSpans":[]}', "not_protobuf"),
        (b"\x0a\xff\xff\xff\xff\x0f", "not_protobuf"),
        (b"\x00", "not_protobuf"),
        (message(span(attributes={"a": "x" * 5_000_000})), "too_large"),
        (message(*[span() for _ in range(6)]), "too_many_spans"),
    ],
)
def test_broken_message_is_a_dead_letter_whole(value: bytes, reason: str) -> None:
    config = IntakeConfig(token_key=CONFIG.token_key, bounds=Bounds(spans_per_message=5))
    batch = take(value, message(span()), config=config)
    assert [s.span_id for s in spans_of(batch)] == [SPAN]
    assert [(d.reason, d.value) for d in batch.dead_letters] == [(reason, value)]


def test_empty_envelopes_are_ignored() -> None:
    batch = take(None, b"", ExportTraceServiceRequest().SerializeToString(), message())
    assert not batch.spans
    assert not batch.dead_letters
    assert batch.counts["ignored", "tombstone"] == 1
    assert batch.counts["ignored", "empty"] == 3


def test_attributes_past_the_bound_refuse_the_span() -> None:
    batch = take(message(span(attributes={f"a{i}": i for i in range(1025)}), span(span_id=OTHER)))
    assert [s.span_id for s in spans_of(batch)] == [OTHER]
    assert [d.reason for d in batch.dead_letters] == ["too_many_attributes"]


@pytest.mark.parametrize(("depth", "reasons"), [(40, []), (60, ["too_deep"]), (2000, ["too_deep"])])
def test_deep_attribute_costs_its_span_alone(depth: int, reasons: list[str]) -> None:
    value = b"\x0a\x01x"  # a string
    for _ in range(depth):  # in an array, in an array ...
        inner = b"\x0a" + varint(len(value)) + value
        value = b"\x2a" + varint(len(inner)) + inner
    key = b"gen_ai.tool.call.arguments"
    pair = b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(value)) + value
    deep = wire.Span(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(SPAN), attributes=[pair])
    batch = take(message(span(span_id=OTHER)), wire.message_of(b"", b"", deep.SerializeToString()))
    assert [d.reason for d in batch.dead_letters] == reasons
    assert len(spans_of(batch)) == 2 - len(reasons)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


# --- scores ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "score_not_finite"),
        (float("inf"), "score_not_finite"),
        (True, "score_boolean"),
        ("0.5", "score_string"),
        ([0.5], "score_wrong_type"),
        (2, "score_out_of_range"),
        (-(2**63), "score_out_of_range"),
    ],
)
def test_bad_score_is_refused_alone(value: Any, reason: str) -> None:
    attributes = {"agent_monitor.score.pii": value, "eval.tox.score": 0.5}
    batch = take(message(span(attributes=attributes)))
    [got] = spans_of(batch)
    assert got.scores == (Score("tox", "unknown", 0.5),)
    [letter] = batch.dead_letters
    assert (letter.reason, letter.scorer, letter.trace_id, letter.span_id) == (
        reason,
        "pii",
        TRACE,
        SPAN,
    )


def test_evaluation_events_score_their_span() -> None:
    events = [
        pb.Span.Event(
            name="gen_ai.evaluation.result",
            attributes=pairs(
                {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": value}
            ),
        )
        for name, value in (("pii", 0.5), ("tox", 1))
    ]
    other = pb.Span.Event(name="else", attributes=pairs({"gen_ai.evaluation.score.value": 0.9}))
    got = one(events=[*events, other])
    assert got.scores == (Score("pii", "unknown", 0.5), Score("tox", "unknown", 1.0))
    assert got.kind == MEMBER  # a scored span is looked at, whatever it is


def test_evaluation_span_is_tied_by_link_or_ids_never_by_parent() -> None:
    judged = {
        "gen_ai.operation.name": "evaluation",
        "gen_ai.evaluation.name": "pii",
        "gen_ai.evaluation.score.value": 0.5,
    }
    target = pb.Span.Link(trace_id=bytes.fromhex("ab" * 16), span_id=bytes.fromhex(OTHER))
    ids = {"evaluated.trace_id": "ab" * 16, "evaluated.span_id": OTHER}
    for fields in ({"links": [target]}, {"attributes": {**judged, **ids}}):
        batch = take(message(span(**{"attributes": judged, **fields}), service="judge"))
        [got] = spans_of(batch)
        assert (got.kind, got.scores) == (EVALUATOR, ())
        [score] = batch.scores["ab" * 16]
        assert (score.span_id, score.score.value, score.service) == (OTHER, 0.5, "judge")
    batch = take(message(span(parent_span_id=OTHER, attributes=judged)))
    assert not batch.scores
    assert [(d.reason, d.scorer) for d in batch.dead_letters] == [("no_span_id", "pii")]


# --- content hash ---------------------------------------------------------------------------------------


def test_content_is_neither_order_nor_writer() -> None:
    attributes = {"a": 1, "gen_ai.agent.name": "x", "long": "y" * 500}
    base = one(attributes=attributes)
    assert one(attributes=dict(reversed(attributes.items()))).content_hash == base.content_hash
    # The Collector writes a KeyValue's value before its key; SDKs the other way round.
    flipped = [
        b"\x12"
        + varint(len(v := kv.value.SerializeToString()))
        + v
        + b"\x0a"
        + varint(len(kv.key))
        + kv.key.encode()
        for kv in pairs(attributes)
    ]
    raw = wire.Span(
        trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(SPAN), attributes=flipped
    ).SerializeToString()
    resource = pb.ResourceSpans.FromString(message(span())[2:]).resource.SerializeToString()
    got = only(take(wire.message_of(resource, b"", raw)))
    assert got.content_hash == base.content_hash
    assert got.detail == base.detail


@pytest.mark.parametrize(
    "change",
    [
        {"name": "n"},
        {"kind": 3},
        {"parent_span_id": OTHER},
        {"start_time_unix_nano": 1},
        {"end_time_unix_nano": 1},
        {"status": pb.Status(code=pb.Status.STATUS_CODE_ERROR)},
        {"attributes": {"a": 2}},
        {"attributes": {"a": 1.0}},
        {"attributes": {"a": 1, "b": 1}},
        {"events": [pb.Span.Event(name="e")]},
        {"links": [pb.Span.Link(trace_id=b"a" * 16, span_id=b"b" * 8)]},
    ],
)
def test_content_is_all_of_the_span(change: dict[str, Any]) -> None:
    assert (
        one(attributes={"a": 1}).content_hash
        != one(**{"attributes": {"a": 1}, **change}).content_hash
    )


def test_content_has_its_service_and_no_other_resource_attribute() -> None:
    base = only(take(message(span()))).content_hash
    assert only(take(message(span(), service="other"))).content_hash != base
    request = ExportTraceServiceRequest.FromString(message(span()))
    request.resource_spans[0].resource.attributes.extend(pairs({"service.instance.id": "x"}))
    assert only(take(request.SerializeToString())).content_hash == base


def test_no_resource_is_an_unknown_service() -> None:
    assert only(take(message(span(), service=None))).service == "unknown"


# --- what a span is -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "role", "kind"),
    [
        ({"gen_ai.operation.name": "chat"}, "completion", MEMBER),
        ({"gen_ai.operation.name": "chat", "gen_ai.response.finish_reasons": ["tool_calls"]}, "planner", MEMBER),
        ({"gen_ai.operation.name": "chat", "gen_ai.output.messages": '[{"parts":[{"type":"tool_call"}]}]'}, "planner", MEMBER),
        ({"gen_ai.operation.name": "invoke_agent"}, "planner", MEMBER),
        ({"gen_ai.operation.name": "plan"}, "planner", MEMBER),
        ({"gen_ai.operation.name": "search_memory"}, "retrieval", MEMBER),
        ({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "send_email"}, "tool_call", MEMBER),
        ({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search_files"}, "retrieval", MEMBER),
        ({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.type": "datastore"}, "retrieval", MEMBER),
        ({"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "e"}, "retrieval", PLAIN),
        ({"gen_ai.operation.name": "frobnicate"}, "unknown", MEMBER),
        ({"gen_ai.provider.name": "openai"}, "unknown", MEMBER),
        ({"http.request.method": "GET", "session.id": "s"}, "unknown", PLAIN),
        # The instrumentation's own kind goes before the operation name.
        ({"langsmith.span.kind": "retriever", "gen_ai.operation.name": "embeddings"}, "retrieval", MEMBER),
        ({"traceloop.span.kind": "task", "gen_ai.operation.name": "vector_db_retrieve"}, "retrieval", MEMBER),
        ({"traceloop.span.kind": "task"}, "unknown", WRAPPER),
        ({"traceloop.span.kind": "workflow", "gen_ai.operation.name": "invoke_agent"}, "unknown", WRAPPER),
        ({"openinference.span.kind": "GUARDRAIL"}, "unknown", GUARDRAIL),
        ({"mlflow.spanType": '"TOOL"'}, "tool_call", MEMBER),
        ({"ai.operationId": "ai.generateText"}, "unknown", WRAPPER),
        ({"ai.operationId": "ai.generateText.doGenerate", "ai.response.toolCalls": '[{"toolName":"t"}]'}, "planner", MEMBER),
        ({"ai.operationId": "ai.generateText.doGenerate", "ai.response.toolCalls": "[]"}, "completion", MEMBER),
        ({"llm.request.type": "chat", "gen_ai.completion.0.tool_calls.0.name": "t"}, "planner", MEMBER),
        # Our own attribute goes before all.
        ({"agent_monitor.role": "retrieval", "openinference.span.kind": "LLM"}, "retrieval", MEMBER),
        # A score makes a wrapper count.
        ({"openinference.span.kind": "CHAIN", "eval.pii.score": 0.9}, "unknown", MEMBER),
    ],
)  # fmt: skip
def test_role_and_kind(attributes: dict[str, Any], role: str, kind: int) -> None:
    got = one(name="x", attributes=attributes)
    assert (got.role, got.kind) == (role, kind)
    again = take(
        message(span(name="x", attributes=attributes)),
        message(span(name="x", attributes=attributes)),
    )
    assert {(s.role, s.kind) for s in spans_of(again)} == {(role, kind)}


def test_embedding_model_is_no_model_version() -> None:
    assert (
        one(
            attributes={"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "e"}
        ).model_version
        == "unknown"
    )


def test_requested_model_alone_is_marked_as_an_alias() -> None:
    alias = one(attributes={"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-latest"})
    assert alias.model_version == "m-latest"
    assert alias.detail is not None
    assert alias.detail.flags & ALIAS_MODEL
    both = one(attributes={"gen_ai.request.model": "m-latest", "gen_ai.response.model": "m-1"})
    assert (both.model_version, both.detail) == ("m-1", both.detail)
    assert both.detail is None or not both.detail.flags & ALIAS_MODEL


def test_ids_differ_where_all_else_repeats() -> None:
    batch = take(
        message(
            *(
                span(
                    span_id=f"{i + 1:016x}",
                    attributes={"gen_ai.tool.name": "send_email", "gen_ai.tool.call.id": f"c{i}"},
                )
                for i in range(3)
            )
        )
    )
    assert [s.detail.tool_call_id for s in spans_of(batch) if s.detail] == ["c0", "c1", "c2"]


def test_keep_by_resource_and_span_attribute() -> None:
    config = IntakeConfig(
        token_key=CONFIG.token_key,
        keep={"service.name": frozenset({"bot"}), "env": frozenset({"prod"})},
    )
    batch = take(
        message(span(attributes={"env": "prod"}), span(attributes={"env": ["prod"]}), span()),
        message(span(attributes={"env": "prod"}), service="else"),
        config=config,
    )
    assert len(spans_of(batch)) == 1
    assert batch.counts["ignored", "keep"] == 3


# --- laws -----------------------------------------------------------------------------------------------

REAL = next(messages("otel_semconv_latest.otlp_proto"))["value"]


def accounted(batch: Batch) -> None:
    assert {d.reason for d in batch.dead_letters} <= REASONS.keys()
    for _ in batch.encoded_fragments():
        pass


@given(st.binary(max_size=300))
def test_any_bytes_are_taken_or_refused(value: bytes) -> None:
    batch = take(value)
    accounted(batch)
    assert batch.spans or batch.dead_letters or batch.orphans or batch.counts


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(REAL) - 1), st.integers(0, 255)), min_size=1, max_size=8)
)
def test_a_real_message_with_bytes_changed_never_raises(changes: list[tuple[int, int]]) -> None:
    value = bytearray(REAL)
    for at, byte in changes:
        value[at] = byte
    accounted(take(bytes(value)))


@settings(deadline=None)
@given(st.integers(0, len(REAL) - 1))
def test_a_real_message_cut_never_raises(end: int) -> None:
    accounted(take(REAL[:end]))


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_canonical_loses_nothing(key: bytes, value: bytes) -> None:
    flipped = b"\x12" + varint(len(value)) + value + b"\x0a" + varint(len(key)) + key
    straight = b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(value)) + value
    assert wire.canonical(flipped) == wire.canonical(straight) == straight


@given(st.binary(max_size=40))
def test_canonical_of_any_bytes_has_the_same_bytes(packed: bytes) -> None:
    assert sorted(wire.canonical(packed)) == sorted(packed)
