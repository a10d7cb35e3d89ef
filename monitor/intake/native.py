"""The monitor's own JSON, one span a record: the fast path of everything.

A record that the typed decoder takes costs a few microseconds; only one that it refuses is read again,
loosely, to find out why and to save what can be saved (`repair`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, TypeGuard

import msgspec

from monitor.intake import reasons, refuse
from monitor.intake.batch import Batch, KafkaRecord
from monitor.intake.config import IntakeConfig, is_accepted
from monitor.intake.conventions import SERVICE_NAME
from monitor.intake.evaluations import (
    JUDGES,
    Given,
    Scorekeeper,
    of_attributes,
    role_of,
    targets_of,
)
from monitor.intake.found import PER_SPAN, REPEATS, SCORES, Found, Hit
from monitor.intake.ids import SPAN_BYTES, TRACE_BYTES, IdFault, diagnose, hex_id
from monitor.intake.loose import DECODER_ERRORS, Unusable, check_depth, read_loosely
from monitor.intake.meaning import KIND_NAMES, Interpreter
from monitor.model import MEMBER, UNKNOWN, Score, Source, Span, SpanFault

_MAX_TIME: Final = 2**64 - 1  # as OTLP's fixed64
_HASH_BYTES: Final = 16
_ZEROS: Final = bytes(SPAN_BYTES)


class NativeScore(msgspec.Struct, gc=False):
    """``value``: safety score in [0, 1]; 0 is safe, 1 violates the policy."""

    scorer: str
    value: float
    version: str | None = None


class NativeSpan(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One span in the monitor's own JSON. Fields beside these count as attributes.

    ``trace_id`` is 32, ``span_id`` and ``parent_span_id`` are 16 hex digits; no parent, "" or zeros is a root.
    ``role`` is planner, retrieval, tool_call or completion (also evaluator, guardrail: no members).
    Times are nanoseconds since 1970; ``timestamp`` (ms) is when the span was logged and no content.
    """

    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    service: str | None = None
    name: str | None = None
    role: str | None = None
    model_version: str | None = None
    start_unix_nano: Annotated[int, msgspec.Meta(ge=0)] | None = None
    end_unix_nano: Annotated[int, msgspec.Meta(ge=0)] | None = None
    scores: list[NativeScore] | None = None
    attributes: dict[str, Any] | None = None
    timestamp: float | str | None = None


_FIELDS: Final = frozenset(NativeSpan.__struct_fields__)


class NativeDecoder:
    def __init__(self, config: IntakeConfig, interpreter: Interpreter, keeper: Scorekeeper) -> None:
        self._bounds = config.bounds
        self._label = config.bounds.label
        self._keep = config.keep
        self._interpreter = interpreter
        self._keeper = keeper
        self._scales_differ = bool(config.scorers)
        self._decode = msgspec.json.Decoder(NativeSpan).decode
        self._canonical = msgspec.msgpack.Encoder(order="deterministic").encode
        self._canonical_json = msgspec.json.Encoder(order="deterministic").encode
        self._parents: dict[str, str] = {}
        self._hash = blake2b(key=config.token_key, digest_size=_HASH_BYTES, person=b"native-span")

    def decode(
        self, topic: str, partition: int, records: Sequence[KafkaRecord], batch: Batch
    ) -> None:
        """Every record becomes a span, a fault, a dead letter, or is counted as ignored."""
        decode, accept = self._decode, self._accept
        limit = self._bounds.message_bytes
        roles: list[str] = []
        for record in records:
            value = record.value
            if value is None:
                batch.counts["ignored", "tombstone"] += 1
                continue
            source = Source(topic, partition, record.offset, 0, record.timestamp)
            try:
                if len(value) > limit:
                    detail = f"record has {len(value)} bytes, at most {limit} are read"
                    raise Unusable(reasons.TOO_LARGE, detail)
                try:
                    raw = decode(value)
                except DECODER_ERRORS:
                    raw, refused = self._repair(value)
                else:
                    refused = ()
                role = accept(raw, source, value, batch, refused)
            except Unusable as unusable:
                refuse.item(batch, unusable.reason, unusable.detail, source, value)
                continue
            if role is not None:
                roles.append(role)
        for role, count in Counter(roles).items():
            batch.counts["spans", role] += count

    def _accept(
        self,
        raw: NativeSpan,
        source: Source,
        value: bytes,
        batch: Batch,
        refused: Sequence[Given],
    ) -> str | None:
        """Puts a good span into ``batch`` and gives its role; None if it became something else."""
        if self._keep and not self._is_kept(raw):
            batch.counts["ignored", "keep"] += 1
            return None
        interpreter, labels = self._interpreter, self._interpreter.labels
        service = raw.service
        service = (labels.get(service) or interpreter.label(service, batch)) if service else UNKNOWN
        own_model = raw.model_version or None
        if own_model is not None:
            own_model = labels.get(own_model) or interpreter.label(own_model, batch)
        name = raw.name
        name = (interpreter.names.get(name) or interpreter.name(name, batch)) if name else ""
        own_role = raw.role or None
        if own_role == UNKNOWN:
            own_role = None  # as if absent: attributes may know
        start, end = raw.start_unix_nano or 0, raw.end_unix_nano or 0
        if start > _MAX_TIME or end > _MAX_TIME:
            raise Unusable(reasons.WRONG_TYPE, "a time has more than 64 bits")

        # --- what the attributes say
        attributes = raw.attributes
        key: list[object] = [own_role, own_model, name]
        repeats, scoring = True, False
        ids: list[tuple[Hit, Any]] = []
        if attributes:
            known = interpreter.lookup.known
            for attribute, content in attributes.items():
                hit = (
                    known[attribute] if attribute in known else interpreter.lookup.learn(attribute)
                )
                if hit is not None:
                    key.append(attribute)
                    way = hit.way
                    if way == REPEATS:
                        key.append(content)
                    elif way == PER_SPAN:
                        ids.append((hit, content))
                    elif way == SCORES:
                        scoring = True
                    else:
                        repeats = False
                if content.__class__ is not str and isinstance(content, dict | list):
                    repeats = repeats and hit is None  # no key of a dict
                    check_depth(content, self._bounds.nesting)

        # --- identity
        trace_raw = raw.trace_id
        trace_id = trace_raw if trace_raw in batch.spans else hex_id(trace_raw or "", TRACE_BYTES)
        span_id: str | None
        try:  # hex_id, without the call
            octets = bytes.fromhex(raw.span_id or "")
            span_id = octets.hex()
            if (
                len(octets) != SPAN_BYTES
                or len(raw.span_id or "") != 2 * SPAN_BYTES
                or octets == _ZEROS
            ):
                span_id = None
        except ValueError:
            span_id = None
        parent = parent_raw = raw.parent_span_id or None
        if parent_raw is not None:
            parent = self._parents.get(parent_raw) or self._parent(parent_raw)
            if parent is None and not parent_raw.strip("0"):
                parent_raw = None  # zeros: a root

        # --- scores and meaning
        given = raw.scores
        scores: tuple[Score, ...] = ()
        found = Found.of(self._said(attributes)) if scoring or not repeats else None
        if found is None and not refused and not self._scales_differ:
            if given:
                one = given[0]
                version = one.version or UNKNOWN
                if (
                    len(given) == 1
                    and 0.0 <= one.value <= 1.0
                    and 0 < len(one.scorer) <= self._label
                    and len(version) <= self._label
                ):
                    scores = (Score(one.scorer, version, one.value),)
                else:
                    scores = self._scores(raw, (), None, trace_id, span_id, source, batch)
        else:
            scores = self._scores(raw, refused, found, trace_id, span_id, source, batch)
        scored = bool(scores)
        if repeats:
            key.append(scored)
            whole = tuple(key)
            meaning = interpreter.meanings.get(whole)
            if meaning is None or meaning.unknown is not None:
                meaning = interpreter.remembered(
                    whole,
                    self._said(attributes),
                    name,
                    batch,
                    own_role=own_role,
                    own_model=own_model,
                    is_native=True,
                    scored=scored,
                )
            role, kind, model, detail, _ = meaning
            if ids:
                detail = interpreter.with_ids(detail, ids)
        else:
            role, kind, model, detail, _ = interpreter.derive(
                found or Found(),
                name,
                batch,
                own_role=own_role,
                own_model=own_model,
                is_root=parent_raw is None,
                is_native=True,
                scored=scored,
            )

        if trace_id is None or span_id is None or (parent is None and parent_raw is not None):
            fault, why = self._fault(raw, trace_id, span_id)
            broken = SpanFault(fault, why, service, role, name, model, scores, source)
            refuse.span(batch, trace_id, span_id, broken, value)
            return None
        if scored and (kind in JUDGES or found is not None):
            targets = targets_of(found or Found(), trace_id, (), kind)
            if targets is not None:
                as_role = role_of(found or Found())
                self._keeper.detach(
                    scores, targets, service, as_role, trace_id, span_id, source, batch
                )
                scores = ()

        head = (span_id, parent, raw.service, raw.name, own_role, raw.model_version, start, end)
        content_hash = self._content_hash((head, given, attributes))
        span = Span(
            span_id, role, scores, parent, service, name, model, start, end, kind, content_hash, source, detail
        )  # fmt: skip
        siblings = batch.spans.get(trace_id)
        if siblings is None:
            batch.spans[trace_id] = [span]
        else:
            siblings.append(span)
        return role if kind == MEMBER else KIND_NAMES[kind]

    def _said(self, attributes: dict[str, Any] | None) -> list[tuple[Hit, Any]]:
        """What the conventions read."""
        lookup = self._interpreter.lookup
        hits = [(lookup.hit(key), value) for key, value in (attributes or {}).items()]
        return [(hit, value) for hit, value in hits if hit is not None]

    def _parent(self, raw: str) -> str | None:
        """A parent's id, remembered: its children come together."""
        parent = hex_id(raw, SPAN_BYTES)
        if parent is not None:
            if len(self._parents) >= self._bounds.cache:
                self._parents.clear()
            self._parents[raw] = parent
        return parent

    def _content_hash(self, content: object) -> bytes:
        state = self._hash.copy()
        try:
            state.update(self._canonical(content))
        except OverflowError:  # an attribute is an integer past 64 bits
            state.update(self._canonical_json(content))
        return state.digest()

    def _scores(
        self,
        raw: NativeSpan,
        refused: Sequence[Given],
        found: Found | None,
        trace_id: str | None,
        span_id: str | None,
        source: Source,
        batch: Batch,
    ) -> tuple[Score, ...]:
        """Own scores first; an attribute adds only a scorer that has none there."""
        given = [Given(s.scorer, s.value, None, s.version) for s in raw.scores or ()]
        given.extend(refused)
        if found is not None:
            own = {each.scorer for each in given}
            given.extend(each for each in of_attributes(found) if each.scorer not in own)
        return self._keeper.accept(given, trace_id, span_id, source, batch) if given else ()

    @staticmethod
    def _fault(raw: NativeSpan, trace_id: str | None, span_id: str | None) -> IdFault:
        if trace_id is None:
            return diagnose("trace_id", raw.trace_id, TRACE_BYTES)
        if span_id is None:
            return diagnose("span_id", raw.span_id, SPAN_BYTES)
        return diagnose("parent_span_id", raw.parent_span_id, SPAN_BYTES)

    def _is_kept(self, raw: NativeSpan) -> bool:
        attributes = raw.attributes or {}
        return all(
            is_accepted(raw.service if key == SERVICE_NAME else attributes.get(key), accepted)
            for key, accepted in self._keep.items()
        )

    def _repair(self, value: bytes) -> tuple[NativeSpan, Sequence[Given]]:
        """A record that the typed decoder refused: unknown fields become attributes, bad scores are taken
        out and given back, ids of another type become their text. Raises Unusable for the rest."""
        if not value:
            raise Unusable(reasons.EMPTY, "record has no bytes")
        loaded = read_loosely(value, self._bounds.nesting)
        extra = {key: loaded.pop(key) for key in list(loaded) if key not in _FIELDS}
        if extra:
            attributes = loaded.get("attributes")
            if attributes is None:
                loaded["attributes"] = extra
            elif isinstance(attributes, dict):
                loaded["attributes"] = {**extra, **attributes}
        for field in ("start_unix_nano", "end_unix_nano", "timestamp"):
            number = loaded.get(field)
            if _is_whole(number) and abs(number) > _MAX_TIME:
                raise Unusable(reasons.WRONG_TYPE, f"{field} has more than 64 bits")
        for field in ("trace_id", "span_id", "parent_span_id"):
            if loaded.get(field) is not None and not isinstance(loaded[field], str):
                # Never a good id: a list's or number's text has no 16 or 32 hex digits' shape by promise.
                loaded[field] = f"not a string: {type(loaded[field]).__name__}"
        refused: list[Given] = []
        if isinstance(loaded.get("scores"), list):
            good = []
            for each in loaded["scores"]:
                if _is_score(each):
                    good.append(each)
                else:
                    refused.append(_given(each))
            loaded["scores"] = good
        try:
            return msgspec.convert(loaded, NativeSpan), refused
        except msgspec.ValidationError as error:
            raise Unusable(reasons.WRONG_TYPE, str(error)) from error


def _is_score(item: object) -> bool:
    """Whether the typed decoder takes it (`msgspec.convert` itself fails on integers past a float)."""
    if not isinstance(item, dict) or not isinstance(item.get("version"), str | None):
        return False
    value = item.get("value")
    return isinstance(item.get("scorer"), str) and (
        isinstance(value, float) or (_is_whole(value) and abs(value) <= _MAX_TIME)
    )


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _given(item: object) -> Given:
    """A score that the typed decoder did not take, so that its refusal names what is wrong with it."""
    if not isinstance(item, dict):
        return Given(None, None)
    scorer, version = item.get("scorer"), item.get("version")
    return Given(
        scorer if isinstance(scorer, str) else None,
        item.get("value"),
        None,
        version if isinstance(version, str) else None,
    )
