"""OTLP JSON, traces. The common message is decoded in one piece, its attributes left as bytes to look up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from monitor.intake import reasons
from monitor.intake.batch import Batch
from monitor.intake.config import IntakeConfig
from monitor.intake.envelope import Messages, Origin
from monitor.intake.evaluations import Given, Scorekeeper
from monitor.intake.ids import SPAN_BYTES, TRACE_BYTES, IdFault, diagnose, hex_id
from monitor.intake.json_messages import TRACES, Slicer, attributes_of
from monitor.intake.json_values import LEVELS, JsonAttributes, whole_number
from monitor.intake.loose import DECODER_ERRORS, Unusable, read_loosely
from monitor.intake.meaning import Interpreter
from monitor.intake.otlp import Origins, SpanReader
from monitor.model import Link, Source

_NO_RAW: Final = Raw()
_IDS: Final = ("traceId", "spanId", "parentSpanId")
_MAX_TIME: Final = 2**64 - 1
# Names that protobuf's JSON mapping allows for enums; OTLP wants the numbers.
_ENUMS: Final = {
    "SPAN_KIND_UNSPECIFIED": 0,
    "SPAN_KIND_INTERNAL": 1,
    "SPAN_KIND_SERVER": 2,
    "SPAN_KIND_CLIENT": 3,
    "SPAN_KIND_PRODUCER": 4,
    "SPAN_KIND_CONSUMER": 5,
    "STATUS_CODE_UNSET": 0,
    "STATUS_CODE_OK": 1,
    "STATUS_CODE_ERROR": 2,
}


class _Event(msgspec.Struct, rename="camel", gc=False):
    time_unix_nano: int | None = 0
    name: str | None = ""
    attributes: list[Raw] | None = None


class _Link(msgspec.Struct, rename="camel", gc=False):
    trace_id: str | None = None
    span_id: str | None = None
    attributes: list[Raw] | None = None


class _Status(msgspec.Struct, gc=False):
    code: int | str | None = 0
    message: str | None = ""


class _Span(msgspec.Struct, rename="camel", gc=False):
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    name: str | None = ""
    kind: int | str | None = 0
    start_time_unix_nano: int | None = 0
    end_time_unix_nano: int | None = 0
    attributes: list[Raw] | None = None
    events: list[_Event] | None = None
    links: list[_Link] | None = None
    status: _Status | None = None


class _ScopeSpans(msgspec.Struct, rename="camel", gc=False):
    scope: Raw = _NO_RAW
    spans: list[_Span] | None = None


class _ResourceSpans(msgspec.Struct, rename="camel", gc=False):
    resource: Raw = _NO_RAW
    scope_spans: list[_ScopeSpans] | None = None


class _Traces(msgspec.Struct, rename="camel", gc=False):
    resource_spans: list[_ResourceSpans] | None = None


# Not strict: int64 as strings.
_traces: Final = msgspec.json.Decoder(_Traces, strict=False).decode
_span: Final = msgspec.json.Decoder(_Span, strict=False).decode


class JsonTraces(Messages[_Span | bytes]):
    """An item is a span, decoded or (of a message that does not decode as a whole) its bytes."""

    def __init__(self, config: IntakeConfig, interpreter: Interpreter, keeper: Scorekeeper) -> None:
        super().__init__(config.bounds)
        self._max_attributes, self._max_events = config.bounds.attributes, config.bounds.events
        self._nesting = config.bounds.nesting
        self._keep = bool(config.keep)
        self._attributes = JsonAttributes(interpreter.lookup, config.bounds)
        self._origins = Origins(config, self._attributes, attributes_of)
        self._reader = SpanReader(config, interpreter, keeper, self._attributes)
        self._said = self._attributes.__getitem__
        self._slicer = Slicer(TRACES)
        self._sliced: tuple[bytes, list[bytes]] = (b"", [])

    def cut(self, value: bytes) -> list[tuple[Origin, _Span | bytes]]:
        self._sliced = b"", []
        spans: list[tuple[Origin, _Span | bytes]] = []
        try:
            message = _traces(value)
        except DECODER_ERRORS:
            for resource, scope, packed in self._slicer.slices(value):
                spans.append((self._origins.origin(resource, scope), packed))
            return spans
        for resource_spans in message.resource_spans or ():
            resource = bytes(resource_spans.resource)
            for scope_spans in resource_spans.scope_spans or ():
                origin = self._origins.origin(resource, bytes(scope_spans.scope))
                spans += [(origin, span) for span in scope_spans.spans or ()]
        return spans

    def whole(self, value: bytes, index: int, origin: Origin, item: _Span | bytes) -> bytes:
        if not isinstance(item, bytes):  # the fields that are not read are in the message only
            if self._sliced[0] is not value:
                self._sliced = value, [packed for _, _, packed in self._slicer.slices(value)]
            item = self._sliced[1][index]
        return self._slicer.message_of(origin.resource, origin.scope, item)

    def take(self, item: _Span | bytes, origin: Origin, source: Source, batch: Batch) -> str | None:
        raw = self._alone(item) if isinstance(item, bytes) else item
        attributes = list(map(bytes, raw.attributes or ()))
        events = raw.events or ()
        if len(attributes) > self._max_attributes or len(events) > self._max_events:
            raise Unusable(
                reasons.TOO_MANY_ATTRIBUTES,
                f"span has {len(attributes)} attributes and {len(events)} events",
            )
        said = list(map(self._said, attributes))
        if self._keep and not self._origins.is_kept(attributes, origin):
            batch.counts["ignored", "keep"] += 1
            return None
        given: list[Given] = []
        hashed_events: Sequence[bytes] = ()
        kept: tuple[Link, ...] = ()
        hashed_links: Sequence[bytes] = ()
        if events:
            hashed_events = self._reader.events(_events(events), given)
        if raw.links:
            kept, hashed_links = self._reader.links(_links(raw.links), batch)

        trace = raw.trace_id
        trace_id = trace if trace in batch.spans else hex_id(trace or "", TRACE_BYTES)
        octets = _octets(raw.span_id, SPAN_BYTES)
        parent = _octets(raw.parent_span_id, SPAN_BYTES)
        fault: IdFault | None = None
        if trace_id is None:
            fault = diagnose("trace_id", trace, TRACE_BYTES)
        elif not octets:
            fault = diagnose("span_id", raw.span_id, SPAN_BYTES)
        elif not parent and raw.parent_span_id and raw.parent_span_id.strip("0"):
            fault = diagnose("parent_span_id", raw.parent_span_id, SPAN_BYTES)
        kind = raw.kind
        status = raw.status
        return self._reader.accept(
            origin,
            source,
            trace_id,
            octets,
            parent,
            fault,
            raw.name or "",
            kind if isinstance(kind, int) else _enum(kind),
            raw.start_time_unix_nano or 0,
            raw.end_time_unix_nano or 0,
            b"0\0" if status is None else _hashed(status),
            said,
            given,
            hashed_events,
            kept,
            hashed_links,
            batch,
        )

    def _alone(self, packed: bytes) -> _Span:
        """A span of a message that does not decode as a whole. Raises Unusable."""
        try:
            return _span(packed)
        except DECODER_ERRORS:
            loaded = read_loosely(packed, LEVELS * (self._nesting + 2))
        for field in _IDS:
            held = loaded.get(field)
            if held is not None and not isinstance(held, str):
                # Never a good id: this text has not the shape of one.
                loaded[field] = f"not a string: {type(held).__name__}"
        try:
            return _span(msgspec.json.encode(loaded))
        except msgspec.ValidationError as error:
            raise Unusable(reasons.WRONG_TYPE, str(error)) from error


def _octets(raw: str | None, size: int) -> bytes:
    """Bytes of a hex id; none if it is no good id."""
    try:
        octets = bytes.fromhex(raw or "")
    except ValueError:
        return b""
    # fromhex skips white space: the length of the text gives that away.
    return octets if len(octets) == size and len(raw or "") == 2 * size and any(octets) else b""


def _enum(held: int | str | None) -> int:
    number = _ENUMS.get(held) if isinstance(held, str) else None
    number = whole_number(held or 0) if number is None else number
    if number is None:
        raise Unusable(reasons.WRONG_TYPE, "kind or status code is no number")
    return number


def _hashed(status: _Status) -> bytes:
    code = _enum(status.code)
    if not -(2**31) <= code < 2**31:
        raise Unusable(reasons.WRONG_TYPE, "status code is out of range")
    return b"%d\0%b" % (code, (status.message or "").encode())


def _events(events: Sequence[_Event]) -> Iterator[tuple[int, str, Sequence[bytes]]]:
    for event in events:
        time = event.time_unix_nano or 0
        if not 0 <= time <= _MAX_TIME:
            raise Unusable(reasons.WRONG_TYPE, "a time has more than 64 bits")
        yield time, event.name or "", list(map(bytes, event.attributes or ()))


def _links(links: Sequence[_Link]) -> Iterator[tuple[bytes, bytes, Sequence[bytes]]]:
    for link in links:
        yield (
            _octets(link.trace_id, TRACE_BYTES),
            _octets(link.span_id, SPAN_BYTES),
            list(map(bytes, link.attributes or ())),
        )
