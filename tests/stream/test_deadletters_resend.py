"""What goes back for a dead letter is read by its topic's own decoder, as what was refused and nothing else."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.intake import Batch, Bounds, Encoding
from monitor.intake.reasons import REASONS
from monitor.intake.scores import ScorerScale
from monitor.model import DeadLetter, Score, Source, SpanScore
from monitor.stream.resend import SCORE_REASONS, STAYS, Resender, Send, Stays
from monitor.telemetry.known import AGENT_REASONS, FRAGMENT_REASONS, INPUT_REASONS
from monitor.trace.records import scores_no_member, span_not_in_memory
from tests.intake.common import CONFIG, OTHER, SPAN, TRACE, Record, decode, native

TOPIC = "agent-spans"
ENCODINGS = get_args(Encoding)
TABLE = msgspec.structs.replace(
    CONFIG, scorers={"judge": ScorerScale(booleans=True, labels={"bad": 0.9}, one_means="safe")}
)
SERVICE = {"key": "service.name", "value": {"stringValue": "shop"}}


def otlp(signal: str, *items: dict[str, Any]) -> bytes:
    inner, outer, name = (
        ("scopeSpans", "resourceSpans", "spans")
        if signal == "traces"
        else ("scopeLogs", "resourceLogs", "logRecords")
    )
    scope = {name: list(items)}
    resource = {"attributes": [SERVICE]}
    return json.dumps({outer: [{"resource": resource, inner: [scope]}]}).encode()


def attribute(key: str, **value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


def message(encoding: Encoding, score: dict[str, Any], span_id: str = SPAN) -> bytes:
    """A message with a score of the span; of OTLP it is the second item. ``score``: an OTLP value."""
    said = [
        attribute("gen_ai.evaluation.name", stringValue="judge"),
        attribute("gen_ai.evaluation.score." + ("label" if "stringValue" in score else "value"), **score),
    ]  # fmt: skip
    if encoding == "json":
        return native(
            span_id=span_id,
            service="shop",
            attributes={each["key"]: next(iter(each["value"].values())) for each in said},
        )
    if encoding.endswith("logs"):
        item = {"traceId": TRACE, "spanId": span_id, "eventName": "gen_ai.evaluation.result"}
        value = otlp("logs", item | {"spanId": OTHER}, item | {"attributes": said})
    else:
        item = {"traceId": TRACE, "spanId": span_id, "name": "chat"}
        role = [attribute("agent_monitor.role", stringValue="tool_call")]
        value = otlp("traces", item | {"spanId": OTHER}, item | {"attributes": role + said})
    return as_proto(encoding, value) if encoding.startswith("otlp_proto") else value


def as_proto(encoding: Encoding, value: bytes) -> bytes:
    from google.protobuf import json_format
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    kind = ExportLogsServiceRequest if encoding.endswith("logs") else ExportTraceServiceRequest
    parsed = json_format.ParseDict(_with_base64_ids(json.loads(value)), kind())
    return bytes(parsed.SerializeToString())


def _with_base64_ids(value: Any) -> Any:
    """Protobuf's JSON has bytes in base64, OTLP's ids are hex."""
    import base64

    if isinstance(value, list):
        return [_with_base64_ids(each) for each in value]
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(each)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else _with_base64_ids(each)
            for key, each in value.items()
        }
    return value


def resender(encoding: Encoding, config: Any = TABLE) -> Resender:
    return Resender(config, {TOPIC: encoding})


def only_letter(batch: Batch) -> DeadLetter:
    [letter] = batch.dead_letters
    return letter


def scores_in(fate: Any, encoding: Encoding, config: Any = TABLE) -> list[tuple[str, SpanScore]]:
    """What intake reads of that which is sent: scores alone, no member."""
    assert isinstance(fate, Send), fate
    batch = decode(*fate.values, encoding=encoding, config=config)
    assert not batch.dead_letters
    assert all(
        span.kind != 0 and not span.scores for spans in batch.spans.values() for span in spans
    )
    assert not batch.spans or not encoding.endswith("logs")
    return [(trace_id, each) for trace_id, all_ in batch.scores.items() for each in all_]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("raw", "reason", "safety"),
    [
        ({"boolValue": False}, "score_boolean", 1.0),
        ({"stringValue": "bad"}, "score_label_only", 0.9),
    ],
)
def test_a_refused_score_goes_back_alone_to_its_span(
    encoding: Encoding, raw: dict[str, Any], reason: str, safety: float
) -> None:
    value = message(encoding, raw)
    letter = only_letter(decode(value, encoding=encoding))
    assert letter.reason == reason
    [(trace_id, each)] = scores_in(resender(encoding).fate(letter, Record(value)), encoding)
    assert (trace_id, each.span_id) == (TRACE, SPAN)
    assert (each.score.scorer, each.score.value, each.service) == ("judge", safety, "shop")
    assert each.role == ("unknown" if encoding.endswith("logs") else "tool_call")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_would_be_refused_again_stays(encoding: Encoding) -> None:
    value = message(encoding, {"boolValue": True})
    letter = only_letter(decode(value, encoding=encoding))
    fate = resender(encoding, CONFIG).fate(letter, Record(value))
    assert fate == Stays("refused_again", "score_boolean")


def test_without_its_input_record_no_span_is_guessed() -> None:
    value = message("json", {"boolValue": True})
    letter = only_letter(decode(value))
    assert resender("json").needs_input(letter)
    assert resender("json").fate(letter, None) == Stays("input_gone")
    other = native(span_id=SPAN)  # the place holds another record
    assert resender("json").fate(letter, Record(other)) == Stays("no_longer_there")


def test_a_score_of_an_evaluation_goes_to_each_span_that_it_judged_and_not_to_the_evaluation() -> (
    None
):
    links = [{"traceId": TRACE, "spanId": one} for one in (OTHER, "00000000000000aa")]
    said = [
        attribute("agent_monitor.role", stringValue="evaluator"),
        attribute("gen_ai.evaluation.name", stringValue="judge"),
        attribute("gen_ai.evaluation.score.value", boolValue=True),
    ]
    item = {
        "traceId": "ab" * 16,
        "spanId": SPAN,
        "name": "eval",
        "links": links,
        "attributes": said,
    }
    value = otlp("traces", item)
    letter = only_letter(decode(value, encoding="otlp_json/traces"))
    assert letter.span_id == SPAN
    fate = resender("otlp_json/traces").fate(letter, Record(value))
    found = scores_in(fate, "otlp_json/traces")
    assert {(trace_id, each.span_id) for trace_id, each in found} == {
        (TRACE, OTHER),
        (TRACE, "00000000000000aa"),
    }
    assert len(found) == 2


def test_two_scores_of_a_scorer_make_two_evaluator_spans_and_the_same_letter_the_same_one() -> None:
    value = native(scores=[{"scorer": "judge", "value": True}, {"scorer": "judge", "value": False}])
    letters = decode(value).dead_letters
    fates = [resender("json").fate(letter, Record(value)) for letter in letters]
    assert fates == [resender("json").fate(letter, Record(value)) for letter in letters]
    sent = decode(
        *(v for fate in fates if isinstance(fate, Send) for v in fate.values), config=TABLE
    )
    assert len({span.span_id for spans in sent.spans.values() for span in spans}) == 2


def test_a_message_of_many_refused_scores_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a message costs time in the square of its spans."""
    said = [
        attribute("gen_ai.evaluation.name", stringValue="judge"),
        attribute("gen_ai.evaluation.score.value", boolValue=True),
    ]
    items = [
        {"traceId": TRACE, "spanId": f"{n + 1:016x}", "name": "chat", "attributes": said}
        for n in range(50)
    ]
    value = otlp("traces", *items)
    letters = decode(value, encoding="otlp_json/traces").dead_letters
    sizes = []
    desk = resender("otlp_json/traces")
    plain = desk._intake.decode

    def counted(encoding: Any, topic: str, partition: int, records: Any, into: Batch) -> None:
        sizes.append(len(records[0].value))
        plain(encoding, topic, partition, records, into)

    monkeypatch.setattr(desk._intake, "decode", counted)
    assert desk.needs_input(letters[0])
    assert isinstance(desk.fate(letters[0], Record(value)), Send)
    targets = []
    for letter in letters[1:]:
        assert not desk.needs_input(letter)
        targets += scores_in(desk.fate(letter), "otlp_json/traces")
    assert [each.span_id for _, each in targets] == [f"{n + 2:016x}" for n in range(49)]
    assert sizes.count(len(value)) == 1


def test_which_unit_was_judged_goes_with_the_score() -> None:
    said = {
        "gen_ai.evaluation.name": "judge",
        "gen_ai.evaluation.score.value": True,
        "agent_monitor.judged": "output",
    }
    value = native(attributes=said)
    letter = only_letter(decode(value))
    [(_, each)] = scores_in(resender("json").fate(letter, Record(value)), "json")
    assert (each.score.judged, each.role) == ("output", "retrieval")


def test_what_MONITOR_KEEP_lets_in_is_let_in_again() -> None:  # noqa: N802
    keep = {"env": frozenset({"prod", "live"}), "service.name": frozenset({"shop"})}
    config = msgspec.structs.replace(TABLE, keep=keep)
    value = native(
        service="shop", attributes={"env": "prod"}, scores=[{"scorer": "judge", "value": True}]
    )
    letter = only_letter(decode(value))
    fate = resender("json", config).fate(letter, Record(value))
    [(_, each)] = scores_in(fate, "json", config)
    assert each.span_id == SPAN


def test_a_score_of_a_whole_trace_stays_although_its_scorer_also_judged_the_span() -> None:
    value = native(
        attributes={
            "trace.annotations.0.annotation.name": "judge",
            "trace.annotations.0.annotation.score": 0.5,
            "agent_monitor.score.judge": 0.5,
        }
    )
    letter = only_letter(decode(value))
    assert letter.reason == "no_span_id"
    fate = resender("json").fate(letter, Record(value))
    assert fate == Stays("refused_again", "no_span_id")


def test_of_a_message_only_the_span_that_was_refused_goes_back() -> None:
    many = [attribute(f"k{n}", stringValue="v") for n in range(20)]
    item = {"traceId": TRACE, "spanId": SPAN, "name": "chat", "attributes": many}
    value = otlp("traces", {"traceId": TRACE, "spanId": OTHER, "name": "chat"}, item)
    tight = msgspec.structs.replace(CONFIG, bounds=Bounds(attributes=10))
    letter = only_letter(decode(value, encoding="otlp_json/traces", config=tight))
    again = resender("otlp_json/traces", tight).fate(letter)
    assert again == Stays("refused_again", "too_many_attributes")
    fate = resender("otlp_json/traces", CONFIG).fate(letter)
    assert isinstance(fate, Send)
    [[span]] = decode(*fate.values, encoding="otlp_json/traces").spans.values()
    assert (span.span_id, span.service) == (SPAN, "shop")


def test_a_message_read_under_the_wrong_encoding_goes_back_as_it_is() -> None:
    letter = only_letter(decode(native(), encoding="otlp_proto/traces"))
    assert resender("json").fate(letter) == Send((native(),))
    assert resender("otlp_proto/traces").fate(letter) == Stays("refused_again", letter.reason)


def test_a_log_record_that_says_nothing_now_is_not_sent_in_vain() -> None:
    source = Source(TOPIC, 0, 1, 0, 1)
    plain = otlp("logs", {"traceId": TRACE, "body": {"stringValue": "x"}})
    letter = DeadLetter(reason="not_protobuf", detail="", source=source, value=plain)
    assert resender("otlp_json/logs").fate(letter) == Stays("ignored")


def test_a_span_without_a_usable_id_stays() -> None:
    letter = only_letter(decode(native(span_id="nothex")))
    assert resender("json").fate(letter) == Stays("refused_again", "malformed_id")


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(
    one_means=st.sampled_from(["safe", "unsafe"]),
    low=st.floats(-100, 100),
    width=st.floats(0.01, 1000),
    share=st.floats(0, 1),
)
def test_a_score_that_found_no_span_is_read_as_the_same_score(
    encoding: Encoding, one_means: Any, low: float, width: float, share: float
) -> None:
    scale = ScorerScale(one_means=one_means, minimum=low, maximum=low + width)
    config = msgspec.structs.replace(CONFIG, scorers={"judge": scale})
    raw = min(low + share * width, low + width)
    safety = (raw - low) / ((low + width) - low)
    score = Score("judge", "2", 1.0 - safety if one_means == "safe" else safety)
    waiting = SpanScore(SPAN, score, "shop", "tool_call", Source(TOPIC, 3, 7, 0, 1_700_000_000_000))
    fate = resender(encoding, config).fate(span_not_in_memory(TRACE, waiting))
    if fate == Stays("no_such_value"):
        assert (low, width) != (0.0, 1.0)  # rounding may leave a gap in a stretched range
        return
    [(trace_id, each)] = scores_in(fate, encoding, config)
    assert (trace_id, each.span_id, each.score, each.service, each.role) == (
        TRACE, SPAN, score, "shop", "tool_call",
    )  # fmt: skip


def test_every_reason_has_a_fate_and_what_is_ours_stays() -> None:
    for reason in (*INPUT_REASONS, *FRAGMENT_REASONS, *AGENT_REASONS):
        letter = DeadLetter(
            reason=reason, detail="", source=Source(TOPIC, 0, 1, 0, 1), value=b"\xff"
        )
        fate = resender("json").fate(letter, Record(b"{}"))
        assert isinstance(fate, Stays)
        assert fate.why in STAYS
        if reason in (*FRAGMENT_REASONS, *AGENT_REASONS):
            assert fate.why == "not_an_input"
    waiting = SpanScore(SPAN, Score("judge", "1", 0.5), source=Source(TOPIC))
    assert resender("json").fate(scores_no_member(TRACE, waiting)) == Stays("evaluator_scored")


def test_reasons_of_scores_are_those_that_intake_gives_scores() -> None:
    assert REASONS.keys() >= SCORE_REASONS
    for value in (True, "x", 7, float("nan")):
        letter = only_letter(decode(native(scores=[{"scorer": "judge", "value": value}])))
        assert letter.reason in SCORE_REASONS


def test_bytes_that_were_not_kept_and_topics_that_are_no_input_stay() -> None:
    letter = only_letter(decode(native(), encoding="otlp_proto/traces"))
    gone = msgspec.structs.replace(letter, value=None)
    assert resender("json").fate(gone) == Stays("bytes_not_kept")
    assert Resender(CONFIG, {"else": "json"}).fate(letter) == Stays("no_such_input")


@given(st.binary(max_size=200) | st.builds(lambda x: json.dumps(x).encode(), st.dictionaries(
    st.sampled_from(["scorer", "value", "label", "version", "trace_id", "span_id"]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
)))  # fmt: skip
def test_no_letter_raises(value: bytes) -> None:
    for reason in REASONS.keys() | {"span_not_in_memory"}:
        letter = DeadLetter(reason=reason, detail="", source=Source(TOPIC, 0, 1, 0, 1), value=value)
        for encoding in ("json", "otlp_proto/traces"):
            resender(encoding).fate(letter, Record(value))
