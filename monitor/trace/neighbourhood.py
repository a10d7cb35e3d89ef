"""The causal neighbourhood of a span: what led to it and what it led to, each tie with its reason.

Only what the spans say themselves is drawn: parents, links, tool-call ids, values that flow, and the order of
siblings where one clock decides it. What is missing or was left out is listed as a gap and never bridged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from monitor.model import Edge, Neighbourhood, Span
from monitor.policy.causal import Part, parts, rank
from monitor.policy.flow import NO_TOKENS, arguments_of, results_of, user_request
from monitor.trace.identity import IdentityReport

LISTED_GAPS: Final = 50  # a record is read by people; the count of the rest is the last gap


class Budget(msgspec.Struct, frozen=True):
    """How far a neighbourhood reaches.

    hops   levels up to ancestors and down to descendants; siblings on either side
    spans  in all, the centre included
    """

    hops: int = 8  # agents of agents of agents are three or four deep
    spans: int = 64  # a record lists at most 500; more than a screen of them explains nothing


DEFAULT: Final = Budget()


class Layout:
    """What the neighbourhoods of all spans of a trace share: made once, however many pages it has.

    in_order  the spans in causal order, part after part
    position  span_id -> place in that order
    request   flow tokens of what the user asked for
    """

    __slots__ = (
        "_families",
        "by_id",
        "children",
        "in_order",
        "position",
        "report",
        "request",
        "trees",
    )

    def __init__(self, report: IdentityReport) -> None:
        self.report = report
        self.by_id = report.by_id
        self.children = report.children
        self.trees = parts(report)
        self.in_order = [span for part in self.trees for span in part.spans]
        self.position = {span.span_id: place for place, span in enumerate(self.in_order)}
        self.request = user_request(self.trees) or NO_TOKENS
        self._families: dict[str, list[Span]] = {}

    def children_of(self, span_id: str) -> list[Span]:
        """In causal order."""
        family = self._families.get(span_id)
        if family is None:
            by_id = self.by_id
            family = sorted((by_id[child] for child in self.children.get(span_id, ())), key=rank)
            self._families[span_id] = family
        return family


def neighbourhood(
    report: IdentityReport,
    centre: str,
    budget: Budget = DEFAULT,
    *,
    trace_id: str = "",
    layout: Layout | None = None,
) -> Neighbourhood:
    """Neighbourhood of the span ``centre`` in the trace that ``report`` is about.

    ``refused`` where identity is rejected: no edge of it could be believed. ``partial`` where it is incomplete.
    Spans come in causal order (structure first, then time), the same for every order of arrival. If there are more than
    the budget holds, those come first that say more: ancestors, where its arguments came from, links, the
    tool call that it answers, siblings before it, descendants, where its result went, siblings after it.

    trace_id  of the trace. A link is followed only if it names this very trace: span ids of another one may be the
              same. Without it no link is followed, and each is listed as a gap
    layout    of this report, where several neighbourhoods are drawn
    """
    if report.status == "rejected":
        return Neighbourhood(
            "refused", centre, gaps=("identity is rejected; no tree can be drawn",)
        )
    span = report.by_id.get(centre)
    if span is None:
        return Neighbourhood("partial", centre, gaps=(f"span {centre} never came",))
    drawing = _Drawing(layout or Layout(report), span, budget, trace_id)
    drawing.take_all()
    return drawing.finished()


class _Drawing:
    def __init__(self, layout: Layout, centre: Span, budget: Budget, trace_id: str) -> None:
        self.by_id = layout.by_id
        self.children = layout.children
        self.children_of = layout.children_of
        self.report = layout.report
        self.centre = centre
        self.budget = budget
        self.trace_id = trace_id
        self.part: Part = next(part for part in layout.trees if centre.span_id in part.entered)
        self.position = layout.position
        self.in_order = layout.in_order
        self.request = layout.request
        self.taken: dict[str, Span] = {centre.span_id: centre}
        self.edges: dict[Edge, None] = {}
        self.gaps: dict[str, None] = {}

    def take_all(self) -> None:
        self._take(self._ancestors(), "ancestors")
        flows_in, flows_out = self._flows()
        self._take(flows_in, "spans its arguments came from")
        self._take(self._linked(), "linked spans")
        call = self._same_call()
        self._take(call, "spans of its tool call")
        before, after = self._siblings()
        self._take(before, "siblings before it")
        self._take(self._descendants(), "descendants")
        self._take(flows_out, "spans its result went to")
        self._take(after, "siblings after it")
        for span in flows_in:
            self._tie(span, self.centre, "flow")
        for span in flows_out:
            self._tie(self.centre, span, "flow")
        for span in call:
            first, second = sorted((span, self.centre), key=lambda s: self.position[s.span_id])
            self._tie(first, second, "tool_call")

    def finished(self) -> Neighbourhood:
        spans = sorted(self.taken.values(), key=lambda span: self.position[span.span_id])
        for span in spans:
            self._tie_parent(span)
            for span_id in self._links_of(span):
                if span_id in self.taken and span_id != span.span_id:
                    self._tie(self.taken[span_id], span, "link")
        self._order_siblings(spans)
        if self.report.status == "incomplete":
            for fault in self.report.faults:
                self._gap(f"{fault.kind}: {fault.count} in the trace")
        order = self.position
        edges = sorted(self.edges, key=lambda e: (order[e.cause], order[e.effect], e.why))
        gaps = list(self.gaps)
        if len(gaps) > LISTED_GAPS:
            gaps[LISTED_GAPS - 1 :] = [f"{len(gaps) - LISTED_GAPS + 1} more gaps"]
        return Neighbourhood(
            "partial" if self.report.status == "incomplete" else "edges",
            self.centre.span_id,
            tuple(span.span_id for span in spans),
            tuple(edges),
            tuple(gaps),
        )

    def _take(self, spans: Iterable[Span], what: str) -> None:
        left_out = 0
        for span in spans:
            if span.span_id in self.taken:
                continue
            if len(self.taken) < self.budget.spans:
                self.taken[span.span_id] = span
            else:
                left_out += 1
        if left_out:
            self._gap(f"{left_out} {what} left out: the budget is {self.budget.spans} spans")

    def _tie(self, cause: Span, effect: Span, why: str) -> None:
        if cause.span_id in self.taken and effect.span_id in self.taken:
            self.edges[Edge(cause.span_id, effect.span_id, why)] = None

    def _gap(self, text: str) -> None:
        self.gaps[text] = None

    def _ancestors(self) -> Iterator[Span]:
        here = self.centre
        for _ in range(self.budget.hops):
            if here.parent_span_id is None or here.parent_span_id not in self.by_id:
                return
            here = self.by_id[here.parent_span_id]
            yield here
        if here.parent_span_id is not None:
            self._gap(
                f"ancestors above span {here.span_id} left out: the budget is {self.budget.hops} hops"
            )

    def _descendants(self) -> Iterator[Span]:
        """Level by level, each in the order of the walk."""
        level = [self.centre]
        for _ in range(self.budget.hops):
            level = [child for span in level for child in self.children_of(span.span_id)]
            yield from level
        deeper = sum(len(self.children.get(span.span_id, ())) for span in level)
        if deeper:
            self._gap(f"descendants deeper than {self.budget.hops} hops left out")

    def _siblings(self) -> tuple[list[Span], list[Span]]:
        """(before, after) the centre, the nearest first."""
        parent = self.centre.parent_span_id
        if parent is None or parent not in self.by_id:
            return [], []
        family = self.children_of(parent)
        at = family.index(self.centre)
        hops = self.budget.hops
        before, after = family[max(0, at - hops) : at], family[at + 1 : at + 1 + hops]
        left_out = len(family) - 1 - len(before) - len(after)
        if left_out:
            self._gap(f"{left_out} siblings left out: the budget is {hops} on either side")
        return before[::-1], after

    def _linked(self) -> list[Span]:
        """Spans of this trace that the centre links to, then those that link to it."""
        for link in self.centre.detail.links if self.centre.detail else ():
            if link.trace_id != self.trace_id:
                self._gap(
                    f"link to span {link.span_id} of trace {link.trace_id}: not followed, another trace"
                )
            elif link.span_id not in self.by_id:
                self._gap(f"link to span {link.span_id}, which never came")
        found = [
            self.by_id[span_id] for span_id in self._links_of(self.centre) if span_id in self.by_id
        ]
        me = self.centre.span_id
        return [*found, *(span for span in self.in_order if me in self._links_of(span))]

    def _links_of(self, span: Span) -> list[str]:
        """Ids of the spans of this trace that ``span`` links to."""
        links = () if span.detail is None else span.detail.links
        return [link.span_id for link in links if link.trace_id == self.trace_id]

    def _same_call(self) -> list[Span]:
        """The span that shares the centre's tool-call id. An id that more spans share tells nothing apart."""
        call = self.centre.detail.tool_call_id if self.centre.detail else None
        if not call:
            return []
        others = [
            span
            for span in self.in_order
            if span is not self.centre
            and span.detail is not None
            and span.detail.tool_call_id == call
        ]
        if len(others) > 1:
            self._gap(
                f"the centre's tool-call id is used by {len(others)} other spans: not followed"
            )
            return []
        return others

    def _flows(self) -> tuple[list[Span], list[Span]]:
        """(spans whose results hold a value of the centre's arguments, the nearest first; spans whose arguments hold a
        value of its result, the nearest first). Values of the user's request are none. Within the centre's
        part of the trace by structure; across a gap only where times do not speak against it.
        """
        given = arguments_of(self.centre) - self.request
        made = results_of(self.centre) - self.request
        sources = [
            s for s in self.in_order if given & results_of(s) and self._is_before(s, self.centre)
        ]
        targets = [
            s for s in self.in_order if made & arguments_of(s) and self._is_before(self.centre, s)
        ]
        return sources[::-1], targets

    def _is_before(self, span: Span, other: Span) -> bool:
        """Whether the result of ``span`` was there when ``other`` was called."""
        if span is other:
            return False
        left, entered = self.part.left.get(span.span_id), self.part.entered.get(other.span_id)
        if left is not None and entered is not None and left > entered:
            return False
        if left is None or entered is None or span.service == other.service:
            return span.end_unix_nano <= other.start_unix_nano
        return True

    def _tie_parent(self, span: Span) -> None:
        parent = span.parent_span_id
        if parent is None:
            return
        if parent not in self.by_id:
            self._gap(f"parent {parent} of span {span.span_id} never came")
        elif parent in self.taken:
            self._tie(self.by_id[parent], span, "parent")

    def _order_siblings(self, spans: list[Span]) -> None:
        """Tie neighbouring siblings where the clock that they share says that one ended before the other began."""
        last: dict[str, Span] = {}
        for span in spans:
            parent = span.parent_span_id
            if parent is None:
                continue
            elder = last.get(parent)
            last[parent] = span
            if elder is None or parent not in self.by_id:
                continue
            if (
                elder.service != span.service
                or not elder.start_unix_nano
                or not span.start_unix_nano
            ):
                self._gap(
                    f"order of siblings {elder.span_id} and {span.span_id} is not decided: no common clock"
                )
            elif elder.end_unix_nano <= span.start_unix_nano:
                self._tie(elder, span, "sibling_order")
            else:
                self._gap(
                    f"order of siblings {elder.span_id} and {span.span_id} is not decided: they overlap"
                )
