"""One OTLP span, however it was written: what both encodings make of it.

The decoders cut messages into spans and read their fields; here is what a span means, what is hashed of it,
and where it goes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from monitor.intake import reasons
from monitor.intake.attributes import Attributes, Hits, Said, hits
from monitor.intake.batch import Batch
from monitor.intake.config import IntakeConfig, is_accepted
from monitor.intake.conventions import SCORE_EVENTS, SERVICE_NAME
from monitor.intake.envelope import Origin, Unjoinable
from monitor.intake.evaluations import (
    JUDGES,
    Given,
    Scorekeeper,
    of_attributes,
    of_output,
    role_of,
    targets_of,
)
from monitor.intake.found import PER_SPAN, REPEATS, SCORES, Found, text_of
from monitor.intake.ids import IdFault
from monitor.intake.loose import Unusable
from monitor.intake.meaning import KIND_NAMES, Interpreter
from monitor.model import MEMBER, UNKNOWN, Link, Score, Source, Span, SpanDetail, SpanFault

_HASH_BYTES: Final = 16
_RESOURCE: Final = 4_096  # bytes of a resource that is worth remembering

# Span and parent id, kind, start, end, number of attributes and events: the fixed part of what is hashed.
_HEAD: Final = struct.Struct("<8s8siQQII")


class Origins:
    """Services of resources, remembered by their bytes."""

    def __init__(
        self,
        config: IntakeConfig,
        attributes: Attributes,
        split: Callable[[bytes], Iterable[bytes]],
    ) -> None:
        """``split`` cuts a resource into its attributes; none where it is broken."""
        self._split = split
        self._label = config.bounds.label
        self._cache = config.bounds.cache
        self._keep = config.keep
        self._attributes = attributes
        self._known: dict[bytes, tuple[str, frozenset[str]]] = {}

    def origin(self, resource: bytes, scope: bytes) -> Origin:
        service, kept = self._known.get(resource) or self._read(resource)
        return Origin(resource, scope, service, service.encode(), kept)

    def _read(self, resource: bytes) -> tuple[str, frozenset[str]]:
        """Service name and satisfied keep rules of a resource; what does not decode is not there."""
        said: dict[str, Any] = {}
        for packed in self._split(resource):
            try:
                key, value = self._attributes.key_value(packed)
            except Unusable:
                continue
            if key == SERVICE_NAME or key in self._keep:
                said.setdefault(key, value)
        service = said.get(SERVICE_NAME)
        service = service[: self._label] if isinstance(service, str) and service else UNKNOWN
        said[SERVICE_NAME] = service
        kept = frozenset(
            key for key, accepted in self._keep.items() if is_accepted(said.get(key), accepted)
        )
        if len(resource) <= _RESOURCE:
            if len(self._known) >= self._cache:
                self._known.clear()
            self._known[resource] = service, kept
        return service, kept

    def is_kept(self, packed: Sequence[bytes], origin: Origin) -> bool:
        """Whether the keep rules take a span or log record with these attributes."""
        missing = self._keep.keys() - origin.kept
        if not missing:
            return True
        said = dict(map(self._attributes.key_value, packed))
        return all(is_accepted(said.get(key), self._keep[key]) for key in missing)


class SpanReader:
    """Reads attributes, events and links of spans, and puts spans into batches."""

    def __init__(
        self,
        config: IntakeConfig,
        interpreter: Interpreter,
        keeper: Scorekeeper,
        attributes: Attributes,
    ) -> None:
        self._bounds = config.bounds
        self._interpreter = interpreter
        self._keeper = keeper
        self._attributes = attributes
        self._scales_differ = bool(config.scorers)
        self._hash = blake2b(key=config.token_key, digest_size=_HASH_BYTES, person=b"otlp-span")

    def events(
        self, events: Iterable[tuple[int, str, Sequence[bytes]]], given: list[Given]
    ) -> list[bytes]:
        """What is hashed of events (time, name, attributes); their scores are added to ``given``. Raises
        Unusable."""
        hashed = []
        for time, name, attributes in events:
            said = self._all(attributes, "an event")
            if name in SCORE_EVENTS:
                given.extend(of_attributes(Found.of(hits(said))))
            spelled = b"\0".join(sorted([each[0] for each in said]))
            hashed.append(b"%d\0%b\0%b" % (time, name.encode(), spelled))
        return hashed

    def links(
        self, links: Iterable[tuple[bytes, bytes, Sequence[bytes]]], batch: Batch
    ) -> tuple[tuple[Link, ...], list[bytes]]:
        """Links that name a span, and what is hashed of all; given as ids (empty: unusable) and attributes.
        Raises Unusable."""
        kept = []
        hashed = []
        for trace, span, attributes in links:
            spelled = trace + span
            if attributes:
                said = self._all(attributes, "a link")
                spelled = b"\0".join((spelled, *sorted([each[0] for each in said])))
            hashed.append(spelled)
            if trace and span:
                kept.append(Link(trace.hex(), span.hex()))
        if len(kept) > self._bounds.links:
            batch.counts["clipped", "links"] += 1
            del kept[self._bounds.links :]
        if len(hashed) > 1:
            hashed.sort()
        return tuple(kept), hashed

    def _all(self, attributes: Sequence[bytes], of: str) -> list[Said]:
        if len(attributes) > self._bounds.attributes:
            raise Unusable(
                reasons.TOO_MANY_ATTRIBUTES, f"{of} of the span has {len(attributes)} attributes"
            )
        return list(map(self._attributes.__getitem__, attributes))

    def accept(
        self,
        origin: Origin,
        source: Source,
        trace_id: str | None,
        span_octets: bytes,
        parent_octets: bytes,
        fault: IdFault | None,
        name: str,
        kind_number: int,
        start: int,
        end: int,
        status: bytes,
        said: list[Said],
        given: list[Given],
        events: Sequence[bytes],
        links: tuple[Link, ...],
        hashed_links: Sequence[bytes],
        batch: Batch,
    ) -> str:
        """Puts one span into ``batch`` and gives its role. ``trace_id`` is None and ``span_octets`` empty where
        the id is unusable, ``parent_octets`` empty where there is none; ``fault`` says why the span cannot be
        joined; ``given``: scores of its events. Raises Unusable, and Unjoinable for one with a fault."""
        try:
            head = _HEAD.pack(
                span_octets, parent_octets, kind_number, start, end, len(said), len(events)
            )
        except struct.error as error:
            raise Unusable(reasons.WRONG_TYPE, "a time or the kind is out of range") from error
        interpreter = self._interpreter
        raw_name = name
        name = (interpreter.names.get(name) or interpreter.name(name, batch)) if name else ""
        span_id = span_octets.hex() or None

        # --- what the attributes say
        spelled = [each[0] for each in said]
        key: list[object] = [name]  # identifies the span's meaning if all in it repeats
        ids: Hits = []
        scoring: Hits = []
        repeats = True
        for plain, hit, way, value in said:
            if hit is None:
                continue
            if way == REPEATS:
                key.append(plain)
                continue
            key.append(hit.label)
            if way == PER_SPAN:
                ids.append((hit, value))
            elif way == SCORES:
                scoring.append((hit, value))
            else:
                repeats = False

        # --- scores and meaning
        found = None
        scores: tuple[Score, ...] = ()
        plain_score = self._plain_score(scoring) if scoring and repeats and not given else None
        if plain_score is not None:
            scores = (plain_score,)
        elif scoring or given or not repeats:
            found = Found.of(scoring if repeats else hits(said))
            given = [*of_attributes(found), *given]
            if not given and not repeats and interpreter.kind_of(found) in JUDGES:
                given = list(of_output(found, name))
            if given:
                scores = self._keeper.accept(given, trace_id, span_id, source, batch)
        scored = bool(scores)
        if repeats:
            key.append(scored)
            identity = tuple(key)
            meaning = interpreter.meanings.get(identity)
            if meaning is None or meaning.unknown is not None:
                meaning = interpreter.remembered(identity, hits(said), name, batch, scored=scored)
            role, kind, model, detail, _ = meaning
            if ids:
                detail = interpreter.with_ids(detail, ids)
            if links:
                detail = _with_links(detail, links)
        else:
            role, kind, model, detail, _ = interpreter.derive(
                found or Found(),
                name,
                batch,
                is_root=not parent_octets,
                scored=scored,
                links=links,
            )

        service = origin.service
        if fault is not None or trace_id is None or span_id is None:
            reason, why = fault or (reasons.MISSING_ID, "an id is absent")
            broken = SpanFault(reason, why, service, role, name, model, scores, source)
            raise Unjoinable(trace_id, span_id, broken)
        if scored and (found is not None or kind in JUDGES):
            found = found or Found.of(scoring)
            targets = targets_of(found, trace_id, links, kind)
            if targets is not None:
                self._keeper.detach(
                    scores, targets, service, role_of(found), trace_id, span_id, source, batch
                )
                scores = ()

        spelled.sort()
        if events or hashed_links:
            spelled += events
            spelled += hashed_links
        state = self._hash.copy()
        state.update(b"\0".join((head, raw_name.encode(), status, origin.service_bytes, *spelled)))
        span = Span(
            span_id,
            role,
            scores,
            parent_octets.hex() or None,
            service,
            name,
            model,
            start,
            end,
            kind,
            state.digest(),
            source,
            detail,
        )
        siblings = batch.spans.get(trace_id)
        if siblings is None:
            batch.spans[trace_id] = [span]
        else:
            siblings.append(span)
        return role if kind == MEMBER else KIND_NAMES[kind]

    def _plain_score(self, scoring: Hits) -> Score | None:
        """What `Scorekeeper.accept` makes of one good score by name and value, at a tenth of the cost; None for
        all else."""
        if self._scales_differ:
            return None
        name = value = None
        for hit, held in scoring:
            field = hit.places[0].field if len(hit.places) == 1 else None
            if field == "evaluation_name" and name is None:
                name = text_of(held)
            elif field == "evaluation_value" and value is None:
                value = held
            elif field != "evaluation_label":
                return None
        if (
            name is not None
            and len(name) <= self._bounds.label
            and isinstance(value, float)
            and 0.0 <= value <= 1.0
        ):
            return Score(name, UNKNOWN, value)
        return None


def _with_links(detail: SpanDetail | None, links: tuple[Link, ...]) -> SpanDetail:
    if detail is None:
        return SpanDetail(links=links)
    return msgspec.structs.replace(detail, links=links)
