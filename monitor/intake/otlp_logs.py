"""OTLP log records: those that carry an evaluation's result are scores of the span that they name.

Id attributes say which span, else the record's own trace and span id. All other log records are counted and
not read any further: most topics of logs hold little else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from monitor.intake import reasons, refuse, wire
from monitor.intake.attributes import Attributes, ProtoAttributes, hits
from monitor.intake.batch import Batch
from monitor.intake.config import IntakeConfig
from monitor.intake.conventions import SCORE_EVENTS
from monitor.intake.envelope import Messages, Origin
from monitor.intake.evaluations import Scorekeeper, of_attributes, role_of, targets_of, value_of
from monitor.intake.found import Found
from monitor.intake.ids import SPAN_BYTES, TRACE_BYTES, diagnose, hex_id
from monitor.intake.json_messages import LOGS, Slicer
from monitor.intake.json_messages import attributes_of as json_attributes_of
from monitor.intake.json_values import JsonAttributes
from monitor.intake.loose import DECODER_ERRORS, Unusable
from monitor.intake.meaning import Interpreter
from monitor.intake.otlp import Origins
from monitor.intake.otlp_proto import attributes_of, sliced
from monitor.intake.scores import Refusal
from monitor.model import EVALUATOR, Link, Source

_MARKS: Final = tuple(name.encode() for name in SCORE_EVENTS)
_EVENT_NAME: Final = "event.name"  # the attribute that came before the field of this name


class _Logs(Messages[bytes]):
    """An item is a log record, as its bytes."""

    def __init__(
        self, config: IntakeConfig, keeper: Scorekeeper, attributes: Attributes, origins: Origins
    ) -> None:
        super().__init__(config.bounds)
        self._keep = bool(config.keep)
        self._attributes = attributes
        self._origins = origins
        self._keeper = keeper

    def parse(self, item: bytes) -> tuple[str, str, str, list[bytes]]:
        """Event name, trace and span id in hex, and attributes of a log record. Raises Unusable."""
        raise NotImplementedError

    def take(self, item: bytes, origin: Origin, source: Source, batch: Batch) -> None:
        if not any(mark in item for mark in _MARKS):
            batch.counts["ignored", "log_record"] += 1
            return
        event_name, trace_raw, span_raw, attributes = self.parse(item)
        if len(attributes) > self._bounds.attributes:
            raise Unusable(
                reasons.TOO_MANY_ATTRIBUTES, f"log record has {len(attributes)} attributes"
            )
        if event_name not in SCORE_EVENTS and not self._is_named(attributes):
            batch.counts["ignored", "log_record"] += 1
            return
        said = hits(map(self._attributes.__getitem__, attributes))
        if self._keep and not self._origins.is_kept(attributes, origin):
            batch.counts["ignored", "keep"] += 1
            return
        found = Found.of(said)
        given = list(of_attributes(found))
        if not given:  # an evaluation that failed
            batch.counts["ignored", "no_score"] += 1
            return
        trace_id, span_id = hex_id(trace_raw, TRACE_BYTES), hex_id(span_raw, SPAN_BYTES)
        own = [Link(trace_id, span_id)] if trace_id is not None and span_id is not None else []
        targets = targets_of(found, trace_id, tuple(own), EVALUATOR)
        if not targets:
            why = diagnose("trace_id", trace_raw, TRACE_BYTES)
            if trace_id is not None:
                why = diagnose("span_id", span_raw, SPAN_BYTES)
            for each in given:
                refusal = Refusal(reasons.NO_SPAN_ID, f"a log record's {why[1]}", each.scorer)
                refuse.score(batch, trace_id, span_id, refusal, source, value_of(each))
            return
        scores = self._keeper.accept(given, trace_id, span_id, source, batch)
        self._keeper.detach(
            scores, targets, origin.service, role_of(found), trace_id, span_id, source, batch
        )

    def _is_named(self, attributes: Sequence[bytes]) -> bool:
        pairs = map(self._attributes.key_value, attributes)
        names = [value for key, value in pairs if key == _EVENT_NAME and isinstance(value, str)]
        return not SCORE_EVENTS.isdisjoint(names)


class ProtoLogs(_Logs):
    def __init__(self, config: IntakeConfig, interpreter: Interpreter, keeper: Scorekeeper) -> None:
        attributes = ProtoAttributes(interpreter.lookup, config.bounds)
        super().__init__(config, keeper, attributes, Origins(config, attributes, attributes_of))

    def cut(self, value: bytes) -> list[tuple[Origin, bytes]]:
        return [(self._origins.origin(r, scope), item) for r, scope, item in sliced(value)]

    def whole(self, value: bytes, index: int, origin: Origin, item: bytes) -> bytes:
        del value, index
        return wire.message_of(origin.resource, origin.scope, item)

    def parse(self, item: bytes) -> tuple[str, str, str, list[bytes]]:
        try:
            record = wire.LogRecord.FromString(item)
            name = record.event_name.decode()
        except wire.WireError as error:
            detail = "log record is no OTLP protobuf"
            raise Unusable(reasons.NOT_PROTOBUF, detail) from error
        except UnicodeDecodeError as error:
            raise Unusable(reasons.NOT_UTF8, "an event name is not UTF-8") from error
        return name, record.trace_id.hex(), record.span_id.hex(), list(record.attributes)


class _Record(msgspec.Struct, rename="camel", gc=False):
    trace_id: str | None = None
    span_id: str | None = None
    event_name: str | None = None
    attributes: list[Raw] | None = None


_record: Final = msgspec.json.Decoder(_Record, strict=False).decode


class JsonLogs(_Logs):
    def __init__(self, config: IntakeConfig, interpreter: Interpreter, keeper: Scorekeeper) -> None:
        attributes = JsonAttributes(interpreter.lookup, config.bounds)
        super().__init__(
            config, keeper, attributes, Origins(config, attributes, json_attributes_of)
        )
        self._slicer = Slicer(LOGS)

    def cut(self, value: bytes) -> list[tuple[Origin, bytes]]:
        return [
            (self._origins.origin(resource, scope), item)
            for resource, scope, item in self._slicer.slices(value)
        ]

    def whole(self, value: bytes, index: int, origin: Origin, item: bytes) -> bytes:
        del value, index
        return self._slicer.message_of(origin.resource, origin.scope, item)

    def parse(self, item: bytes) -> tuple[str, str, str, list[bytes]]:
        try:
            record = _record(item)
        except msgspec.ValidationError as error:
            raise Unusable(reasons.WRONG_TYPE, str(error)) from error
        except DECODER_ERRORS as error:
            raise Unusable(
                reasons.NOT_UTF8, "log record holds a string that is not UTF-8"
            ) from error
        attributes = list(map(bytes, record.attributes or ()))
        return record.event_name or "", record.trace_id or "", record.span_id or "", attributes
