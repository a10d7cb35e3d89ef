"""The tables of docs/reference/otlp-faults.md, asserted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from monitor.intake import Batch, Bounds, Encoding, Intake, IntakeConfig, wire
from monitor.intake.otlp_proto import sliced

from .common import CONFIG, OTHER, SPAN, TRACE, Record, decode, messages, spans_of
from .otlp import as_dict, as_json
from .test_otlp_proto import message, span

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/reference/otlp-faults.md"
VARIANTS: Final = ("otlp_proto", "otlp_proto.byid", "otlp_json", "otlp_json.byid")
Fate = tuple[int, Counter[str]]


def table(heading: str) -> Iterator[list[str]]:
    """Rows of a table of the page, cells without their quotes."""
    section = PAGE.read_text("utf-8").split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def reasons_in(cell: str) -> list[str]:
    return [reason.strip("` ") for reason in cell.split(",") if reason.strip()]


def fates(heading: str) -> dict[str, Fate]:
    return {
        case.strip("`"): (int(spans), Counter(reasons_in(letters)))
        for case, _, spans, letters, _ in table(heading)
    }


def cases_of(encoding: str, value: bytes) -> list[str]:
    """The case that each span of a captured message names, read by other means than intake's."""
    if encoding == "otlp_proto":
        spans = [list(wire.Span.FromString(item).attributes) for _, _, item in sliced(value)]
        pairs = [[wire.KeyValue.FromString(each) for each in packed] for packed in spans]
        return [
            next((p.value[2:].decode() for p in of_span if p.key == b"case"), "?")
            for of_span in pairs
        ]
    loaded = json.loads(value.decode("utf-8", "surrogateescape"))
    return [
        next((a["value"]["stringValue"] for a in each["attributes"] if a.get("key") == "case"), "?")
        for resource in loaded["resourceSpans"]
        for scope in resource["scopeSpans"]
        for each in scope["spans"]
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_fault_that_a_collector_lets_through_has_its_fate(variant: str) -> None:
    encoding = variant.partition(".")[0]
    batch, where = Batch(), {}
    intake = Intake(CONFIG)
    for each in messages(f"faults.{variant}"):
        record = Record(each["value"], each["offset"], each["timestamp"])
        name: Encoding = "otlp_proto/traces" if encoding == "otlp_proto" else "otlp_json/traces"
        intake.decode(name, each["topic"], each["partition"], [record], batch)
        for index, case in enumerate(cases_of(encoding, each["value"])):
            where[each["partition"], each["offset"], index] = case
    spans = Counter(
        where[s.source.partition, s.source.offset, s.source.index] for s in spans_of(batch)
    )
    letters: dict[str, Counter[str]] = {}
    for letter in batch.dead_letters:
        at = letter.source
        letters.setdefault(where[at.partition, at.offset, at.index], Counter())[letter.reason] += 1
    expected = fates("Through a Collector")
    if not variant.endswith(".byid"):
        del expected["attr_2MB_among_good"]
    assert set(where.values()) == set(expected)
    assert {case: (spans[case], letters.get(case, Counter())) for case in expected} == expected


# --- straight to Kafka: each builder gives the message in protobuf and in JSON, None where it cannot be ----------

Pair = tuple[bytes | None, bytes | None]
GOOD: Final = span(span_id=OTHER)


def edited(edit: Callable[[dict[str, Any]], None], **fields: Any) -> bytes:
    """JSON of a good span and one that ``edit`` spoils."""
    loaded = as_dict(message(GOOD, span(**fields)))
    edit(loaded["resourceSpans"][0]["scopeSpans"][0]["spans"][1])
    return json.dumps(loaded).encode()


def with_value(value: dict[str, Any]) -> bytes:
    return edited(lambda raw: raw.update(attributes=[{"key": "a", "value": value}]))


def base64_ids() -> Pair:
    return None, edited(lambda raw: raw.update(traceId="CvdlGRbNQ92ESOshHIAxnA=="))


def short_id() -> Pair:
    both = message(GOOD, span(span_id="ab" * 7))
    return both, as_json(both)


def number_id() -> Pair:
    return None, edited(lambda raw: raw.update(spanId=int(SPAN, 16)))


def bare_nan() -> Pair:
    return None, with_value({"doubleValue": 0.5}).replace(b"0.5", b"NaN")


def int_of_65_bits() -> Pair:
    return None, with_value({"intValue": str(2**63)})


def bad_base64() -> Pair:
    return None, with_value({"bytesValue": "?"})


def too_deep() -> Pair:
    value: Any = "x"
    for _ in range(45):
        value = [value]
    both = message(GOOD, span(attributes={"a": value}))
    return both, as_json(both)


def too_many_attributes() -> Pair:
    both = message(GOOD, span(attributes={f"a{i}": i for i in range(1_025)}))
    return both, as_json(both)


def number_for_text() -> Pair:
    return None, with_value({"stringValue": 5})


def broken_span() -> Pair:
    scope = wire.SlicedScope(items=[GOOD.SerializeToString(), b"\x0a\x10only a few"])
    resource = wire.SlicedResource(scopes=[scope.SerializeToString()])
    return wire.SlicedMessage(resources=[resource.SerializeToString()]).SerializeToString(), None


def half_surrogate() -> Pair:
    return None, edited(lambda raw: raw.update(name="\ud800"))


@pytest.mark.parametrize("case", fates("Straight to Kafka"))
def test_every_fault_that_a_collector_stops_has_its_fate(case: str) -> None:
    spans, letters = fates("Straight to Kafka")[case]
    proto, as_text = globals()[case]()
    for value, encoding in ((proto, "otlp_proto/traces"), (as_text, "otlp_json/traces")):
        if value is None:
            continue
        batch = decode(value, encoding=encoding)
        assert len(spans_of(batch)) == 1 + spans
        assert OTHER in {each.span_id for each in batch.spans[TRACE]}
        assert Counter(letter.reason for letter in batch.dead_letters) == letters
        for letter in batch.dead_letters:  # what is kept comes to the same end
            assert letter.source.index == 1
            again = decode(letter.value, encoding=encoding)
            assert Counter(each.reason for each in again.dead_letters) == letters
            assert not again.spans


SMALL: Final = IntakeConfig(
    token_key=CONFIG.token_key, bounds=Bounds(message_bytes=4_000, spans_per_message=5)
)


def test_faults_of_whole_messages() -> None:
    rows = {
        case.strip("`"): reasons_in(cell.rstrip(" |")) for case, _, cell in table("Whole messages")
    }
    good = message(GOOD)
    large = message(span(attributes={"a": "x" * 5_000}))
    many = message(*[span() for _ in range(6)])
    deep = b'{"resourceSpans":' + b"[" * 1_500 + b"]" * 1_500 + b"}"
    values: dict[str, Pair] = {
        "too_large": (large, as_json(large)),
        "too_many_spans": (many, as_json(many)),
        "cut": (good[:-9], as_json(good)[:-9]),
        "garbage": (b"\xff\xff\xff\xff", b"garbage"),
        "other_encoding": (as_json(good), good),
        "nested_message": (None, deep),
    }
    assert values.keys() == rows.keys()
    for case, pair in values.items():
        of_encoding = rows[case] * 2 if len(rows[case]) == 1 else rows[case]
        sides = zip(pair, ("otlp_proto/traces", "otlp_json/traces"), of_encoding, strict=True)
        for value, encoding, reason in sides:
            if value is None:
                continue
            after = good if encoding == "otlp_proto/traces" else as_json(good)
            batch = decode(value, after, encoding=encoding, config=SMALL)
            assert [(d.reason, d.value) for d in batch.dead_letters] == [(reason, value)], case
            assert [s.span_id for s in spans_of(batch)] == [OTHER]
