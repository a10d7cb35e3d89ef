"""OTLP's protobuf messages as far as intake reads them, with every string and sub-message left as bytes.

The same wire format as opentelemetry-proto: a length-delimited field may be declared `bytes` instead of
`string` or a message. So one bad string or one broken span refuses itself alone and not the whole message;
an attribute is a slice to hash and to look up in a cache before it is parsed, and most never are.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

WireError: Final = DecodeError

_F = descriptor_pb2.FieldDescriptorProto
_BYTES: Final = _F.TYPE_BYTES
_FIXED64: Final = _F.TYPE_FIXED64
_INT32: Final = _F.TYPE_INT32
_FIXED32: Final = _F.TYPE_FIXED32

# message -> (field, number, type, repeated)
_MESSAGES: Final[dict[str, tuple[tuple[str, int, Any, bool], ...]]] = {
    "Traces": (("resource_spans", 1, _BYTES, True),),
    "ResourceSpans": (("resource", 1, _BYTES, False), ("scope_spans", 2, _BYTES, True)),
    "Resource": (("attributes", 1, _BYTES, True),),
    "ScopeSpans": (("scope", 1, _BYTES, False), ("spans", 2, _BYTES, True)),
    "Span": (
        ("trace_id", 1, _BYTES, False),
        ("span_id", 2, _BYTES, False),
        ("trace_state", 3, _BYTES, False),
        ("parent_span_id", 4, _BYTES, False),
        ("name", 5, _BYTES, False),
        ("kind", 6, _INT32, False),
        ("start_time_unix_nano", 7, _FIXED64, False),
        ("end_time_unix_nano", 8, _FIXED64, False),
        ("attributes", 9, _BYTES, True),
        ("events", 11, _BYTES, True),
        ("links", 13, _BYTES, True),
        ("status", 15, _BYTES, False),
    ),
    "Event": (
        ("time_unix_nano", 1, _FIXED64, False),
        ("name", 2, _BYTES, False),
        ("attributes", 3, _BYTES, True),
    ),
    "Link": (("trace_id", 1, _BYTES, False), ("span_id", 2, _BYTES, False)),
    "KeyValue": (("key", 1, _BYTES, False), ("value", 2, _BYTES, False)),
}


class WireMessage(Protocol):
    """A parsed message; fields as declared above."""

    def __getattr__(self, field: str) -> Any: ...
    def SerializeToString(self) -> bytes: ...  # noqa: N802


class MessageType(Protocol):
    def __call__(self, **fields: object) -> WireMessage: ...
    def FromString(self, data: bytes) -> WireMessage: ...  # noqa: N802


def _build() -> dict[str, MessageType]:
    file = descriptor_pb2.FileDescriptorProto(
        name="agent_monitor/otlp_slices.proto", package="agent_monitor.otlp_slices", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            message.field.add(name=field, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: cast(
            MessageType,
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}")),
        )
        for name in _MESSAGES
    }


_TYPES: Final = _build()
Traces: Final = _TYPES["Traces"]
ResourceSpans: Final = _TYPES["ResourceSpans"]
Resource: Final = _TYPES["Resource"]
ScopeSpans: Final = _TYPES["ScopeSpans"]
Span: Final = _TYPES["Span"]
Event: Final = _TYPES["Event"]
Link: Final = _TYPES["Link"]
KeyValue: Final = _TYPES["KeyValue"]


def canonical(attribute: bytes) -> bytes:
    """A KeyValue's bytes with its key first: the Collector writes the value first, SDKs the key."""
    if attribute[:1] == b"\x12":
        size = attribute[1] if len(attribute) > 1 else 128
        end = 2 + size
        if size < 128:
            return attribute[end:] + attribute[:end]
        size = shift = 0
        for at in range(1, min(len(attribute), 6)):
            size |= (attribute[at] & 127) << shift
            shift += 7
            if attribute[at] < 128:
                end = at + 1 + size
                return attribute[end:] + attribute[:end]
    return attribute


def any_value(data: bytes) -> Any:
    """An AnyValue as a Python value; None where it holds nothing. Raises WireError, also for bad UTF-8."""
    return _python(AnyValue.FromString(data))


def _python(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [_python(each) for each in value.array_value.values]
    if which == "kvlist_value":
        return {each.key: _python(each.value) for each in value.kvlist_value.values}
    return getattr(value, which)


def is_too_deep(error: Exception) -> bool:
    """Whether the runtime gave up at its nesting limit (100 messages: 49 arrays); it says so in words only."""
    return "MaxDepth" in str(error)


def message_of(resource: bytes, scope: bytes, span: bytes) -> bytes:
    """The smallest message that holds a span with its resource: what a dead letter keeps, and redrive sends."""
    scope_spans = ScopeSpans(scope=scope, spans=[span]).SerializeToString()
    resource_spans = ResourceSpans(resource=resource, scope_spans=[scope_spans]).SerializeToString()
    return Traces(resource_spans=[resource_spans]).SerializeToString()
