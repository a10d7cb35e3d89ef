"""What a span is: its role, kind and model version, and what composition needs of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from monitor.intake.batch import Batch
from monitor.intake.calls import answered_id, asks_for_tool, requested_ids
from monitor.intake.config import IntakeConfig
from monitor.intake.content import request, request_of_parts
from monitor.intake.conventions import (
    AGENT_SPAN_NAME_PREFIXES,
    DATASTORE,
    ROWS,
    TOOL_SPAN_NAME_PREFIXES,
    Field,
    Unit,
)
from monitor.intake.found import NO_RANK, REPEATS, Found, Hit, Lookup, text_of
from monitor.intake.tags import PRIVATE_READ, READ_TAGS, UNTRUSTED_READ, TagTable
from monitor.intake.tokens import TOKEN_BYTES, Content, Tokenizer, shared
from monitor.model import (
    ALIAS_MODEL,
    EVALUATOR,
    GUARDRAIL,
    MEMBER,
    MODEL_CALL,
    OTHER,
    OVERFLOW,
    PLAIN,
    ROLES,
    TRUNCATED,
    UNKNOWN,
    WRAPPER,
    Link,
    SpanDetail,
)

# What a retriever returns is the organisation's own and may have been written by a stranger.
_RETRIEVER_TAGS: Final = (PRIVATE_READ, UNTRUSTED_READ)

OWN_ROLES: Final[dict[str, Unit]] = {
    "planner": "planner",
    "retrieval": "retrieval",
    "tool_call": "tool",
    "completion": "llm",
    "evaluator": "evaluator",
    "guardrail": "guardrail",
}
_KINDS: Final[dict[Unit | None, int]] = {
    "evaluator": EVALUATOR,
    "guardrail": GUARDRAIL,
    "wrapper": WRAPPER,
    "plain": PLAIN,
    "embedding": PLAIN,
}
# Characters of what identifies a meaning that is worth remembering: names and model versions are short.
_REMEMBERED: Final = 2_048
_RAW_ROLE: Final = 64  # characters of a raw value as a label; an operation's name has a dozen
# Label of a metric for spans that are no members.
KIND_NAMES: Final[dict[int, str]] = {
    EVALUATOR: "evaluator",
    GUARDRAIL: "guardrail",
    WRAPPER: "wrapper",
    PLAIN: "plain",
}
# Fields that make a span a GenAI span; a session or some input alone does not.
_GENAI: Final[frozenset[Field]] = frozenset(
    {
        "genai", "own_model", "model", "model_alias", "tool_name", "tool_call_id", "finish",
        "evaluation_name",
    }
)  # fmt: skip
# Whose model is not the agent's: an embedding's, and the one that a search embeds or ranks with.
_OTHER_MODELS: Final[frozenset[Unit | None]] = frozenset({"embedding", "retrieval"})


class Meaning(NamedTuple):
    role: str
    kind: int
    model_version: str
    detail: SpanDetail | None
    unknown: str | None = None  # raw value that no convention maps


class Interpreter:
    """Built once from the settings. Its caches are bounded and change no result."""

    def __init__(self, config: IntakeConfig) -> None:
        bounds = config.bounds
        self.bounds = bounds
        self.lookup = Lookup((*config.conventions, *ROWS), bounds.cache)
        self._tags = TagTable(config.tag_rules, config.tool_tags, bounds.cache)
        self._tokenizer = Tokenizer(config.token_key, bounds)
        self._tokens_bytes = bounds.tokens * TOKEN_BYTES
        self._raw_roles: set[str] = set()
        self.meanings: dict[tuple[object, ...], Meaning] = {}
        self.labels: dict[str, str] = {}
        self.names: dict[str, str] = {}

    @staticmethod
    def kind_of(found: Found) -> int:
        """Kind by what the span says it is, before its scores are known."""
        own = found.text("role")
        return _KINDS.get(found.unit if own is None else OWN_ROLES.get(own), MEMBER)

    def label(self, text: str, batch: Batch) -> str:
        """A string that becomes a label (service, model version), one object for all that are equal."""
        return self.labels.get(text) or self._bounded(self.labels, text, self.bounds.label, batch)

    def name(self, text: str, batch: Batch) -> str:
        """A span's name, likewise."""
        return self.names.get(text) or self._bounded(self.names, text, self.bounds.name, batch)

    def _bounded(self, known: dict[str, str], text: str, limit: int, batch: Batch) -> str:
        if len(text) > limit:
            batch.counts["clipped", "label" if known is self.labels else "name"] += 1
            return text[:limit]
        if len(known) >= self.bounds.cache:
            known.clear()
        known[text] = text
        return text

    def remembered(
        self,
        key: tuple[object, ...],
        said: Iterable[tuple[Hit, Any]],
        name: str,
        batch: Batch,
        **own: Any,
    ) -> Meaning:
        """The meaning of a span whose attributes all repeat, but for ids and scores, as of the first such
        span. ``key`` holds everything that the meaning depends on; ``own`` as for `derive`."""
        meaning = self.meanings.get(key)
        if meaning is not None:
            if meaning.unknown is not None:
                self._count_unknown(meaning.unknown, batch)
            return meaning
        found = Found()
        for hit, value in said:
            if hit.way == REPEATS:
                found.add(value, hit)
            else:  # that it is there can make a GenAI span; its value is no part of the meaning
                found.best.update((place.field, (0, None)) for place in hit.places)
        meaning = self.derive(found, name, batch, **own)
        if sum(len(part) for part in key if isinstance(part, str | bytes)) <= _REMEMBERED:
            if len(self.meanings) >= self.bounds.cache:
                self.meanings.clear()
            self.meanings[key] = meaning
        return meaning

    def with_ids(
        self, detail: SpanDetail | None, ids: Iterable[tuple[Hit, Any]]
    ) -> SpanDetail | None:
        """``detail`` of a remembered meaning with a span's own ids."""
        # As Found does it, for these two fields alone: this runs for every span that has an id.
        call_id = session = None
        call_rank = session_rank = NO_RANK
        for hit, value in ids:
            for field, rank, _ in hit.places:
                if field == "session":
                    if rank < session_rank:
                        session, session_rank = value, rank
                elif field == "tool_call_id" and rank < call_rank:
                    call_id, call_rank = value, rank
        limit = self.bounds.name
        call_id = text_of(call_id)
        session = text_of(session)
        if call_id is None and session is None:
            return detail
        old = detail or _NO_DETAIL
        return SpanDetail(
            old.tool_name,
            call_id and call_id[:limit],
            old.agent,
            session and session[:limit],
            old.tags,
            old.links,
            None,
            None,
            None,
            old.flags,
            old.call_ids,
        )

    def derive(
        self,
        found: Found,
        name: str,
        batch: Batch,
        *,
        own_role: str | None = None,
        own_model: str | None = None,
        is_root: bool = False,
        is_native: bool = False,
        scored: bool = False,
        links: tuple[Link, ...] = (),
    ) -> Meaning:
        """``own_*``: the native format's own fields, which win. A scored span is always looked at, so
        it is never a wrapper or plain."""
        own_role = own_role or found.text("role")
        unit, unknown = found.unit, None
        if own_role is not None:
            unit = OWN_ROLES.get(own_role)
            if unit is None and own_role != UNKNOWN:
                unknown = own_role
        elif unit is None:
            unknown = found.raw_unit
        if unknown is not None:
            self._count_unknown(unknown, batch)

        tool_name = found.text("tool_name")
        if tool_name is None and unit == "tool":
            tool_name = found.text("entity") or _after(TOOL_SPAN_NAME_PREFIXES, name)
        if tool_name is not None:
            tool_name = tool_name[: self.bounds.name]
        tags = self._tags_of(tool_name, unit, found)
        asks = unit == "llm" and own_role is None and asks_for_tool(found)
        role = own_role if own_role in ROLES else self._role(unit, found, tags, asks=asks)
        kind = self._kind(unit, found, is_native=is_native or own_role is not None, scored=scored)

        flags = MODEL_CALL if unit == "llm" and own_role is None else 0
        model = own_model or found.text("own_model")
        if model is None and unit not in _OTHER_MODELS:
            model = found.text("model")
            if model is None:
                model = found.text("model_alias")
                if model is not None:
                    flags |= ALIAS_MODEL
        model = UNKNOWN if model is None else self.label(model, batch)
        agent = found.text("agent")
        if agent is None and unit == "planner" and own_role is None:
            agent = found.text("entity") or _after(AGENT_SPAN_NAME_PREFIXES, name)
        call_ids = requested_ids(found, self.bounds) if asks else ()
        detail = self._detail(
            found, unit, batch, tool_name, agent, tags, links, flags, call_ids, is_root=is_root
        )
        return Meaning(role, kind, model, detail, unknown)

    @staticmethod
    def _role(unit: Unit | None, found: Found, tags: tuple[str, ...], *, asks: bool) -> str:
        match unit:
            case "llm":
                return "planner" if asks else "completion"
            case "planner":
                return "planner"
            case "retrieval" | "embedding":
                return "retrieval"
            case "tool":
                only_reads = bool(tags) and READ_TAGS.issuperset(tags)
                looks_up = (found.text("tool_type") or "").lower() == DATASTORE
                return "retrieval" if only_reads or looks_up else "tool_call"
            case _:
                return UNKNOWN

    @staticmethod
    def _kind(unit: Unit | None, found: Found, *, is_native: bool, scored: bool) -> int:
        kind = _KINDS.get(unit, MEMBER)
        if (
            unit is None
            and not is_native
            and found.raw_unit is None
            and _GENAI.isdisjoint(found.best)
        ):
            kind = PLAIN
        if scored and kind in (WRAPPER, PLAIN):
            return MEMBER
        return kind

    def _tags_of(self, tool_name: str | None, unit: Unit | None, found: Found) -> tuple[str, ...]:
        tags = () if tool_name is None else self._tags.tags(tool_name)
        if not tags and unit == "retrieval":
            tags = _RETRIEVER_TAGS
        own = found.get("tags")
        if own is not None:
            given = own if isinstance(own, list | tuple) else str(own).split(",")
            label = self.bounds.label
            extra = {tag.strip()[:label] for tag in given if isinstance(tag, str) and tag.strip()}
            # What the name says comes first: a sender's own tags must not push it out.
            room = max(0, self.bounds.tags - len(tags))
            tags = tuple(sorted({*tags, *sorted(extra.difference(tags))[:room]}))
        return tags

    def _detail(
        self,
        found: Found,
        unit: Unit | None,
        batch: Batch,
        tool_name: str | None,
        agent: str | None,
        tags: tuple[str, ...],
        links: tuple[Link, ...],
        flags: int,
        call_ids: tuple[str, ...],
        *,
        is_root: bool,
    ) -> SpanDetail | None:
        call_id, session = found.text("tool_call_id"), found.text("session")
        if call_id is None and unit == "tool":
            call_id = answered_id(found, self.bounds)
        arguments = result = asked = None
        if found.many or not _CONTENT.isdisjoint(found.best):
            arguments, result, asked = self._content(found, unit, is_root=is_root)
            captured = [content for content in (arguments, result, asked) if content is not None]
            if sum(len(content.tokens) for content in captured) > self._tokens_bytes:
                arguments, result, asked = shared((arguments, result, asked), self.bounds.tokens)
                flags |= OVERFLOW
            for content in captured:
                flags |= content.flags
            if captured:
                counts = batch.counts
                counts["content", "captured"] += 1
                if flags & TRUNCATED:
                    counts["content", "truncated"] += 1
                if flags & OVERFLOW:
                    counts["content", "overflow"] += 1
        texts = (tool_name, call_id, agent, session, arguments, result, asked)
        if not flags and not tags and not links and all(each is None for each in texts):
            return None
        limit = self.bounds.name
        return SpanDetail(
            tool_name,
            call_id if call_id is None else call_id[:limit],
            agent if agent is None else agent[:limit],
            session if session is None else session[:limit],
            tags,
            links,
            None if arguments is None else arguments.tokens,
            None if result is None else result.tokens,
            None if asked is None else asked.tokens,
            flags,
            call_ids,
        )

    def _content(
        self, found: Found, unit: Unit | None, *, is_root: bool
    ) -> tuple[Content | None, Content | None, Content | None]:
        given, gave = found.get("input"), found.get("output")
        arguments, result = found.get("arguments"), found.get("result")
        parts = found.many.get("result_part")
        records = found.get("records")
        if unit == "retrieval":
            result = records if result is None else result
        elif unit == "tool":
            arguments = records if arguments is None else arguments
        if unit in ("tool", "retrieval"):
            arguments = given if arguments is None else arguments
            result = gave if result is None and not parts else result
        results = [] if result is None else [result]
        if parts:
            results.extend(value for _, value in parts)
        return (
            None if arguments is None else self._tokenizer.content((arguments,)),
            self._tokenizer.content(results) if results else None,
            self._request(found, unit, given, is_root=is_root),
        )

    def _request(
        self, found: Found, unit: Unit | None, given: Any, *, is_root: bool
    ) -> Content | None:
        speaks_to_user = unit == "planner" or is_root
        if unit in ("tool", "retrieval", "embedding", "evaluator", "guardrail"):
            return None
        if not speaks_to_user and unit != "llm":
            return None
        flattened = found.many.get("input_part")
        if flattened:
            asked = request_of_parts(self._tokenizer, flattened)
            if asked is not None:
                return asked
        if given is None:
            return None
        return request(self._tokenizer, given, plain=speaks_to_user, limit=self.bounds.content)

    def _count_unknown(self, raw: str, batch: Batch) -> None:
        """By its raw value as a label: a sender's text, so short, printable, and not many of them."""
        raw = raw[:_RAW_ROLE]
        if not raw.isprintable():
            raw = "".join(c if c.isprintable() else "?" for c in raw)
        if raw not in self._raw_roles:
            if len(self._raw_roles) >= self.bounds.unknown_roles:
                raw = OTHER
            else:
                self._raw_roles.add(raw)
        batch.counts["unknown_role", raw] += 1


_NO_DETAIL: Final = SpanDetail()
_CONTENT: Final[frozenset[Field]] = frozenset({"arguments", "result", "records", "input", "output"})


def _after(prefixes: tuple[str, ...], span_name: str) -> str | None:
    """A tool or agent as the name of its span gives it: what follows the words for the operation, else all of it."""
    for prefix in prefixes:
        if span_name.startswith(prefix):
            return span_name[len(prefix) :] or None
    return span_name or None
