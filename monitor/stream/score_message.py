"""A message in an input topic's encoding that says one thing: this scorer's score of that span.

A log record where the topic holds logs; else an evaluator span, which is no member of its trace: it is never counted,
reduced or chosen, and a trace id with nothing else gets no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from monitor.codec import encode_json
from monitor.intake import Encoding
from monitor.intake.conventions import EVALUATION_EVENT, SERVICE_NAME
from monitor.intake.evaluations import Given
from monitor.model import ROLES, UNKNOWN, DeadLetter, SpanScore

NAME: Final = "redriven evaluation"
_SPAN_BYTES: Final = 8
_INT64: Final = 1 << 63
_NANO: Final = 1_000_000  # ns in a ms


def score_message(
    encoding: Encoding,
    letter: DeadLetter,
    given: Given,
    trace_id: str,
    target: SpanScore,
    keep: Mapping[str, frozenset[str]],
) -> bytes:
    """``given``: as it arrived, so that the scorer table reads it; ``target``: the span, its service, role and which
    unit of it was judged. ``keep``: the rules of MONITOR_KEEP, which the input record satisfied."""
    said = _attributes(given, trace_id, target)
    # The attribute's own value was not kept. It decides nothing but whether the record is read.
    said |= {key: min(values) for key, values in keep.items() if key != SERVICE_NAME and values}
    own_id = _own_id(letter, trace_id, target.span_id)
    nanos = max(letter.source.timestamp_ms, 1) * _NANO
    match encoding:
        case "json":
            return encode_json(
                {
                    "trace_id": trace_id,
                    "span_id": own_id,
                    "parent_span_id": target.span_id,
                    "service": target.service,
                    "name": NAME,
                    "role": "evaluator",
                    "start_unix_nano": nanos,
                    "end_unix_nano": nanos,
                    "attributes": said,
                }
            )
        case "otlp_json/logs":
            record = {
                "timeUnixNano": str(nanos),
                "eventName": EVALUATION_EVENT,
                "traceId": trace_id,
                "spanId": target.span_id,
                "attributes": _json_attributes(said),
            }
            scope = {"scope": {}, "logRecords": [record]}
            return encode_json(
                {"resourceLogs": [{"resource": _resource(target), "scopeLogs": [scope]}]}
            )
        case "otlp_json/traces":
            span = {
                "traceId": trace_id,
                "spanId": own_id,
                "parentSpanId": target.span_id,
                "name": NAME,
                "startTimeUnixNano": str(nanos),
                "endTimeUnixNano": str(nanos),
                "attributes": _json_attributes({"agent_monitor.role": "evaluator"} | said),
            }
            scope = {"scope": {}, "spans": [span]}
            return encode_json(
                {"resourceSpans": [{"resource": _resource(target), "scopeSpans": [scope]}]}
            )
        case "otlp_proto/logs":
            logs = ExportLogsServiceRequest()
            of_logs = logs.resource_logs.add()
            of_logs.resource.attributes.append(_key_value(SERVICE_NAME, target.service))
            log = of_logs.scope_logs.add().log_records.add(
                time_unix_nano=nanos,
                event_name=EVALUATION_EVENT,
                trace_id=bytes.fromhex(trace_id),
                span_id=bytes.fromhex(target.span_id),
            )
            log.attributes.extend(_key_value(key, value) for key, value in said.items())
            return logs.SerializeToString()
        case "otlp_proto/traces":
            traces = ExportTraceServiceRequest()
            of_traces = traces.resource_spans.add()
            of_traces.resource.attributes.append(_key_value(SERVICE_NAME, target.service))
            evaluation = of_traces.scope_spans.add().spans.add(
                trace_id=bytes.fromhex(trace_id),
                span_id=bytes.fromhex(own_id),
                parent_span_id=bytes.fromhex(target.span_id),
                name=NAME,
                start_time_unix_nano=nanos,
                end_time_unix_nano=nanos,
            )
            evaluation.attributes.append(_key_value("agent_monitor.role", "evaluator"))
            evaluation.attributes.extend(_key_value(key, value) for key, value in said.items())
            return traces.SerializeToString()


def _attributes(given: Given, trace_id: str, target: SpanScore) -> dict[str, Any]:
    said: dict[str, Any] = {
        "agent_monitor.target.trace_id": trace_id,
        "agent_monitor.target.span_id": target.span_id,
        "gen_ai.evaluation.name": given.scorer,
        "gen_ai.evaluation.score.value": given.value,
        "gen_ai.evaluation.score.label": given.label,
        "agent_monitor.scorer_version": given.version,
        "agent_monitor.judged": target.score.judged or None,
    }
    if target.role in ROLES and target.role != UNKNOWN:
        said["agent_monitor.target.role"] = target.role
    return {key: value for key, value in said.items() if value is not None}


def _own_id(letter: DeadLetter, trace_id: str, span_id: str) -> str:
    """Of the evaluator span: another one for each score, the same one however often it is made."""
    source = letter.source
    place = f"{source.topic}\0{source.partition}\0{source.offset}\0{source.index}\0{trace_id}\0{span_id}\0"
    hashed = blake2b(place.encode(), digest_size=_SPAN_BYTES, person=b"redriven")
    hashed.update(letter.value or b"")
    return hashed.hexdigest()


def _resource(target: SpanScore) -> dict[str, Any]:
    return {"attributes": _json_attributes({SERVICE_NAME: target.service})}


def _json_attributes(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _json_value(value)} for key, value in said.items()]


def _json_value(value: object) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int() if -_INT64 <= value < _INT64:
            return {"intValue": str(value)}
        case int() | float():
            return {"doubleValue": float(value)}
        case _:
            return {"stringValue": str(value)}


def _key_value(key: str, value: object) -> KeyValue:
    pair = KeyValue(key=key)
    match value:
        case bool():
            pair.value.bool_value = value
        case int() if -_INT64 <= value < _INT64:
            pair.value.int_value = value
        case int() | float():
            pair.value.double_value = float(value)
        case _:
            pair.value.string_value = str(value)
    return pair
