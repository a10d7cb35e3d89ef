"""The conventions table: well formed, documented by itself, extended by settings."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.intake import IntakeConfig
from monitor.intake.conventions import ROWS, SOURCES, Row
from monitor.intake.found import ITS_OWN, Lookup
from monitor.intake.native import NativeSpan

from .common import CONFIG, decode, native, only


def test_no_row_is_written_twice() -> None:
    rows = [(row.attribute, row.field, tuple(sorted(row.units))) for row in ROWS]
    assert len(set(rows)) == len(rows)
    assert {row.source for row in ROWS} <= SOURCES.keys()
    assert all(bool(row.units) == (row.field in ("unit", "sign")) for row in ROWS)


@pytest.mark.parametrize(
    ("attribute", "field", "label"),
    [
        ("eval.no.such.thing.score", "score", "no.such.thing"),
        ("agent_monitor.score.pii", "score", "pii"),
        ("safety.score", "score", "safety.score"),
        ("gen_ai.prompt.12.content", "input_part", "gen_ai.prompt.12.content"),
        ("gen_ai.prompt", "input", "gen_ai.prompt"),
    ],
)
def test_patterns(attribute: str, field: str, label: str) -> None:
    hit = Lookup(ROWS, 10).hit(attribute)
    assert hit is not None
    assert ([place.field for place in hit.places], hit.label, hit.way > 0) == ([field], label, True)


@pytest.mark.parametrize(
    "attribute", ["tool.parameters", "eval..score", "gen_ai.prompt.x.content", "", "GEN_AI.SYSTEM"]
)
def test_what_no_row_names_is_not_read(attribute: str) -> None:
    assert Lookup(ROWS, 10).hit(attribute) is None


@given(st.lists(st.text(max_size=400), max_size=30))
def test_a_small_cache_finds_the_same(names: list[str]) -> None:
    small, large = Lookup(ROWS, 1), Lookup(ROWS, 1000)
    for name in [*names, "gen_ai.tool.name", "eval.x.score"]:
        assert small.hit(name) == large.hit(name) == small.hit(name)
    assert len(small.known) <= len(large.known)


def test_an_operators_rows_come_first() -> None:
    rows = (
        Row("acme.kind", "unit", units={"step": "tool", "*": "planner"}),
        Row("acme.tool", "tool_name"),
        Row("acme.args", "arguments"),
    )
    config = IntakeConfig(token_key=CONFIG.token_key, conventions=rows)
    attributes = {
        "openinference.span.kind": "LLM",
        "acme.kind": "step",
        "acme.tool": "send_email",
        "tool.name": "other",
        "acme.args": "a@b.org",
    }
    span = only(decode(native(role=..., attributes=attributes), config=config))
    assert span.role == "tool_call"
    assert span.detail is not None
    assert (span.detail.tool_name, len(span.detail.argument_tokens or b"")) == ("send_email", 8)
    other = only(decode(native(role=..., attributes={"acme.kind": "x"}), config=config))
    assert other.role == "planner"


def test_content_is_never_remembered() -> None:
    for row in ROWS:
        if row.field in (
            "arguments",
            "result",
            "input",
            "output",
            "input_part",
            "result_part",
            "records",
        ):
            hit = Lookup(ROWS, 10).hit(row.attribute.replace("#", "0"))
            assert hit is not None
            assert hit.way == ITS_OWN


def test_token_key_has_a_length() -> None:
    for key in (b"short", b"k" * 65):
        with pytest.raises(ValueError, match="16 to 64"):
            IntakeConfig(token_key=key)


def test_schema_of_the_native_format_names_every_field() -> None:
    schema = msgspec.json.schema(NativeSpan)
    assert set(schema["$defs"]["NativeSpan"]["properties"]) == set(NativeSpan.__struct_fields__)


def test_hostile_strings_do_not_stay() -> None:
    from monitor.intake import Intake

    intake = Intake(CONFIG)
    big = "x1" * 100_000
    attributes = {
        big: 1,
        "gen_ai.tool.name": big,
        "gen_ai.agent.name": big,
        "gen_ai.tool.call.arguments": big,
    }
    decode(
        native(name=big, service=big, model_version=big, role=big, attributes=attributes),
        intake=intake,
    )
    interpreter = intake._decoders["json"]._interpreter
    for held in (
        interpreter.lookup.known,
        interpreter.labels,
        interpreter.names,
        interpreter._tags._cache,
    ):
        assert all(len(key) <= 256 for key in held)
    assert not interpreter.meanings
    assert all(len(value) <= 128 for value in interpreter._tokenizer._cache)
