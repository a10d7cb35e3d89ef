"""Law: what is encoded decodes to itself; anything else is UndecodableRecord and nothing but."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.codec import (
    canonical_json,
    chunks,
    decode_fold_record,
    decode_output,
    encode_fold_record,
    encode_json,
)
from monitor.errors import UndecodableRecord
from monitor.model import (
    DeadLetter,
    FoldRecord,
    Fragment,
    GateRecord,
    Link,
    OrphanFault,
    ResetRecord,
    Score,
    SettingsRecord,
    Source,
    Span,
    SpanDetail,
    SpanFault,
    SpanScore,
    Tick,
)

# msgpack holds 64-bit integers (intake refuses larger ones); NaN is not equal to itself.
ints = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False)
text = st.text(max_size=20)
sources = st.builds(Source, text, ints, ints, ints, ints)
scores = st.builds(Score, text, text, floats)
details = st.builds(
    SpanDetail,
    tool_name=st.none() | text,
    tags=st.lists(text, max_size=3).map(tuple),
    links=st.lists(st.builds(Link, text, text), max_size=2).map(tuple),
    argument_tokens=st.none() | st.binary(max_size=24),
    flags=ints,
)
spans = st.builds(
    Span,
    text,
    scores=st.lists(scores, max_size=3).map(tuple),
    parent_span_id=st.none() | text,
    start_unix_nano=ints,
    content_hash=st.binary(max_size=16),
    source=sources,
    detail=st.none() | details,
)
faults = st.builds(SpanFault, text, scores=st.lists(scores, max_size=2).map(tuple), source=sources)
settings_records = st.builds(SettingsRecord, ints, st.tuples(ints, ints), text, st.binary())
fold_records: st.SearchStrategy[FoldRecord] = st.one_of(
    st.builds(
        Fragment,
        text,
        st.lists(spans, max_size=3).map(tuple),
        st.lists(st.builds(SpanScore, text, scores, source=sources), max_size=3).map(tuple),
        st.lists(faults, max_size=3).map(tuple),
    ),
    st.builds(OrphanFault, text, faults),
    st.just(Tick()),
    settings_records,
    st.builds(GateRecord, text, text, text, ints, ints),
    st.builds(ResetRecord, settings_records, ints),
)


@given(fold_records)
def test_fold_record_round_trip(record: FoldRecord) -> None:
    assert decode_fold_record(encode_fold_record(record)) == record


@given(st.binary(max_size=200))
def test_hostile_bytes_are_undecodable_or_a_record(payload: bytes) -> None:
    for decode in (decode_fold_record, decode_output):
        with contextlib.suppress(UndecodableRecord):
            decode(payload)


def test_deeply_nested_bytes_are_undecodable() -> None:
    with pytest.raises(UndecodableRecord):
        decode_fold_record(b"\x93\x01" + b"\x91" * 100_000)
    with pytest.raises(UndecodableRecord):
        decode_output(b'{"kind":"verdict","x":' + b"[" * 100_000)


def test_invalid_utf8_is_undecodable() -> None:
    payload = encode_fold_record(Fragment("abcd")).replace(b"abcd", b"\xff\xfe\xfd\xfc")
    with pytest.raises(UndecodableRecord, match="no fold record"):
        decode_fold_record(payload)


def test_dead_letter_keeps_its_bytes() -> None:
    letter = DeadLetter(
        reason="not_json", detail="value", source=Source("t", 1, 2, 3, 4), value=b"\x00\xff{"
    )
    assert decode_output(encode_json(letter)) == letter


def test_canonical_json_ignores_key_order() -> None:
    assert canonical_json({"b": 1, "a": {"d": 2, "c": 3}}) == b'{"a":{"c":3,"d":2},"b":1}'


@given(st.binary(max_size=100), st.integers(1, 40))
def test_chunks_join_to_the_payload(payload: bytes, limit: int) -> None:
    pieces = chunks(payload, limit)
    assert b"".join(pieces) == payload
    assert pieces
    assert all(len(piece) <= limit for piece in pieces)


def test_chunk_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        chunks(b"x", 0)
