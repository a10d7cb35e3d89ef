"""OTLP messages, whatever their encoding and signal: cut into items, each taken or refused, all counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from monitor.intake import reasons, refuse
from monitor.intake.batch import Batch, KafkaRecord
from monitor.intake.bounds import Bounds
from monitor.intake.loose import Unusable
from monitor.model import Source, SpanFault

Item = TypeVar("Item")


class Origin(NamedTuple):
    """Where a span or log record stands in its message; ``resource`` and ``scope`` as they came."""

    resource: bytes
    scope: bytes
    service: str
    service_bytes: bytes
    kept: frozenset[str]  # keep rules that the resource satisfies


class Unjoinable(Exception):
    """A span whose identity is unusable."""

    def __init__(self, trace_id: str | None, span_id: str | None, fault: SpanFault) -> None:
        super().__init__(fault.fault)
        self.trace_id = trace_id
        self.span_id = span_id
        self.fault = fault


class Messages(Generic[Item]):
    """A decoder of one encoding and signal. ``Item``: a span or a log record."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def cut(self, value: bytes) -> list[tuple[Origin, Item]]:
        """The items of a message. Raises Unusable for the message as a whole."""
        raise NotImplementedError

    def take(self, item: Item, origin: Origin, source: Source, batch: Batch) -> str | None:
        """Puts an item into ``batch``; gives a span's role, None for what became something else. Raises
        Unusable, Unjoinable."""
        raise NotImplementedError

    def whole(self, value: bytes, index: int, origin: Origin, item: Item) -> bytes:
        """The smallest message that holds the item, the one of this index of ``value``, with its resource:
        what a dead letter keeps, and redrive sends."""
        raise NotImplementedError

    def decode(
        self, topic: str, partition: int, records: Sequence[KafkaRecord], batch: Batch
    ) -> None:
        """Every item becomes a span, scores, a fault, a dead letter or is counted as ignored; a message that
        cannot be cut into items is a dead letter whole."""
        roles: list[str] = []
        take, bounds = self.take, self._bounds
        for record in records:
            value = record.value
            if not value:
                batch.counts["ignored", "tombstone" if value is None else "empty"] += 1
                continue
            offset, timestamp = record.offset, record.timestamp
            try:
                if len(value) > bounds.message_bytes:  # the client has decompressed it
                    detail = (
                        f"message has {len(value)} bytes, at most {bounds.message_bytes} are read"
                    )
                    raise Unusable(reasons.TOO_LARGE, detail)
                items = self.cut(value)
                if len(items) > bounds.spans_per_message:
                    detail = f"message has {len(items)} items, at most {bounds.spans_per_message} are read"
                    raise Unusable(reasons.TOO_MANY_SPANS, detail)
            except Unusable as unusable:
                source = Source(topic, partition, offset, 0, timestamp)
                refuse.item(batch, unusable.reason, unusable.detail, source, value)
                continue
            if not items:
                batch.counts["ignored", "empty"] += 1
            for index, (origin, item) in enumerate(items):
                source = Source(topic, partition, offset, index, timestamp)
                try:
                    role = take(item, origin, source, batch)
                except Unusable as unusable:
                    whole = self.whole(value, index, origin, item)
                    refuse.item(batch, unusable.reason, unusable.detail, source, whole)
                except Unjoinable as broken:
                    whole = self.whole(value, index, origin, item)
                    refuse.span(batch, broken.trace_id, broken.span_id, broken.fault, whole)
                else:
                    if role is not None:
                        roles.append(role)
        for role, count in Counter(roles).items():
            batch.counts["spans", role] += count
