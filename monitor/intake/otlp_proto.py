"""OTLP protobuf, traces: a message is a batch of spans of many traces and resources.

Field order is free (the Collector writes fields, and messages, back to front).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from monitor.intake import reasons, wire
from monitor.intake.attributes import ProtoAttributes
from monitor.intake.batch import Batch
from monitor.intake.config import IntakeConfig
from monitor.intake.envelope import Messages, Origin
from monitor.intake.evaluations import Given, Scorekeeper
from monitor.intake.ids import SPAN_BYTES, TRACE_BYTES, IdFault, diagnose
from monitor.intake.loose import Unusable
from monitor.intake.meaning import Interpreter
from monitor.intake.otlp import Origins, SpanReader
from monitor.model import Link, Source

_NO_TRACE: Final = bytes(TRACE_BYTES)
_NO_SPAN: Final = bytes(SPAN_BYTES)
_STATUSES: Final = 1_000  # statuses remembered: error messages are many


class ProtoTraces(Messages[wire.WireMessage | bytes]):
    """An item is a span, parsed or (of a message that does not parse as a whole) its bytes."""

    def __init__(self, config: IntakeConfig, interpreter: Interpreter, keeper: Scorekeeper) -> None:
        super().__init__(config.bounds)
        self._max_attributes, self._max_events = config.bounds.attributes, config.bounds.events
        self._keep = bool(config.keep)
        self._attributes = ProtoAttributes(interpreter.lookup, config.bounds)
        self._origins = Origins(config, self._attributes, attributes_of)
        self._reader = SpanReader(config, interpreter, keeper, self._attributes)
        self._said = self._attributes.__getitem__
        self._statuses: dict[bytes, bytes] = {b"": b"0\0"}

    def cut(self, value: bytes) -> list[tuple[Origin, wire.WireMessage | bytes]]:
        spans: list[tuple[Origin, wire.WireMessage | bytes]] = []
        try:
            message = wire.Traces.FromString(value)
        except wire.WireError:
            for resource, scope, packed in sliced(value):
                spans.append((self._origins.origin(resource, scope), packed))
            return spans
        for resource_spans in message.resource_spans:
            resource = resource_spans.resource
            for scope_spans in resource_spans.scope_spans:
                origin = self._origins.origin(resource, scope_spans.scope)
                # A list: handing out items of a message while others are allocated costs twice as much.
                spans += [(origin, span) for span in scope_spans.spans]
        return spans

    def whole(
        self, value: bytes, index: int, origin: Origin, item: wire.WireMessage | bytes
    ) -> bytes:
        del value, index
        packed = item if isinstance(item, bytes) else item.SerializeToString()
        return wire.message_of(origin.resource, origin.scope, packed)

    def take(
        self, item: wire.WireMessage | bytes, origin: Origin, source: Source, batch: Batch
    ) -> str | None:
        if isinstance(item, bytes):
            try:
                raw = wire.Span.FromString(item)
            except wire.WireError as error:
                detail = "span is no OTLP span protobuf"
                raise Unusable(reasons.NOT_PROTOBUF, detail) from error
        else:
            raw = item
        attributes: list[bytes] = list(raw.attributes)
        events: Sequence[Any] = raw.events
        links: Sequence[Any] = raw.links
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
        try:
            name = raw.name.decode()
            if events:
                hashed_events = self._reader.events(_events(events), given)
            if links:
                kept, hashed_links = self._reader.links(_links(links), batch)
        except UnicodeDecodeError as error:
            raise Unusable(reasons.NOT_UTF8, "a name is not UTF-8") from error

        trace, span_id, parent = raw.trace_id, raw.span_id, raw.parent_span_id
        good_trace = len(trace) == TRACE_BYTES and trace != _NO_TRACE
        fault: IdFault | None = None
        if (
            not good_trace
            or len(span_id) != SPAN_BYTES
            or span_id == _NO_SPAN
            or len(parent) not in (0, SPAN_BYTES)
        ):
            good_span = len(span_id) == SPAN_BYTES and span_id != _NO_SPAN
            if not good_trace:
                fault = diagnose("trace_id", trace, TRACE_BYTES)
            elif not good_span:
                fault = diagnose("span_id", span_id, SPAN_BYTES)
            elif any(parent):
                fault = diagnose("parent_span_id", parent, SPAN_BYTES)
            span_id = span_id if good_span else b""
        status = raw.status
        return self._reader.accept(
            origin,
            source,
            trace.hex() if good_trace else None,
            span_id,
            parent if any(parent) else b"",
            fault,
            name,
            raw.kind,
            raw.start_time_unix_nano,
            raw.end_time_unix_nano,
            self._statuses.get(status) or self._status(status),
            said,
            given,
            hashed_events,
            kept,
            hashed_links,
            batch,
        )

    def _status(self, packed: bytes) -> bytes:
        """What is hashed of a status."""
        try:
            status = wire.Status.FromString(packed)
        except wire.WireError as error:
            raise Unusable(reasons.NOT_PROTOBUF, "status is no OTLP status protobuf") from error
        hashed: bytes = b"%d\0%b" % (status.code, status.message)
        if len(self._statuses) >= _STATUSES:
            self._statuses.clear()
        self._statuses[packed] = hashed
        return hashed


def sliced(value: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Resource, scope and bytes of each span or log record of a message. Raises Unusable."""
    try:
        for packed in wire.SlicedMessage.FromString(value).resources:
            resource = wire.SlicedResource.FromString(packed)
            for scoped in resource.scopes:
                scope = wire.SlicedScope.FromString(scoped)
                for item in scope.items:
                    yield resource.resource, scope.scope, item
    except wire.WireError as error:
        raise Unusable(reasons.NOT_PROTOBUF, "message is no OTLP protobuf") from error


def attributes_of(resource: bytes) -> Iterable[bytes]:
    """A resource's attributes as bytes; none where it is broken."""
    try:
        attributes: Sequence[bytes] = wire.Resource.FromString(resource).attributes
    except wire.WireError:
        return ()
    return attributes


def _events(events: Sequence[Any]) -> Iterator[tuple[int, str, Sequence[bytes]]]:
    for event in events:
        yield event.time_unix_nano, event.name.decode(), list(event.attributes)


def _links(links: Sequence[Any]) -> Iterator[tuple[bytes, bytes, Sequence[bytes]]]:
    for link in links:
        trace, span = link.trace_id, link.span_id
        yield (
            trace if len(trace) == TRACE_BYTES and trace != _NO_TRACE else b"",
            span if len(span) == SPAN_BYTES and span != _NO_SPAN else b"",
            list(link.attributes),
        )
