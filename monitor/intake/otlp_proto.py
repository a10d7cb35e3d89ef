"""OTLP protobuf, traces: a message is a batch of spans of many traces and resources.

Field order is free (the Collector writes fields, and messages, back to front).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from monitor.intake import reasons, refuse, wire
from monitor.intake.batch import Batch, KafkaRecord
from monitor.intake.config import IntakeConfig, is_accepted
from monitor.intake.conventions import EVALUATION_EVENT, SERVICE_NAME
from monitor.intake.evaluations import (
    JUDGES,
    Given,
    Scorekeeper,
    of_attributes,
    of_output,
    role_of,
    targets_of,
)
from monitor.intake.found import PER_SPAN, REPEATS, SCORES, Found, Hit
from monitor.intake.ids import SPAN_BYTES, TRACE_BYTES, diagnose
from monitor.intake.loose import Unusable
from monitor.intake.meaning import KIND_NAMES, Interpreter
from monitor.model import MEMBER, UNKNOWN, Link, Source, Span, SpanFault

_HASH_BYTES: Final = 16
_CACHED: Final = 128  # bytes of an attribute that is worth remembering: longer ones are content
_RESOURCE: Final = 4_096  # bytes of a resource that is worth remembering
_KEY_FIELD: Final = 0x0A  # tag of a KeyValue's key
_LONG: Final = 128  # lengths below have one byte
_EVENT_NAME: Final = EVALUATION_EVENT.encode()


# Span and parent id, kind, start, end, number of attributes and events: the fixed part of what is hashed.
_HEAD: Final = struct.Struct("<8s8siQQII")
# Of an attribute: canonical bytes, where it belongs (None: nobody reads it), value.
_Said = tuple[bytes, Hit | None, Any]
_Hits = list[tuple[Hit, Any]]
# Of all attributes of a span: canonical bytes, what the conventions read, of these the ids and the scores, and
# what identifies the span's meaning (None: nothing does, it has content).
_Read = tuple[list[bytes], _Hits, _Hits, _Hits, list[object] | None]


class _Origin(NamedTuple):
    """Where a span stands in its message."""

    resource: bytes
    scope: bytes
    service: str
    service_bytes: bytes
    kept: frozenset[str]  # keep rules that the resource satisfies


class ProtoTraces:
    def __init__(self, config: IntakeConfig, interpreter: Interpreter, keeper: Scorekeeper) -> None:
        self._bounds = config.bounds
        self._keep = config.keep
        self._interpreter = interpreter
        self._keeper = keeper
        self._hash = blake2b(key=config.token_key, digest_size=_HASH_BYTES, person=b"otlp-span")
        # Attribute bytes -> what they say, for those that come again and again.
        self._seen: dict[bytes, _Said] = {}
        self._hits: dict[bytes, Hit | None] = {}
        self._services: dict[bytes, tuple[str, frozenset[str]]] = {}

    def decode(
        self, topic: str, partition: int, records: Sequence[KafkaRecord], batch: Batch
    ) -> None:
        """Every span becomes a span, a fault or a dead letter; a message that cannot be cut into spans is a
        dead letter whole."""
        roles: list[str] = []
        for record in records:
            value = record.value
            if not value:
                batch.counts["ignored", "tombstone" if value is None else "empty"] += 1
                continue
            at = (topic, partition, record.offset)
            try:
                spans = self._cut(value)
            except Unusable as unusable:
                source = Source(*at, 0, record.timestamp)
                refuse.item(batch, unusable.reason, unusable.detail, source, value)
                continue
            if not spans:
                batch.counts["ignored", "empty"] += 1
            for index, (origin, span) in enumerate(spans):
                source = Source(*at, index, record.timestamp)
                try:
                    role = self._span(span, origin, source, batch)
                except Unusable as unusable:
                    whole = wire.message_of(origin.resource, origin.scope, span)
                    refuse.item(batch, unusable.reason, unusable.detail, source, whole)
                else:
                    if role is not None:
                        roles.append(role)
        for role, count in Counter(roles).items():
            batch.counts["spans", role] += count

    def _cut(self, value: bytes) -> list[tuple[_Origin, bytes]]:
        """The spans of a message, still as bytes. Raises Unusable for the message as a whole."""
        bounds = self._bounds
        if len(value) > bounds.message_bytes:
            raise Unusable(
                reasons.TOO_LARGE,
                f"message has {len(value)} bytes, at most {bounds.message_bytes} are read",
            )
        spans: list[tuple[_Origin, bytes]] = []
        try:
            for packed in wire.Traces.FromString(value).resource_spans:
                resource_spans = wire.ResourceSpans.FromString(packed)
                resource = resource_spans.resource
                service, kept = self._services.get(resource) or self._resource(resource)
                for scoped in resource_spans.scope_spans:
                    scope_spans = wire.ScopeSpans.FromString(scoped)
                    origin = _Origin(resource, scope_spans.scope, service, service.encode(), kept)
                    spans.extend((origin, span) for span in scope_spans.spans)
        except wire.WireError as error:
            raise Unusable(reasons.NOT_PROTOBUF, "message is no OTLP traces protobuf") from error
        if len(spans) > bounds.spans_per_message:
            raise Unusable(
                reasons.TOO_MANY_SPANS,
                f"message has {len(spans)} spans, at most {bounds.spans_per_message} are read",
            )
        return spans

    def _resource(self, resource: bytes) -> tuple[str, frozenset[str]]:
        """Service name and satisfied keep rules of a resource; what does not decode is not there."""
        said: dict[str, Any] = {}
        for packed in wire.Resource.FromString(resource).attributes:
            try:
                key, value = _key_value(packed)
            except Unusable:
                continue
            if key == SERVICE_NAME or key in self._keep:
                said.setdefault(key, value)
        service = said.get(SERVICE_NAME)
        service = service[: self._bounds.label] if isinstance(service, str) and service else UNKNOWN
        said[SERVICE_NAME] = service
        kept = frozenset(
            key for key, accepted in self._keep.items() if is_accepted(said.get(key), accepted)
        )
        if len(resource) <= _RESOURCE:
            if len(self._services) >= self._bounds.cache:
                self._services.clear()
            self._services[resource] = service, kept
        return service, kept

    def _span(self, packed: bytes, origin: _Origin, source: Source, batch: Batch) -> str | None:
        """Puts one span into ``batch`` and gives its role; None if it became something else."""
        bounds, interpreter, service = self._bounds, self._interpreter, origin.service
        try:
            raw = wire.Span.FromString(packed)
        except wire.WireError as error:
            raise Unusable(reasons.NOT_PROTOBUF, "span is no OTLP span protobuf") from error
        # Lists: handing out items of a message while others are allocated costs twice as much.
        attributes: list[bytes] = list(raw.attributes)
        events: Sequence[bytes] = raw.events
        if len(attributes) > bounds.attributes or len(events) > bounds.events:
            raise Unusable(
                reasons.TOO_MANY_ATTRIBUTES,
                f"span has {len(attributes)} attributes and {len(events)} events",
            )
        canonical, said, ids, given_scores, key = self._read(attributes)
        if self._keep and not self._is_kept(attributes, origin):
            batch.counts["ignored", "keep"] += 1
            return None
        try:
            name = interpreter.name(raw.name.decode(), batch) if raw.name else ""
        except UnicodeDecodeError as error:
            raise Unusable(reasons.NOT_UTF8, "name is not UTF-8") from error

        trace_raw, span_raw, parent_raw = raw.trace_id, raw.span_id, raw.parent_span_id
        trace_id = trace_raw.hex() if len(trace_raw) == TRACE_BYTES and any(trace_raw) else None
        span_id = span_raw.hex() if len(span_raw) == SPAN_BYTES and any(span_raw) else None
        has_parent = any(parent_raw)
        good_parent = not has_parent or len(parent_raw) == SPAN_BYTES

        links: tuple[Link, ...] = ()
        packed_links: Sequence[bytes] = raw.links
        if packed_links:
            links = self._links(packed_links, batch)
        given: list[Given] = []
        canonical_events = self._events(events, given) if events else []
        repeats = key is not None and not links
        found = None
        if given_scores or not repeats:
            found = Found.of(given_scores if repeats else said)
            given = [*of_attributes(found), *given]
            if not given and interpreter.kind_of(found) in JUDGES:
                given = list(of_output(found, name))
        scores = self._keeper.accept(given, trace_id, span_id, source, batch) if given else ()
        scored = bool(scores)
        if repeats:
            whole = (name, scored, *(key or ()))
            meaning = interpreter.meanings.get(whole)
            if meaning is None or meaning.unknown is not None:
                meaning = interpreter.remembered(whole, said, name, batch, scored=scored)
            role, kind, model, detail, _ = meaning
            if ids:
                detail = interpreter.with_ids(detail, ids)
        else:
            is_root = not has_parent
            role, kind, model, detail, _ = interpreter.derive(
                found or Found(), name, batch, is_root=is_root, scored=scored, links=links
            )
        if trace_id is None or span_id is None or not good_parent:
            field, bad, size = (
                ("trace_id", trace_raw, TRACE_BYTES)
                if trace_id is None
                else ("span_id", span_raw, SPAN_BYTES)
                if span_id is None
                else ("parent_span_id", parent_raw, SPAN_BYTES)
            )
            fault, why = diagnose(field, bad, size)
            broken = SpanFault(fault, why, service, role, name, model, scores, source)
            message = wire.message_of(origin.resource, origin.scope, packed)
            refuse.span(batch, trace_id, span_id, broken, message)
            return None
        if scored and (kind in JUDGES or not repeats):
            judging = found or Found()
            targets = targets_of(judging, trace_id, links, kind)
            if targets is not None:
                self._keeper.detach(
                    scores, targets, service, role_of(judging), trace_id, span_id, source, batch
                )
                scores = ()
        start, end = raw.start_time_unix_nano, raw.end_time_unix_nano
        state = self._hash.copy()
        state.update(
            _HEAD.pack(
                span_raw, parent_raw, raw.kind, start, end, len(canonical), len(canonical_events)
            )
        )
        canonical.sort()
        state.update(
            b"\0".join(
                (
                    raw.name,
                    raw.status,
                    origin.service_bytes,
                    *canonical,
                    *canonical_events,
                    *sorted(packed_links),
                )
            )
        )
        parent = parent_raw.hex() if has_parent else None
        span = Span(
            span_id, role, scores, parent, service, name, model, start, end, kind, state.digest(), source, detail
        )  # fmt: skip
        batch.spans.setdefault(trace_id, []).append(span)
        return role if kind == MEMBER else KIND_NAMES[kind]

    def _read(self, attributes: Iterable[bytes]) -> _Read:
        """Raises Unusable."""
        seen = self._seen
        canonical: list[bytes] = []
        said: _Hits = []
        ids: _Hits = []
        key: list[object] = []
        scores: _Hits = []
        repeats = True
        for packed in attributes:
            plain, hit, value = seen.get(packed) or self._attribute(packed)
            canonical.append(plain)
            if hit is not None:
                said.append((hit, value))
                way = hit.way
                if way == REPEATS:
                    key.append(packed)
                    continue
                key.append(hit.label)
                if way == PER_SPAN:
                    ids.append((hit, value))
                elif way == SCORES:
                    scores.append((hit, value))
                else:
                    repeats = False
        return canonical, said, ids, scores, key if repeats else None

    def _attribute(self, packed: bytes) -> _Said:
        """What one attribute says. One that nobody reads is not parsed, as long as it is plain ASCII:
        then no string in it can be broken."""
        canonical = wire.canonical(packed)
        size = canonical[1] if len(canonical) > 1 and canonical[0] == _KEY_FIELD else _LONG
        if size < _LONG:
            key = canonical[2 : 2 + size]
            hit = self._hits[key] if key in self._hits else self._learn(key)
            if hit is None and canonical.isascii():
                return canonical, None, None
        name, value = _key_value(packed)
        hit = self._interpreter.lookup.hit(name)
        said = (canonical, hit, value if hit is not None else None)
        if len(packed) <= _CACHED:
            if len(self._seen) >= self._bounds.cache:
                self._seen.clear()
            self._seen[packed] = said
        return said

    def _learn(self, key: bytes) -> Hit | None:
        hit = self._interpreter.lookup.hit(key.decode("utf-8", "replace"))
        if len(self._hits) >= self._bounds.cache:
            self._hits.clear()
        self._hits[key] = hit
        return hit

    def _events(self, events: Iterable[bytes], given: list[Given]) -> list[bytes]:
        """Adds the scores of evaluation events to ``given``; gives canonical bytes. Raises Unusable."""
        canonical = []
        for packed in events:
            try:
                event = wire.Event.FromString(packed)
            except wire.WireError as error:
                raise Unusable(reasons.NOT_PROTOBUF, "event is no OTLP event protobuf") from error
            canonical_attributes, said, _, _, _ = self._read(event.attributes)
            if event.name == _EVENT_NAME:
                given.extend(of_attributes(Found.of(said)))
            parts = b"\0".join(sorted(canonical_attributes))
            canonical.append(b"%d\0%b\0%b" % (event.time_unix_nano, event.name, parts))
        return canonical

    def _links(self, links: Iterable[bytes], batch: Batch) -> tuple[Link, ...]:
        kept = []
        for packed in links:
            try:
                link = wire.Link.FromString(packed)
            except wire.WireError as error:
                raise Unusable(reasons.NOT_PROTOBUF, "link is no OTLP link protobuf") from error
            trace, span = link.trace_id, link.span_id
            if len(trace) == TRACE_BYTES and any(trace) and len(span) == SPAN_BYTES and any(span):
                kept.append(Link(trace.hex(), span.hex()))
        if len(kept) > self._bounds.links:
            batch.counts["clipped", "links"] += 1
        return tuple(kept[: self._bounds.links])

    def _is_kept(self, attributes: Iterable[bytes], origin: _Origin) -> bool:
        missing = self._keep.keys() - origin.kept
        if not missing:
            return True
        said = dict(_key_value(packed) for packed in attributes)
        return all(is_accepted(said.get(key), self._keep[key]) for key in missing)


def _key_value(packed: bytes) -> tuple[str, Any]:
    """A KeyValue as Python values. Raises Unusable."""
    try:
        pair = wire.KeyValue.FromString(packed)
    except wire.WireError as error:
        raise Unusable(reasons.NOT_PROTOBUF, "attribute is no OTLP key-value protobuf") from error
    try:
        return pair.key.decode(), wire.any_value(pair.value)
    except (wire.WireError, UnicodeDecodeError) as error:
        if wire.is_too_deep(error):
            raise Unusable(reasons.TOO_DEEP, "an attribute is nested too deep") from error
        raise Unusable(reasons.NOT_UTF8, "an attribute holds a string that is not UTF-8") from error
