"""Causal order of the spans of one trace: structure first, then time.

A parent acts before what it calls, whatever their clocks say; among siblings the start time decides, then
the span_id. So the order is that of a walk down the tree, the same for every order of arrival, and clocks
that disagree between services move only siblings.

A span takes effect twice: its arguments when it is *entered*, its result when it is *left*. A span that
encloses another was entered before it and left after it, so its result cannot have caused the other.

Where a parent is missing or there are several roots, the trace falls into *parts*. Within a part order is
known; between parts there is only time, which is no evidence of order: see `ByTime` and `AnyOrder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from monitor.model import Span


class TraceView(Protocol):
    """What is read of a trace: `monitor.trace.identity.IdentityReport` has it."""

    @property
    def status(self) -> str: ...
    @property
    def spans(self) -> Sequence[Span]: ...
    @property
    def parents(self) -> dict[str, str | None]: ...
    @property
    def by_id(self) -> dict[str, Span]: ...
    @property
    def children(self) -> dict[str, list[str]]: ...


def rank(span: Span) -> tuple[int, str]:
    """Order of siblings: the one that started first, then the smaller span_id."""
    return (span.start_unix_nano, span.span_id)


class Part:
    """A tree of the trace: its spans in causal order, and when each is entered and left (0, 1, 2 ...).

    rooted  its top span has no parent; else its parent is missing
    """

    __slots__ = ("depth", "entered", "left", "rooted", "spans")

    def __init__(self, top: Span, trace: TraceView) -> None:
        self.rooted = top.parent_span_id is None
        self.spans: list[Span] = []
        self.entered: dict[str, int] = {}
        self.left: dict[str, int] = {}
        self.depth: dict[str, int] = {}
        by_id, children = trace.by_id, trace.children
        clock = 0
        stack: list[tuple[Span, int]] = [(top, 0)]
        while stack:
            span, depth = stack.pop()
            span_id = span.span_id
            if depth < 0:
                self.left[span_id] = clock
            else:
                self.entered[span_id] = clock
                self.depth[span_id] = depth
                self.spans.append(span)
                below = children.get(span_id)
                if below:
                    stack.append((span, -1))
                    stack.extend((child, depth + 1) for child in _reversed(below, by_id))
                else:
                    clock += 1
                    self.left[span_id] = clock
            clock += 1

    def effect(self, span: Span) -> int:
        return _effect(span, self.entered, self.left)


def _effect(span: Span, entered: dict[str, int], left: dict[str, int]) -> int:
    """When a span has its effect: a tool by its result, an agent as soon as it starts."""
    return (left if span.role in ("retrieval", "tool_call") else entered)[span.span_id]


def _reversed(ids: list[str], by_id: dict[str, Span]) -> list[Span]:
    if len(ids) == 1:
        return [by_id[ids[0]]]
    return sorted((by_id[span_id] for span_id in ids), key=rank, reverse=True)


class ByTime:
    """All spans of a trace in parts, ordered by time alone, as if it were one part. It proves nothing."""

    __slots__ = ("entered", "left", "spans")

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = sorted(spans, key=rank)
        self.entered = {span.span_id: span.start_unix_nano for span in spans}
        self.left = {span.span_id: max(span.start_unix_nano, span.end_unix_nano) for span in spans}

    def effect(self, span: Span) -> int:
        return _effect(span, self.entered, self.left)


class AnyOrder:
    """All spans of a trace, each after every other: what may have come before what where no order is known."""

    __slots__ = ("entered", "left", "spans")

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = sorted(spans, key=rank)
        self.entered = {span.span_id: 1 for span in spans}
        self.left = {span.span_id: 0 for span in spans}

    def effect(self, _: Span) -> int:
        return 0


def parts(trace: TraceView) -> list[Part]:
    """The trees of a trace whose identity is not rejected, real roots first, then by `rank`."""
    here = trace.by_id
    tops = [
        span
        for span in here.values()
        if span.parent_span_id is None or span.parent_span_id not in here
    ]
    tops.sort(key=lambda span: (span.parent_span_id is not None, *rank(span)))
    return [Part(top, trace) for top in tops]
