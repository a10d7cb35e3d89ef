"""One span is one span: in protobuf or JSON, whole or by trace id, in any order and cut into any messages."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.intake import Batch, wire
from monitor.intake.anyvalue import hashed, of_key_value
from monitor.intake.attributes import ProtoAttributes
from monitor.intake.bounds import Bounds
from monitor.intake.conventions import ROWS
from monitor.intake.found import Lookup
from monitor.intake.json_values import JsonAttributes, value_of
from monitor.intake.loose import Unusable
from monitor.intake.otlp_proto import sliced

from .common import DATA, decode, messages, only
from .otlp import as_json
from .test_otlp_proto import any_value, message, pairs, span

CAPTURES = sorted(
    path.name.removesuffix(".otlp_proto.jsonl.gz")
    for path in (DATA / "otlp").glob("*.otlp_proto.jsonl.gz")
    if ".logs" not in path.name and not path.name.startswith("faults")
)
IN_JSON = sorted(
    path.name.removesuffix(".otlp_json.jsonl.gz")
    for path in (DATA / "otlp").glob("*.otlp_json.jsonl.gz")
    if ".logs" not in path.name and not path.name.startswith("faults")
)


@cache
def values_of(capture: str) -> tuple[bytes, ...]:
    return tuple(each["value"] for each in messages(capture))


def content(batch: Batch, *, with_ids: bool = True) -> tuple[Counter[Hashable], ...]:
    """All that a batch says, but for where it came from."""
    spans = Counter(
        (
            *((trace, s.span_id, s.parent_span_id, s.start_unix_nano, s.end_unix_nano, s.content_hash, s.detail)
              if with_ids else ()),
            s.role, s.scores, s.service, s.name, s.model_version, s.kind,
        )
        for trace, of_trace in batch.spans.items()
        for s in of_trace
    )  # fmt: skip
    scores = Counter(
        (*((trace, s.span_id) if with_ids else ()), s.score, s.service, s.role)
        for trace, of_trace in batch.scores.items()
        for s in of_trace
    )
    letters = Counter((d.reason, d.scorer) for d in batch.dead_letters)
    return spans, scores, letters


@pytest.mark.parametrize("capture", CAPTURES)
def test_json_is_protobuf(capture: str) -> None:
    values = values_of(f"{capture}.otlp_proto")
    proto = decode(*values, encoding="otlp_proto/traces")
    assert content(proto) == content(decode(*map(as_json, values), encoding="otlp_json/traces"))
    assert proto.spans


@pytest.mark.parametrize("capture", IN_JSON)
def test_what_the_collector_wrote_as_json_is_what_it_wrote_as_protobuf(capture: str) -> None:
    """The program ran once for each encoding: ids and times differ."""
    proto = decode(*values_of(f"{capture}.otlp_proto"), encoding="otlp_proto/traces")
    as_text = decode(*values_of(f"{capture}.otlp_json"), encoding="otlp_json/traces")
    assert content(proto, with_ids=False) == content(as_text, with_ids=False)


def pieces(value: bytes, rng: random.Random) -> list[bytes]:
    """A message cut anywhere between its spans, the pieces and the spans in them in any order."""
    items = list(sliced(value))
    rng.shuffle(items)
    cut: list[bytes] = []
    while items:
        request = ExportTraceServiceRequest()
        for _ in range(min(len(items), rng.randint(1, 9))):
            # Messages of protobuf are merged by joining their bytes.
            request.MergeFromString(wire.message_of(*items.pop()))
        cut.append(request.SerializeToString())
    return cut


@pytest.mark.parametrize("capture", CAPTURES)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_order_and_any_split_gives_the_same(capture: str, seed: int) -> None:
    rng = random.Random(seed)
    values = values_of(f"{capture}.otlp_proto")
    cut = [piece for value in values for piece in pieces(value, rng)]
    rng.shuffle(cut)
    whole = content(decode(*values, encoding="otlp_proto/traces"))
    assert content(decode(*cut, encoding="otlp_proto/traces")) == whole
    assert content(decode(*map(as_json, cut), encoding="otlp_json/traces")) == whole


# --- attributes ---------------------------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=200)
)
attribute_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)


def flipped(packed: bytes) -> bytes:
    """A KeyValue as the Collector writes it, value first."""
    pair = wire.KeyValue.FromString(packed)
    key, value = wire.KeyValue(key=pair.key), wire.KeyValue(value=pair.value)
    return value.SerializeToString() + key.SerializeToString()


LOOKUP = Lookup(ROWS, 100)


@settings(deadline=None)
@given(st.text(max_size=200) | st.just("gen_ai.agent.name"), attribute_values)
def test_an_attribute_is_spelled_in_one_way(key: str, value: Any) -> None:
    [pair] = pairs({key: value})
    packed = pair.SerializeToString()
    as_text = json.dumps(
        json.loads(as_json(message(span(attributes={key: value}))))["resourceSpans"][0][
            "scopeSpans"
        ][0]["spans"][0]["attributes"][0],
    ).encode()
    proto, in_json = ProtoAttributes(LOOKUP, Bounds()), JsonAttributes(LOOKUP, Bounds())
    expected = hashed(key, value)
    assert proto.read(packed)[0] == expected
    assert proto.read(flipped(packed))[0] == expected
    assert in_json.read(as_text)[0] == expected
    # And it is protobuf, of the same value.
    assert repr(of_key_value(expected)) == repr((key, value)).replace("-0.0", "0.0")


@settings(deadline=None)
@given(
    scalars,
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3),
    st.booleans(),
)
def test_the_short_way_reads_what_the_parser_reads(
    value: Any, changes: list[tuple[int, int]], is_flipped: bool
) -> None:
    """Of bytes spoiled anyhow: the same value, or the same refusal."""
    [pair] = pairs({"gen_ai.agent.name": value})
    packed = flipped(pair.SerializeToString()) if is_flipped else pair.SerializeToString()
    spoiled = bytearray(packed)
    for at, byte in changes:
        if at < len(spoiled):
            spoiled[at] = byte

    def parsed(packed: bytes) -> Any:
        key, got = of_key_value(packed)
        return LOOKUP.hit(key), got

    def read(packed: bytes) -> Any:
        _, hit, _, got = ProtoAttributes(LOOKUP, Bounds())[packed]
        return hit, got

    hit, expected = outcome(parsed, bytes(spoiled))
    assert outcome(read, bytes(spoiled)) == (hit, expected if hit is not None else repr(None))


def outcome(way: Callable[[bytes], Any], packed: bytes) -> tuple[Any, str]:
    """What is read, or the reason why not."""
    try:
        hit, got = way(packed)
    except Unusable as unusable:
        return "refused", unusable.reason
    return hit, repr(got)


@given(attribute_values)
def test_the_loose_reader_of_json_reads_what_the_strict_one_reads(value: Any) -> None:
    loaded = json.loads(as_json(message(span(attributes={"k": value}))))
    attribute = loaded["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"][0]
    strict = JsonAttributes(LOOKUP, Bounds()).key_value(json.dumps(attribute).encode())[1]
    assert repr(value_of(attribute.get("value"))) == repr(strict)


@pytest.mark.parametrize(
    ("proto", "as_text"),
    [
        (5, {"intValue": 5}),
        (5, {"intValue": "5"}),
        (5, {"intValue": 5.0}),
        (-(2**63), {"intValue": str(-(2**63))}),
        (1.0, {"doubleValue": 1}),
        (0.5, {"doubleValue": "0.5"}),
        (-0.0, {"doubleValue": 0}),
        (float("nan"), {"doubleValue": "NaN"}),
        (float("inf"), {"doubleValue": "Infinity"}),
        (float("-inf"), {"doubleValue": "-Infinity"}),
        (True, {"boolValue": True}),
        ("", {"stringValue": ""}),
        (b"\xff\xfe\xfd", {"bytesValue": "//79"}),
        (b"\xff\xfe\xfd\xfc", {"bytesValue": "__79_A"}),
        ([], {"arrayValue": {}}),
        ({}, {"kvlistValue": {"values": []}}),
        (None, {}),
        (None, None),
        (None, {"stringValue": None}),
    ],
)
def test_every_spelling_of_a_value(proto: Any, as_text: Any) -> None:
    loaded = json.loads(as_json(message(span(attributes={"k": 1}))))
    loaded["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"][0]["value"] = as_text
    one = only(decode(json.dumps(loaded).encode(), encoding="otlp_json/traces"))
    other = only(decode(message(span(attributes={"k": proto})), encoding="otlp_proto/traces"))
    assert one.content_hash == other.content_hash
    assert any_value(proto) is not None
