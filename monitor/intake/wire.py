"""OTLP's protobuf messages as far as intake reads them, with every string and attribute left as bytes.

The same wire format as opentelemetry-proto: a length-delimited field may be declared `bytes` instead of
`string` or a message. So one bad string refuses its own span and not the whole message; an attribute is a
slice to hash and to look up in a cache before it is parsed, and most never are. `Traces` is a message in one
piece; the ``Sliced`` types leave spans and log records as bytes, for a message with a broken one in it.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

WireError: Final = DecodeError

_F = descriptor_pb2.FieldDescriptorProto
_BYTES: Final = _F.TYPE_BYTES
_FIXED64: Final = _F.TYPE_FIXED64
_INT32: Final = _F.TYPE_INT32

# message -> (field, number, type or message, repeated)
_MESSAGES: Final[dict[str, tuple[tuple[str, int, Any, bool], ...]]] = {
    "Traces": (("resource_spans", 1, "ResourceSpans", True),),
    "ResourceSpans": (("resource", 1, _BYTES, False), ("scope_spans", 2, "ScopeSpans", True)),
    "ScopeSpans": (("scope", 1, _BYTES, False), ("spans", 2, "Span", True)),
    # The envelopes of traces and logs have the same numbers.
    "SlicedMessage": (("resources", 1, _BYTES, True),),
    "SlicedResource": (("resource", 1, _BYTES, False), ("scopes", 2, _BYTES, True)),
    "SlicedScope": (("scope", 1, _BYTES, False), ("items", 2, _BYTES, True)),
    "Resource": (("attributes", 1, _BYTES, True),),
    "Span": (
        ("trace_id", 1, _BYTES, False),
        ("span_id", 2, _BYTES, False),
        ("parent_span_id", 4, _BYTES, False),
        ("name", 5, _BYTES, False),
        ("kind", 6, _INT32, False),
        ("start_time_unix_nano", 7, _FIXED64, False),
        ("end_time_unix_nano", 8, _FIXED64, False),
        ("attributes", 9, _BYTES, True),
        ("events", 11, "Event", True),
        ("links", 13, "Link", True),
        ("status", 15, _BYTES, False),
    ),
    "Event": (
        ("time_unix_nano", 1, _FIXED64, False),
        ("name", 2, _BYTES, False),
        ("attributes", 3, _BYTES, True),
    ),
    "Link": (
        ("trace_id", 1, _BYTES, False),
        ("span_id", 2, _BYTES, False),
        ("attributes", 4, _BYTES, True),
    ),
    "Status": (("message", 2, _BYTES, False), ("code", 3, _INT32, False)),
    "KeyValue": (("key", 1, _BYTES, False), ("value", 2, _BYTES, False)),
    "LogRecord": (
        ("attributes", 6, _BYTES, True),
        ("trace_id", 9, _BYTES, False),
        ("span_id", 10, _BYTES, False),
        ("event_name", 12, _BYTES, False),
    ),
}


class WireMessage(Protocol):
    """A parsed message; fields as declared above."""

    def __getattr__(self, field: str) -> Any: ...
    def SerializeToString(self) -> bytes: ...  # noqa: N802


class MessageType(Protocol):
    def __call__(self, **fields: object) -> WireMessage: ...
    def FromString(self, data: bytes) -> WireMessage: ...  # noqa: N802


def _build() -> dict[str, MessageType]:
    package = "agent_monitor.otlp_slices"
    file = descriptor_pb2.FileDescriptorProto(
        name="agent_monitor/otlp_slices.proto", package=package, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            if isinstance(kind, str):
                inner = f".{package}.{kind}"
                message.field.add(
                    name=field, number=number, type=_F.TYPE_MESSAGE, type_name=inner, label=label
                )
            else:
                message.field.add(name=field, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: cast(
            MessageType,
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")),
        )
        for name in _MESSAGES
    }


_TYPES: Final = _build()
Traces: Final = _TYPES["Traces"]
SlicedMessage: Final = _TYPES["SlicedMessage"]
SlicedResource: Final = _TYPES["SlicedResource"]
SlicedScope: Final = _TYPES["SlicedScope"]
Resource: Final = _TYPES["Resource"]
Span: Final = _TYPES["Span"]
Status: Final = _TYPES["Status"]
KeyValue: Final = _TYPES["KeyValue"]
LogRecord: Final = _TYPES["LogRecord"]


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


def message_of(resource: bytes, scope: bytes, item: bytes) -> bytes:
    """The smallest message that holds a span or log record with its resource: what a dead letter keeps, and
    redrive sends."""
    scoped = SlicedScope(scope=scope, items=[item]).SerializeToString()
    packed = SlicedResource(resource=resource, scopes=[scoped]).SerializeToString()
    return SlicedMessage(resources=[packed]).SerializeToString()
