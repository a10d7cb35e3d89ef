"""A short run of `tests.intake.fuzz`, and hypothesis over raw bytes."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.intake import ENCODINGS, Encoding, Intake

from .fuzz import FUZZED, check, fields_of, joined, run

INTAKE = Intake(FUZZED)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_spoiled_messages(encoding: Encoding) -> None:
    number, total = run(encoding, 1, lambda number: number >= 400)
    assert number == 400
    assert sum(n for (what, _), n in total.items() if what == "rejected") > 20
    assert sum(n for (what, _), n in total.items() if what in ("spans", "detached_scores")) > 50


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes(encoding: Encoding, value: bytes) -> None:
    check(encoding, value, INTAKE)


@pytest.mark.parametrize("encoding", [e for e in ENCODINGS if "json" in e])
@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "resourceSpans",
                        "scopeSpans",
                        "spans",
                        "resourceLogs",
                        "scopeLogs",
                        "logRecords",
                        "traceId",
                        "spanId",
                        "attributes",
                        "key",
                        "value",
                        "stringValue",
                        "intValue",
                        "arrayValue",
                        "values",
                        "events",
                        "links",
                        "name",
                        "status",
                        "kind",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_any_json(encoding: Encoding, loaded: object) -> None:
    check(encoding, json.dumps(loaded).encode(), INTAKE)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_memory_does_not_grow(encoding: Encoding) -> None:
    """Over the second half of a run, the caches being full after the first."""
    held = []

    def is_over(number: int) -> bool:
        if number in (600, 900):
            held.append(tracemalloc.get_traced_memory()[0])
        return number >= 900

    tracemalloc.start()
    try:
        run(encoding, 2, is_over)
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 1_500_000


@given(st.lists(st.tuples(st.sampled_from([10, 18, 26]), st.binary(max_size=9)), max_size=5))
def test_the_fuzzer_s_own_protobuf(fields: list[tuple[int, bytes]]) -> None:
    assert fields_of(joined(fields)) == fields
