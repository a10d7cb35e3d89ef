"""OTLP messages in both encodings, as the Collector writes them."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.intake import Batch, Encoding
from monitor.model import DeadLetter

_IDS: Final = ("traceId", "spanId", "parentSpanId")
PROTO: Final[tuple[Encoding, Encoding]] = ("otlp_proto/traces", "otlp_proto/logs")
JSON: Final[tuple[Encoding, Encoding]] = ("otlp_json/traces", "otlp_json/logs")


def as_dict(value: bytes, *, logs: bool = False) -> dict[str, Any]:
    """A protobuf message as the object that the Collector writes as JSON: ids in hex, enums as numbers, whole
    doubles as integers."""
    request = ExportLogsServiceRequest if logs else ExportTraceServiceRequest
    loaded = MessageToDict(request.FromString(value), use_integers_for_enums=True)
    return {key: _collectors(part) for key, part in loaded.items()}


def as_json(value: bytes, *, logs: bool = False) -> bytes:
    return json.dumps(as_dict(value, logs=logs), ensure_ascii=False, separators=(",", ":")).encode()


def _collectors(part: Any) -> Any:
    match part:
        case dict():
            return {
                key: base64.b64decode(inner).hex() if key in _IDS else _collectors(inner)
                for key, inner in part.items()
            }
        case list():
            return [_collectors(inner) for inner in part]
        case float() if part == int(part):
            return int(part)
        case _:
            return part


def counted_out(batch: Batch) -> int:
    """Items that a batch holds or has counted: spans, dead letters of items (a fault has one), ignored ones."""
    spans = sum(map(len, batch.spans.values()))
    refused = sum(not is_of_a_score(letter) for letter in batch.dead_letters)
    ignored = sum(n for (what, _), n in batch.counts.items() if what == "ignored")
    return spans + refused + ignored


def is_of_a_score(letter: DeadLetter) -> bool:
    """Whether it is a score's alone, and its span lives on."""
    return letter.reason.startswith("score_") or letter.reason in ("too_many_scores", "no_span_id")
