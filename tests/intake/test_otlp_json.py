"""OTLP JSON: spellings of ids, numbers and what is absent; bad strings; what a dead letter keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monitor.intake import Batch, IntakeConfig
from monitor.model import Link, Score, Span

from .common import CONFIG, OTHER, SPAN, TRACE, decode, only, spans_of

GOOD: dict[str, Any] = {"traceId": TRACE, "spanId": OTHER}


def span(**fields: Any) -> dict[str, Any]:
    """A span's object; `...` removes a field."""
    raw = {"traceId": TRACE, "spanId": SPAN, **fields}
    return {key: value for key, value in raw.items() if value is not ...}


def text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def message(*spans: Any, **fields: Any) -> bytes:
    resource = {"attributes": [text("service.name", "bot")]}
    scoped = {"scope": {"name": "s"}, "spans": spans}
    return json.dumps(
        {"resourceSpans": [{"resource": resource, "scopeSpans": [scoped], **fields}]}
    ).encode()


def take(*values: bytes | None, config: IntakeConfig = CONFIG) -> Batch:
    return decode(*values, encoding="otlp_json/traces", config=config)


def one(**fields: Any) -> Span:
    return only(take(message(span(**fields))))


def test_every_field_arrives() -> None:
    got = one(
        parentSpanId=OTHER,
        name="execute_tool send_email",
        startTimeUnixNano="5",
        endTimeUnixNano=2**64 - 1,
        attributes=[
            text("gen_ai.operation.name", "execute_tool"),
            text("gen_ai.evaluation.name", "pii"),
            {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 1}},
        ],
        links=[{"traceId": TRACE.upper(), "spanId": OTHER}],
        flags=257,
        someFutureField={"a": [1]},
    )
    assert (got.span_id, got.parent_span_id, got.service, got.role) == (
        SPAN,
        OTHER,
        "bot",
        "tool_call",
    )
    assert (got.start_unix_nano, got.end_unix_nano) == (5, 2**64 - 1)
    assert got.scores == (Score("pii", "unknown", 1.0),)
    assert got.detail is not None
    assert (got.detail.tool_name, got.detail.links) == ("send_email", (Link(TRACE, OTHER),))


@pytest.mark.parametrize("parent", [..., None, "", "0" * 16])
def test_root(parent: Any) -> None:
    assert one(parentSpanId=parent).parent_span_id is None


def test_ids_in_any_case_are_one_id() -> None:
    batch = take(message(span(), span(traceId=TRACE.upper(), spanId=SPAN.upper())))
    assert [s.span_id for s in batch.spans[TRACE]] == [SPAN, SPAN]
    assert len({s.content_hash for s in batch.spans[TRACE]}) == 1


def test_what_is_null_or_absent_is_one() -> None:
    null = dict.fromkeys(
        ("name", "kind", "startTimeUnixNano", "attributes", "events", "links", "status")
    )
    assert one(**null).content_hash == one().content_hash == one(status={}).content_hash
    assert (
        one(events=[{}]).content_hash
        == one(events=[{"name": None, "attributes": [], "timeUnixNano": "0"}]).content_hash
    )


@pytest.mark.parametrize(
    ("one_way", "other_way"),
    [
        ({"kind": 3}, {"kind": "SPAN_KIND_CLIENT"}),
        ({"status": {"code": 2}}, {"status": {"code": "STATUS_CODE_ERROR"}}),
        ({"startTimeUnixNano": 7}, {"startTimeUnixNano": "7"}),
    ],
)
def test_names_and_text_for_numbers(one_way: dict[str, Any], other_way: dict[str, Any]) -> None:
    assert one(**one_way).content_hash == one(**other_way).content_hash != one().content_hash


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "SPAN_KIND_ODD"},
        {"kind": 2**31},
        {"status": {"code": 2**31}},
        {"status": []},
        {"startTimeUnixNano": -1},
        {"endTimeUnixNano": str(2**64)},
        {"endTimeUnixNano": "9" * 5_000},
        {"startTimeUnixNano": 1.5},
        {"events": [{"timeUnixNano": -1}]},
        {"events": 5},
        {"links": ["x"]},
        {"attributes": {"a": 1}},
        {"attributes": ["a"]},
        {"attributes": [{"key": 5}]},
        {"attributes": [{"key": "k", "value": 5}]},
        {"attributes": [{"key": "k", "value": {"boolValue": "maybe"}}]},
        {"attributes": [{"key": "k", "value": {"arrayValue": 5}}]},
        {"attributes": [{"key": "k", "value": {"arrayValue": {"values": 5}}}]},
        {"attributes": [{"key": "k", "value": {"kvlistValue": {"values": [5]}}}]},
        {"attributes": [{"key": "k", "value": {"kvlistValue": {"values": [{"key": 1}]}}}]},
        {"name": 5},
    ],
)  # fmt: skip
def test_a_field_of_another_type_costs_its_span_alone(fields: dict[str, Any]) -> None:
    batch = take(message(GOOD, span(**fields)))
    assert [s.span_id for s in spans_of(batch)] == [OTHER]
    assert [(d.reason, d.source.index) for d in batch.dead_letters] == [("wrong_type", 1)]
    again = take(batch.dead_letters[0].value)
    assert [d.reason for d in again.dead_letters] == ["wrong_type"]


@pytest.mark.parametrize("where", ["name", "key", "value", "event", "status"])
def test_bad_utf8_costs_its_span_alone(where: str) -> None:
    fields: dict[str, Any] = {
        "name": {"name": "MARK"},
        "key": {"attributes": [text("MARK", "v")]},
        "value": {"attributes": [text("k", "MARK")]},
        "event": {"events": [{"name": "MARK"}]},
        "status": {"status": {"message": "MARK"}},
    }[where]
    value = message(GOOD, span(**fields)).replace(b"MARK", b"M\xffRK")
    batch = take(value)
    assert [s.span_id for s in spans_of(batch)] == [OTHER]
    [letter] = batch.dead_letters
    assert letter.reason == "not_utf8"
    assert letter.value is not None
    assert b"M\xffRK" in letter.value
    assert [d.reason for d in take(letter.value).dead_letters] == ["not_utf8"]


def test_an_infinite_number_in_json_is_a_refused_score() -> None:
    attributes = [{"key": "agent_monitor.score.pii", "value": {"doubleValue": 0.5}}]
    for number in (b"NaN", b"-Infinity", b"1e999"):
        batch = take(message(span(attributes=attributes)).replace(b"0.5", number))
        assert [s.span_id for s in spans_of(batch)] == [SPAN]
        assert [(d.reason, d.scorer) for d in batch.dead_letters] == [("score_not_finite", "pii")]


def test_a_number_of_thousands_of_digits_costs_its_span_alone() -> None:
    long = span(attributes=[{"key": "k", "value": {"intValue": 77}}])
    value = message(GOOD, long, span(attributes=[{"key": "k", "value": {"doubleValue": 0.5}}]))
    value = value.replace(b"77", b"7" * 5_000).replace(b"0.5", b"NaN")
    batch = take(value)
    assert [s.span_id for s in spans_of(batch)] == [OTHER, SPAN]
    assert [d.reason for d in batch.dead_letters] == ["wrong_type"]


def test_a_dead_letter_keeps_fields_that_nobody_reads() -> None:
    batch = take(message(GOOD, span(spanId="", traceState="ab=1")))
    [letter] = batch.dead_letters
    assert (letter.reason, letter.source.index) == ("missing_id", 1)
    assert letter.value is not None
    assert b'"traceState": "ab=1"' in letter.value
    assert [f.service for f in batch.faults[TRACE]] == ["bot"]


def test_order_of_fields_and_white_space_do_not_matter() -> None:
    fields = {"attributes": [text("a", "x"), text("b", "é")], "name": "n", "kind": 1}
    loaded = json.loads(message(span(**fields)))

    def backwards(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: backwards(part[key]) for key in reversed(part)}
        return [backwards(each) for each in part] if isinstance(part, list) else part

    again = only(take(json.dumps(backwards(loaded), indent=2).encode()))
    assert again.content_hash == one(**fields).content_hash


def test_empty_envelopes_are_ignored() -> None:
    empty = [
        b"{}",
        b'{"resourceSpans":null}',
        b'{"resourceSpans":[]}',
        b'{"resourceSpans":[{}]}',
        b'{"resourceSpans":[{"scopeSpans":[{}]}]}',
        message(),
    ]
    batch = take(None, b"", *empty)
    assert not batch.spans
    assert not batch.dead_letters
    assert batch.counts["ignored", "tombstone"] == 1
    assert batch.counts["ignored", "empty"] == 1 + len(empty)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"[]", "wrong_type"),
        (b'{"resourceSpans":5}', "wrong_type"),
        (b'{"resourceSpans":[5]}', "wrong_type"),
        (b'{"resourceSpans":[{"scopeSpans":{"spans":[]}}]}', "wrong_type"),
        (b'{"resourceSpans":[{"scopeSpans":[5]}]}', "wrong_type"),
        (b'{"resourceSpans":[]} {}', "not_json"),
        pytest.param(b'{"a":' + b"9" * 5_000 + b"NaN}", "not_json", id="digits"),
        (b"\xef\xbb\xbf{}", "not_json"),
    ],
)  # fmt: skip
def test_what_is_no_envelope_is_refused_whole(value: bytes, reason: str) -> None:
    batch = take(value, message(GOOD))
    assert [(d.reason, d.value) for d in batch.dead_letters] == [(reason, value)]
    assert [s.span_id for s in spans_of(batch)] == [OTHER]


def test_an_item_that_is_no_object_costs_itself_alone() -> None:
    batch = take(message(GOOD, 5, None))
    assert [s.span_id for s in spans_of(batch)] == [OTHER]
    assert [d.reason for d in batch.dead_letters] == ["wrong_type", "wrong_type"]


def test_keep_by_resource_and_span_attribute() -> None:
    keep = {"service.name": frozenset({"bot"}), "env": frozenset({"prod"})}
    config = IntakeConfig(token_key=CONFIG.token_key, keep=keep)
    batch = take(message(span(attributes=[text("env", "prod")]), span()), config=config)
    assert len(spans_of(batch)) == 1
    assert batch.counts["ignored", "keep"] == 1
