"""One life of a trace: what came of it, from its first fragment until its memory is gone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from monitor.drift.delta import TracePart
from monitor.model import Fragment, Span, SpanFault, SpanScore
from monitor.trace.content import Content
from monitor.trace.pages import Page, Pages
from monitor.trace.pieces import encoded_items
from monitor.trace.rules import Rules

ClosedBy = Literal["root_complete", "idle", "max_lifetime", "max_spans", "pressure"]
CUTTING: Final = frozenset({"max_lifetime", "max_spans", "pressure"})  # these end a life early

OPEN: Final = -1  # number of a life that has not closed

# What a life weighs beside its items: itself, its places in the indexes, its timers, its contribution. Measured
# 1,800 to 2,600 bytes for one of a single span (`python -m benchmarks.fold`, memory).
LIFE_BYTES: Final = 2_000


class Shape:
    """What an open life must know of its tree to tell whether it is complete: ids, not spans.

    The spans themselves are decoded again at closing: they lie in memory a quarter as large until then, and
    are fresh in the processor's caches when they are judged, which pays for the second decoding.
    """

    __slots__ = ("_ids", "_parents", "root_ended")

    def __init__(self) -> None:
        self.root_ended = False
        self._ids: set[str | None] = set()
        self._parents: set[str | None] = set()  # but those known to be here

    def add(self, spans: Sequence[Span]) -> bool:
        """Whether the root has ended and no parent is unresolved. What was resolved once is not looked at
        again."""
        ids, parents = self._ids, self._parents
        for span in spans:
            ids.add(span.span_id)
            parents.add(span.parent_span_id)
        if None in parents:
            parents.discard(None)
            if not self.root_ended:
                # One with a start and no end is still under way.
                self.root_ended = any(
                    s.parent_span_id is None and (s.end_unix_nano or not s.start_unix_nano)
                    for s in spans
                )
        if not self.root_ended:
            return False
        self._parents = parents = parents - ids
        return not parents


class Life:
    """(trace_id, offset of its first fragment): an id that is used again later is another life.

    It holds raw fragments; ``content`` is decoded from them to judge the life, and where a score looks for its
    span, and then kept until the life has been judged.
    """

    __slots__ = (
        "birth",
        "birth_vt",
        "broken",
        "bytes",
        "closed_at_ms",
        "closed_by",
        "complete",
        "content",
        "continues",
        "count",
        "cut",
        "deadline",
        "dirty",
        "fragments",
        "gates",
        "judged",
        "last_offset",
        "last_vt",
        "nth",
        "number",
        "pages",
        "part",
        "past",
        "past_bytes",
        "replaced",
        "residue",
        "revisable_at",
        "revision",
        "rules",
        "scheduled",
        "shape",
        "stored",
        "trace_id",
        "unkept",
        "waiting",
        "window",
    )

    def __init__(self, trace_id: str, birth: int, nth: int, rules: Rules, now: int) -> None:
        self.trace_id = trace_id
        self.birth = birth
        self.nth = nth  # of all births of its partition: in a log the same order as by offset, without ties
        self.rules = rules
        self.birth_vt = now
        self.last_vt = now
        self.last_offset = birth
        self.fragments: list[tuple[int, bytes]] = []
        self.bytes = LIFE_BYTES  # in memory: its own, of its items, and of the residue taken over
        self.count = 0  # spans and faults kept, every copy
        self.unkept = 0  # spans that came past max_spans or the closed budget
        self.past: tuple[Span, ...] = ()  # of these what composition may need
        self.past_bytes = 0
        self.content: Content | None = None
        self.shape: Shape | None = Shape()  # while it is open
        self.waiting: dict[str, list[SpanScore]] = {}  # scores whose span is not here
        self.pages: Pages = {}
        self.broken: dict[
            str, SpanFault
        ] = {}  # one a kind of those that were not kept, past max_spans
        self.continues: int | None = None
        self.residue: tuple[Span, ...] = ()
        self.cut = False
        self.complete = False  # root ended and no unresolved parent
        self.scheduled = 0  # deadline of its earliest closing timer
        # Once closed:
        self.number = OPEN
        self.closed_by: ClosedBy = "idle"
        self.closed_at_ms = 0
        self.deadline = 0  # when it leaves memory
        self.window = 0
        self.revision = 0  # of the last verdict published
        self.judged = 0  # times
        self.revisable_at = 0  # no revision before it
        self.replaced = 0  # scores, as far as counted
        self.part: TracePart | None = None
        self.gates: dict[tuple[str, str], str] = {}  # (service, scorer) -> gate in force at closing
        self.dirty = False
        self.stored = 0  # fragments that lie in the closed log

    @property
    def open(self) -> bool:
        return self.number == OPEN

    def closing(self) -> tuple[int, ClosedBy]:
        """(deadline of virtual time, what closes it then) if nothing more comes.

        The grace, like idleness, counts from the last arrival: a straggler that comes in time starts it anew.
        """
        rules = self.rules
        quiet = self.last_vt + rules.idle_ms
        by: ClosedBy = "idle"
        if self.complete:
            graced = self.last_vt + rules.root_grace_ms
            if graced <= quiet:
                quiet, by = graced, "root_complete"
        oldest = self.birth_vt + rules.max_lifetime_ms
        return (quiet, by) if quiet <= oldest else (oldest, "max_lifetime")

    def keep(self, offset: int, raw: bytes, fragment: Fragment, weight: int) -> None:
        self.fragments.append((offset, raw))
        self.bytes += weight
        self.count += len(fragment.spans) + len(fragment.faults)
        self.last_offset = offset
        if self.content is not None:
            self.content.add(fragment)

    def grow(self, spans: Sequence[Span]) -> bool:
        """Whether the open life is complete with these."""
        assert self.shape is not None, self.trace_id
        return self.shape.add(spans)

    def load(self) -> Content:
        """The decoded items, read from the raw fragments if need be."""
        if self.content is None:
            self.content = Content.of(raw for _, raw in self.fragments)
        return self.content

    def offsets(self, limit: int = 500) -> tuple[int, ...]:
        """Offsets of the fragments, each once, the first ``limit`` of them."""
        seen: dict[int, None] = {}
        for offset, _ in self.fragments:
            seen[offset] = None
            if len(seen) == limit:
                break
        return tuple(seen)

    def digests(self, limit: int = 500) -> tuple[str, ...]:
        """Of what is kept of each of these fragments, in the same order: blake2b, 8 bytes, in hex."""
        kept: dict[int, Any] = {}
        for offset, raw in self.fragments:
            if offset not in kept:
                if len(kept) == limit:
                    break
                kept[offset] = hashlib.blake2b(digest_size=8)
            for item in encoded_items(raw):
                kept[offset].update(item)
        return tuple(digest.hexdigest() for digest in kept.values())

    def alone(self) -> list[SpanScore]:
        """Scores whose span is not here, in order of arrival by span."""
        return [score for scores in self.waiting.values() for score in scores]

    def state(self) -> LifeState:
        """As of now: what the life does later does not show in it."""
        return LifeState(
            trace_id=self.trace_id,
            birth=self.birth,
            nth=self.nth,
            settings=self.rules.sha256,
            birth_vt=self.birth_vt,
            last_vt=self.last_vt,
            last_offset=self.last_offset,
            bytes=self.bytes,
            count=self.count,
            unkept=self.unkept,
            past=self.past,
            past_bytes=self.past_bytes,
            waiting=tuple(self.alone()),
            pages=tuple(msgspec.structs.replace(page) for page in self.pages.values()),
            broken=tuple(self.broken.values()),
            continues=self.continues,
            residue=self.residue,
            cut=self.cut,
            number=self.number,
            closed_by=self.closed_by,
            closed_at_ms=self.closed_at_ms,
            deadline=self.deadline,
            window=self.window,
            revision=self.revision,
            judged=self.judged,
            revisable_at=self.revisable_at,
            replaced=self.replaced,
            part=self.part,
            gates=tuple((*key, state) for key, state in self.gates.items()),
            fragments=len(self.fragments),
            dirty=self.dirty,
        )

    @classmethod
    def from_state(
        cls, state: LifeState, rules: Rules, fragments: list[tuple[int, bytes]], stored: int
    ) -> Life:
        life = cls(state.trace_id, state.birth, state.nth, rules, state.birth_vt)
        life.last_vt = state.last_vt
        life.last_offset = state.last_offset
        life.fragments = fragments
        life.bytes = state.bytes
        life.count = state.count
        life.unkept = state.unkept
        life.past = state.past
        life.past_bytes = state.past_bytes
        for score in state.waiting:
            life.waiting.setdefault(score.span_id, []).append(score)
        life.pages = {(page.reason, page.name): page for page in state.pages}
        life.broken = {fault.fault: fault for fault in state.broken}
        life.continues = state.continues
        life.residue = state.residue
        life.cut = state.cut
        life.number = state.number
        life.closed_by = state.closed_by
        life.closed_at_ms = state.closed_at_ms
        life.deadline = state.deadline
        life.window = state.window
        life.revision = state.revision
        life.judged = state.judged
        life.revisable_at = state.revisable_at
        life.replaced = state.replaced
        life.part = state.part
        life.gates = {(service, scorer): gate for service, scorer, gate in state.gates}
        life.dirty = state.dirty
        life.stored = stored
        if not life.open:
            life.shape = None
        else:
            spans = Content.of(raw for _, raw in fragments).spans
            life.complete = life.grow(spans)
            life.scheduled = life.closing()[0]
        return life


class LifeState(msgspec.Struct, frozen=True, array_like=True):
    """All of a life but its fragments, storable: what a snapshot and the closed log hold."""

    trace_id: str
    birth: int
    nth: int
    settings: str
    birth_vt: int
    last_vt: int
    last_offset: int
    bytes: int
    count: int
    unkept: int
    past: tuple[Span, ...]
    past_bytes: int
    waiting: tuple[SpanScore, ...]
    pages: tuple[Page, ...]
    broken: tuple[SpanFault, ...]
    continues: int | None
    residue: tuple[Span, ...]
    cut: bool
    number: int
    closed_by: ClosedBy
    closed_at_ms: int
    deadline: int
    window: int
    revision: int
    judged: int
    revisable_at: int
    replaced: int
    part: TracePart | None
    gates: tuple[tuple[str, str, str], ...]
    fragments: int
    dirty: bool
