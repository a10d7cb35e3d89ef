"""Fuzzing of every decoder: ``python -m tests.intake.fuzz --seconds 60``.

Real messages are spoiled in their bytes (flipped, cut, repeated, spliced) and in their structure (fields of protobuf,
objects of JSON: left out, doubled, swapped, replaced by something hostile), then decoded. After each one: nothing
was raised, it took time in proportion to its size, whatever was in it came out and was counted, fragments and dead
letters can be written, and what a dead letter keeps is refused again for the same reason. Memory must not grow once
the caches are full. A failure prints the seed that repeats it.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from monitor.intake import ENCODINGS, Batch, Bounds, Encoding, Intake, IntakeConfig
from monitor.intake.json_messages import LOGS, TRACES, Slicer
from monitor.intake.loose import Unusable
from monitor.intake.otlp_proto import sliced
from monitor.intake.reasons import REASONS

from .common import CONFIG, Record, messages, native
from .otlp import as_json, counted_out, is_of_a_score

# Small bounds, so that each is met often; the caches too, so that they are full soon.
FUZZED: Final = IntakeConfig(
    token_key=CONFIG.token_key,
    bounds=Bounds(
        message_bytes=60_000, nesting=8, spans_per_message=60, attributes=40, events=8, cache=500
    ),
)
SECONDS_A_MESSAGE: Final = 0.5  # some 60 kB at a hundred times the usual cost; more is a hang
GROWTH: Final = (
    32_000_000  # bytes: far over what the allocator's fragments come to, a leak passes it soon
)
_CAPTURES: Final = (
    "faults",
    "mixed_fleet",
    "otel_semconv_latest",
    "late_evaluator",
    "langfuse_sdk",
    "google_adk",
)
_HOSTILE: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 2**63, 2**64, 10**400, 1e308, float("nan"), "", "\0", "\ud800", "x" * 3_000, [], {}, [[[[[[[[[[]]]]]]]]]],
    [None], {"key": "k"}, "NaN", "Infinity", "0" * 32, "ff" * 16, "ff" * 8, "gen_ai.evaluation.result",
    {"stringValue": "x"}, {"arrayValue": {"values": [{}]}}, {"intValue": "9" * 30}, {"doubleValue": "NaN"},
    {"kvlistValue": {"values": [{"key": "k", "value": {}}]}}, {"bytesValue": "?"},
)  # fmt: skip


def corpus(encoding: Encoding) -> list[bytes]:
    """Real messages of an encoding, none larger than the bound."""
    if encoding == "json":
        return [
            native(),
            native(scores=[{"scorer": "pii", "value": 0.5}], attributes={"gen_ai.agent.name": "a"}),
            native(attributes={"input.value": '{"a": ["b@c.de"]}', "eval.tox.score": 1}, role=...),
        ]
    kind, _, signal = encoding.partition("/")
    names = _CAPTURES if signal == "traces" else ("pydantic_ai.logs",)
    values = [each["value"] for name in names for each in messages(f"{name}.otlp_proto")]
    values = [value for value in values if len(value) <= FUZZED.bounds.message_bytes]
    if kind == "otlp_json":
        parsed = []
        for value in values:
            try:
                parsed.append(as_json(value, logs=signal == "logs"))
            except Exception:  # noqa: BLE001 - the capture of faults has messages that protobuf refuses
                continue
        faults = (
            [each["value"] for each in messages("faults.otlp_json")] if signal == "traces" else []
        )
        values = [*parsed, *(value for value in faults if len(value) < 60_000)]
    return values


# --- spoiling ------------------------------------------------------------------------------------------------


def spoil(value: bytes, other: bytes, encoding: Encoding, rng: random.Random) -> bytes:
    """``value`` spoiled in one to four places; ``other`` is another message to take parts from."""
    structured = spoil_protobuf if encoding.startswith("otlp_proto") else spoil_json
    for _ in range(rng.randint(1, 4)):
        value = (structured if rng.random() < 0.7 else spoil_bytes)(value, other, rng)
    return value


def spoil_bytes(value: bytes, other: bytes, rng: random.Random) -> bytes:
    at, end = sorted((rng.randint(0, len(value)), rng.randint(0, len(value))))
    match rng.randrange(6):
        case 0:
            return value[:at] + bytes((rng.randrange(256),)) + value[at + 1 :]
        case 1:
            return value[:at]
        case 2:
            return value[:at] + value[end:]
        case 3:
            return value[:end] + value[at:end] + value[end:]
        case 4:
            return value[:at] + rng.randbytes(rng.randint(1, 20)) + value[at:]
        case _:
            return value[:at] + other[rng.randint(0, len(other)) :]


def spoil_json(value: bytes, other: bytes, rng: random.Random) -> bytes:
    try:
        loaded = json.loads(value)
        donor = json.loads(other)
    except (ValueError, RecursionError):
        return spoil_bytes(value, other, rng)
    holders: list[Any] = []
    stack = [loaded]
    while stack:
        item = stack.pop()
        if isinstance(item, dict | list) and item:
            holders.append(item)
            stack.extend(item.values() if isinstance(item, dict) else item)
    if not holders:
        return value
    holder = rng.choice(holders)
    key: Any = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    match rng.randrange(5):
        case 0:
            del holder[key]
        case 1:
            holder[key] = rng.choice(_HOSTILE)
        case 2 if isinstance(holder, list):
            holder += [holder[key]] * rng.choice((1, 2, 50))
        case 3:
            holder[key] = donor
        case _:
            part = holder[key]
            holder[key] = str(part) if isinstance(part, int | float) else [part]
    text = json.dumps(loaded, ensure_ascii=rng.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def spoil_protobuf(value: bytes, other: bytes, rng: random.Random) -> bytes:
    """One field somewhere in the nesting; what does not parse is spoiled in its bytes."""
    fields = fields_of(value)
    if not fields:
        return spoil_bytes(value, other, rng)
    at = rng.randrange(len(fields))
    tag, content = fields[at]
    if tag & 7 == 2 and content and rng.random() < 0.8:  # length-delimited: further in
        fields[at] = tag, spoil_protobuf(content, other, rng)
        return joined(fields)
    match rng.randrange(6):
        case 0:
            del fields[at]
        case 1:
            fields += [fields[at]] * rng.choice((1, 2, 50))
        case 2:
            rng.shuffle(fields)
        case 3:
            fields[at] = rng.randrange(1, 16) << 3 | tag & 7, content
        case 4:
            fields[at] = (
                rng.randrange(1, 16) << 3 | 2,
                rng.choice((b"", b"\xff", b"\0" * 16, other)),
            )
        case _:
            fields[at] = tag, content[::-1]
    return joined(fields)


def fields_of(value: bytes) -> list[tuple[int, bytes]] | None:
    """Tags and contents of a protobuf message; a length is no part of the content. None: it is none."""
    fields, at = [], 0
    while at < len(value):
        tag, at = varint_at(value, at)
        match tag & 7:
            case 0:
                _, end = varint_at(value, at)
            case 1:
                end = at + 8
            case 2:
                size, at = varint_at(value, at)
                end = at + size
            case 5:
                end = at + 4
            case _:
                return None
        if tag == 0 or end > len(value):
            return None
        fields.append((tag, value[at:end]))
        at = end
    return fields


def varint_at(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(value):
        number |= (value[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if value[at - 1] < 128:
            return number, at
    return 0, len(value) + 1


def joined(fields: list[tuple[int, bytes]]) -> bytes:
    return b"".join(
        varint(tag) + (varint(len(content)) if tag & 7 == 2 else b"") + content
        for tag, content in fields
    )


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


# --- judging -------------------------------------------------------------------------------------------------


def items_in(encoding: Encoding, value: bytes) -> int:
    """How many things a message must come out as: one, where it cannot be cut or is empty."""
    if encoding == "json" or not value or len(value) > FUZZED.bounds.message_bytes:
        return 1
    try:
        if encoding.startswith("otlp_proto"):
            count = len(list(sliced(value)))
        else:
            count = len(Slicer(TRACES if encoding.endswith("traces") else LOGS).slices(value))
    except Unusable:
        return 1
    return count if 0 < count <= FUZZED.bounds.spans_per_message else 1


def check(encoding: Encoding, value: bytes, intake: Intake) -> Batch:
    """Decodes a message and asserts all that must hold, whatever it is."""
    batch = Batch()
    begin = time.process_time()
    intake.decode(encoding, "t", 0, [Record(value)], batch)
    assert time.process_time() - begin < SECONDS_A_MESSAGE
    # A log record becomes a score of each target, refused scores, or is ignored: it is not counted by itself.
    if not encoding.endswith("logs"):
        assert counted_out(batch) == items_in(encoding, value)
    assert {letter.reason for letter in batch.dead_letters} <= REASONS.keys()
    counted: Counter[str] = Counter()
    for (what, _), number in batch.counts.items():
        counted[what] += number
    assert counted["spans"] == sum(map(len, batch.spans.values()))
    assert counted["rejected"] == len(batch.dead_letters)
    assert counted["detached_scores"] == sum(map(len, batch.scores.values()))
    assert counted["faults"] == len(batch.orphans) + sum(map(len, batch.faults.values()))
    for _ in batch.encoded_fragments():
        pass
    for letter in batch.dead_letters:
        msgspec.json.encode(letter)
        if letter.value is not None and not is_of_a_score(letter):
            again = Batch()
            intake.decode(encoding, "t", 0, [Record(letter.value)], again)
            assert letter.reason in {each.reason for each in again.dead_letters}, letter.reason
    return batch


def run(
    encoding: Encoding, seed: int, is_over: Callable[[int], bool]
) -> tuple[int, Counter[tuple[str, str]]]:
    """Spoils and checks until ``is_over`` (number of messages so far); gives that number and what came out."""
    values, intake = corpus(encoding), Intake(FUZZED)
    total: Counter[tuple[str, str]] = Counter()
    number = 0
    while not is_over(number):
        rng = random.Random(f"{seed}/{number}")
        value = spoil(rng.choice(values), rng.choice(values), encoding, rng)
        try:
            total.update(check(encoding, value, intake).counts)
        except BaseException:
            print(f"{encoding}: seed {seed}, message {number}: {value!r}"[:2_000])
            raise
        number += 1
    return number, total


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.intake.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="in all, shared by the encodings")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--encoding", choices=ENCODINGS, action="append")
    args = parser.parse_args()
    encodings = args.encoding or list(ENCODINGS)
    for encoding in encodings:
        run(encoding, args.seed, lambda number: number >= 2_000)  # the caches are full
        gc.collect()
        before, end = peak(), time.monotonic() + args.seconds / len(encodings)
        number, total = run(encoding, args.seed + 1, lambda _, end=end: time.monotonic() > end)
        growth = peak() - before
        out = ", ".join(f"{what} {label}: {n}" for (what, label), n in total.most_common(12))
        print(
            f"{encoding}, seed {args.seed}: {number} messages, peak memory +{growth >> 10} kB; {out}"
        )
        assert growth < GROWTH, f"memory grew by {growth} bytes"


if __name__ == "__main__":
    main()
