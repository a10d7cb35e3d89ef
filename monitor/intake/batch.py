"""What one ingest transaction holds: spans regrouped by trace, and what was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, Literal, Protocol

from monitor.codec import encode_fold_record
from monitor.intake.bounds import FRAGMENT_LIMIT
from monitor.model import DeadLetter, Fragment, OrphanFault, Span, SpanFault, SpanScore

# Room for a fragment's own framing: tag, trace id, three array headers.
_FRAME: Final = 64

Count = Literal[
    "spans",  # members by role, others by what they are (evaluator, guardrail, wrapper, plain)
    "rejected",  # dead letters by reason
    "ignored",  # by why: tombstone, empty, keep
    "faults",  # by kind
    "detached_scores",  # scores apart from their span, by scorer
    "unknown_role",  # raw value that no convention maps, bounded
    "clipped",  # by field: cut to a bound
    "content",  # captured, truncated, overflow: spans by state of their content
]


class KafkaRecord(Protocol):
    """What intake needs of a consumed record; aiokafka's ConsumerRecord fits as it is."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...


class Batch:
    """Filled by any number of ``Intake.decode`` calls.

    ``spans``, ``scores`` and ``faults`` are by trace id, first seen first, in order of arrival inside.
    ``counts`` is keyed by (what, label): see ``Count``.
    """

    __slots__ = ("counts", "dead_letters", "faults", "orphans", "scores", "spans")

    def __init__(self) -> None:
        self.spans: dict[str, list[Span]] = {}
        self.scores: dict[str, list[SpanScore]] = {}
        self.faults: dict[str, list[SpanFault]] = {}
        self.orphans: list[OrphanFault] = []
        self.dead_letters: list[DeadLetter] = []
        self.counts: Counter[tuple[Count, str]] = Counter()

    def fragments(self) -> Iterator[tuple[str, Fragment]]:
        """One fragment a trace, more where one would pass FRAGMENT_LIMIT encoded bytes."""
        for trace_id, fragment, _ in self._pieces():
            yield trace_id, fragment

    def encoded_fragments(self) -> Iterator[tuple[str, bytes]]:
        """The same, encoded: a fragment's size is known by encoding it, so this costs nothing more."""
        for trace_id, _, payload in self._pieces():
            yield trace_id, payload

    def _pieces(self) -> Iterator[tuple[str, Fragment, bytes]]:
        spans, scores, faults = self.spans, self.scores, self.faults
        apart = [t for t in dict.fromkeys(chain(scores, faults)) if t not in spans]
        for trace_id in chain(spans, apart) if apart else spans:
            fragment = Fragment(
                trace_id,
                tuple(spans.get(trace_id, ())),
                tuple(scores.get(trace_id, ())) if scores else (),
                tuple(faults.get(trace_id, ())) if faults else (),
            )
            payload = encode_fold_record(fragment)
            if len(payload) <= FRAGMENT_LIMIT:
                yield trace_id, fragment, payload
            else:
                for piece in split(fragment):
                    yield trace_id, piece, encode_fold_record(piece)


def split(fragment: Fragment) -> Iterator[Fragment]:
    """``fragment`` as fragments of at most FRAGMENT_LIMIT bytes, items in their order.

    An item alone always fits: ``Bounds`` says so.
    """
    room = FRAGMENT_LIMIT - _FRAME
    items: Sequence[Span | SpanScore | SpanFault] = (
        *fragment.spans,
        *fragment.scores,
        *fragment.faults,
    )
    piece: list[Span | SpanScore | SpanFault] = []
    size = 0
    for item in items:
        item_size = len(_encode_item(item))
        if piece and size + item_size > room:
            yield _fragment(fragment.trace_id, piece)
            piece, size = [], 0
        piece.append(item)
        size += item_size
    if piece:
        yield _fragment(fragment.trace_id, piece)


def _fragment(trace_id: str, items: list[Span | SpanScore | SpanFault]) -> Fragment:
    return Fragment(
        trace_id,
        tuple(i for i in items if isinstance(i, Span)),
        tuple(i for i in items if isinstance(i, SpanScore)),
        tuple(i for i in items if isinstance(i, SpanFault)),
    )


def _encode_item(item: Span | SpanScore | SpanFault) -> bytes:
    match item:
        case Span():
            return encode_fold_record(Fragment("", spans=(item,)))
        case SpanScore():
            return encode_fold_record(Fragment("", scores=(item,)))
        case SpanFault():
            return encode_fold_record(Fragment("", faults=(item,)))
