"""Log records of OTLP, in both encodings: evaluations are scores of spans, all else is counted."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from monitor.intake import Batch, Bounds, Encoding, IntakeConfig
from monitor.intake.conventions import SCORE_EVENTS
from monitor.intake.scores import ScorerScale
from monitor.model import Score

from .common import CONFIG, OTHER, SPAN, TRACE, decode, messages
from .otlp import as_json
from .test_otlp_proto import pairs

EVENT = "gen_ai.evaluation.result"
SCORED: dict[str, Any] = {"gen_ai.evaluation.name": "pii", "gen_ai.evaluation.score.value": 0.5}
ENCODINGS: tuple[Encoding, ...] = ("otlp_proto/logs", "otlp_json/logs")


def record(attributes: dict[str, Any] | None = None, **fields: Any) -> LogRecord:
    """A log record as an SDK makes it; ids in hex, attributes as a dict."""
    ids = {
        field: bytes.fromhex(fields.pop(field, default))
        for field, default in (("trace_id", TRACE), ("span_id", SPAN))
    }
    given = {"event_name": EVENT, **fields}
    return LogRecord(attributes=pairs(SCORED if attributes is None else attributes), **ids, **given)


def message(*records: LogRecord, service: str = "judge") -> bytes:
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    resource_logs.resource.attributes.extend(pairs({"service.name": service}))
    resource_logs.scope_logs.add().log_records.extend(records)
    return request.SerializeToString()


def take(*values: bytes, encoding: Encoding, config: IntakeConfig = CONFIG) -> Batch:
    """Of protobuf messages, in the encoding that is asked for."""
    if encoding == "otlp_json/logs":
        values = tuple(as_json(value, logs=True) for value in values)
    return decode(*values, encoding=encoding, config=config)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("event", sorted(SCORE_EVENTS))
def test_an_evaluation_is_a_score_of_its_span(encoding: Encoding, event: str) -> None:
    by_field = record(event_name=event)
    by_attribute = record({**SCORED, "event.name": event}, event_name="", span_id=OTHER)
    batch = take(message(by_field, by_attribute), encoding=encoding)
    assert not batch.spans
    assert not batch.dead_letters
    assert [(s.span_id, s.score, s.service) for s in batch.scores[TRACE]] == [
        (SPAN, Score("pii", "unknown", 0.5), "judge"),
        (OTHER, Score("pii", "unknown", 0.5), "judge"),
    ]
    assert [s.source.index for s in batch.scores[TRACE]] == [0, 1]
    assert batch.counts == {("detached_scores", "pii"): 2}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_id_attributes_go_before_the_record_s_own(encoding: Encoding) -> None:
    named = {**SCORED, "evaluated.trace_id": "ab" * 16, "evaluated.span_id": OTHER}
    batch = take(message(record(named)), encoding=encoding)
    assert {t: [s.span_id for s in of] for t, of in batch.scores.items()} == {"ab" * 16: [OTHER]}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_other_records_are_counted_and_not_read(encoding: Encoding) -> None:
    others = [
        record(event_name=""),
        record(event_name="gen_ai.client.inference.operation.details"),
        record({"event.name": "else", "text": EVENT}, event_name=""),
        record({"event.name": [EVENT]}, event_name=""),
    ]
    failed = record({"gen_ai.evaluation.name": "pii", "error.type": "timeout"})
    batch = take(message(*others, failed), encoding=encoding)
    assert not batch.scores
    assert not batch.dead_letters
    assert batch.counts == {("ignored", "log_record"): 4, ("ignored", "no_score"): 1}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"trace_id": ""}, "trace_id is absent"),
        ({"span_id": ""}, "span_id is absent"),
        ({"span_id": "ab" * 7}, "span_id has 14 hex digits"),
    ],
)
def test_an_evaluation_that_names_no_span_is_refused(
    encoding: Encoding, fields: dict[str, str], why: str
) -> None:
    response = {**SCORED, "gen_ai.response.id": "chatcmpl-1"}
    batch = take(message(record(response, **fields), record()), encoding=encoding)
    assert [s.span_id for s in batch.scores[TRACE]] == [SPAN]
    [letter] = batch.dead_letters
    assert (letter.reason, letter.scorer, letter.source.index) == ("no_span_id", "pii", 0)
    assert why in letter.detail


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bad_scores_are_refused_and_labels_mapped(encoding: Encoding) -> None:
    label = {"gen_ai.evaluation.name": "category", "gen_ai.evaluation.score.label": "benign"}
    value = message(record({**SCORED, "gen_ai.evaluation.score.value": 2}), record(label))
    batch = take(value, encoding=encoding)
    assert [d.reason for d in batch.dead_letters] == ["score_out_of_range", "score_label_only"]
    scorers = {"category": ScorerScale(labels={"benign": 0.0})}
    config = IntakeConfig(token_key=CONFIG.token_key, scorers=scorers)
    mapped = take(message(record(label)), encoding=encoding, config=config)
    assert [s.score.value for s in mapped.scores[TRACE]] == [0.0]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_broken_evaluation_costs_itself_alone(encoding: Encoding) -> None:
    bad = record({**SCORED, "gen_ai.evaluation.explanation": "MARK"})
    value = message(record(), bad)
    value = as_json(value, logs=True) if encoding == "otlp_json/logs" else value
    batch = decode(value.replace(b"MARK", b"M\xffRK"), encoding=encoding)
    assert len(batch.scores[TRACE]) == 1
    [letter] = batch.dead_letters
    assert (letter.reason, letter.source.index) == ("not_utf8", 1)
    again = decode(letter.value, encoding=encoding)
    assert [d.reason for d in again.dead_letters] == ["not_utf8"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bounds_and_keep(encoding: Encoding) -> None:
    config = IntakeConfig(
        token_key=CONFIG.token_key,
        bounds=Bounds(attributes=3, spans_per_message=2),
        keep={"service.name": frozenset({"judge"})},
    )
    wide = record({**SCORED, "a": 1, "b": 2})
    batch = take(
        message(wide, record()),
        message(record(), service="else"),
        message(record(), record(), record()),
        encoding=encoding,
        config=config,
    )
    assert sum(map(len, batch.scores.values())) == 1
    assert batch.counts["ignored", "keep"] == 1
    assert [d.reason for d in batch.dead_letters] == ["too_many_attributes", "too_many_spans"]


@pytest.mark.parametrize("fields", [{"traceId": 5}, {"attributes": 5}, {"eventName": 5}])
def test_a_field_of_another_type_in_json_costs_its_record_alone(fields: dict[str, Any]) -> None:
    loaded = json.loads(as_json(message(record(), record()), logs=True))
    loaded["resourceLogs"][0]["scopeLogs"][0]["logRecords"][1].update({**fields, "x": EVENT})
    batch = decode(json.dumps(loaded).encode(), encoding="otlp_json/logs")
    assert len(batch.scores[TRACE]) == 1
    assert [(d.reason, d.source.index) for d in batch.dead_letters] == [("wrong_type", 1)]


@pytest.mark.parametrize("encoding", ["otlp_proto", "otlp_json"])
def test_what_pydantic_evals_sends(encoding: str) -> None:
    """By hand from the capture: each evaluated span gets `safety` (value), `safe` (value and label) and
    `category` (label only, which nothing maps)."""
    name: Encoding = "otlp_proto/logs" if encoding == "otlp_proto" else "otlp_json/logs"
    values = [each["value"] for each in messages(f"pydantic_ai.logs.{encoding}")]
    batch = decode(*values, encoding=name)
    scores = [score for of_trace in batch.scores.values() for score in of_trace]
    by_scorer = Counter(score.score.scorer for score in scores)
    assert set(by_scorer) == {"safety", "safe"}
    assert by_scorer["safety"] == by_scorer["safe"] > 0
    assert Counter(d.reason for d in batch.dead_letters) == {"score_label_only": by_scorer["safe"]}
    assert {score.service for score in scores} == {"triage-agent"}
