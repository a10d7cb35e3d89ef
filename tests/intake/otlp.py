"""OTLP messages in both encodings, as the Collector writes them."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.intake import Batch, Encoding

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
    """Items that a batch holds or has counted: spans, faults (each with its dead letter), other dead letters of
    items, ignored ones. Scores are counted apart: one record may hold several, or none."""
    spans = sum(map(len, batch.spans.values()))
    whole = sum(
        letter.scorer is None and not _is_score(letter.reason) for letter in batch.dead_letters
    )
    ignored = sum(n for (what, _), n in batch.counts.items() if what == "ignored")
    return spans + whole + ignored


def _is_score(reason: str) -> bool:
    return reason.startswith("score_") or reason in ("too_many_scores", "no_span_id")
