"""Whether the spans of one trace can be told apart and put together, and if not, why not.

A span's identity is (trace_id, span_id). What breaks it is never repaired: a wrong causal chain is worse
than an admitted gap. Three outcomes:

``complete``    every span has its own id, one root, and every parent is here
``incomplete``  something is missing; the gap is listed and never bridged
``rejected``    ids cannot be trusted; no tree, neighbourhood or composition may be drawn from them

The one repeated id that is not refused is the same span delivered twice (an OTLP re-send after a lost
answer): equal content hash, parent and non-zero times. Nothing can be cross-linked by it, so it is one span,
and the copies are counted. Copies without times are a conflict: two calls in a loop look just like that.

Everything here is iterative and O(n): chains may be as deep as the trace is long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from monitor.model import Fault, Forensics, Span, SpanFault

Status = Literal["complete", "incomplete", "rejected"]

# Fault kinds in the order in which they are reported, and what each makes of the trace.
FAULT_CLASS: Final[dict[str, Status]] = {
    "missing_id": "rejected",
    "malformed_id": "rejected",
    "duplicate_conflicting": "rejected",  # one id, different spans
    "duplicate_redelivered": "rejected",  # one id, one span sent twice; only with redelivery="reject"
    "self_parent": "rejected",
    "cycle": "rejected",
    "missing_parent": "incomplete",  # also a parent that lies in another trace
    "multiple_roots": "incomplete",
    "no_root": "incomplete",
}

LISTED_IDS: Final = 50  # of a fault; the count says how many there are


class IdentityReport:
    """What ``examine`` found out about one trace.

    status       see the module
    faults       by kind, in the order of ``FAULT_CLASS``; ids sorted, so that arrival order does not show
    spans        in order of arrival, re-deliveries collapsed (first copy kept), conflicting copies all kept
    redelivered  copies that were collapsed
    roots        ids of the spans without a parent, in order of arrival
    parents      span_id -> parent_span_id as the span says it (of the first copy; the parent may be missing)
    """

    __slots__ = (
        "_by_id",
        "_children",
        "faults",
        "parents",
        "redelivered",
        "roots",
        "spans",
        "status",
    )

    def __init__(
        self,
        status: Status,
        faults: tuple[Fault, ...],
        spans: Sequence[Span],
        redelivered: int,
        roots: list[str],
        parents: dict[str, str | None],
    ) -> None:
        self.status = status
        self.faults = faults
        self.spans = spans
        self.redelivered = redelivered
        self.roots = roots
        self.parents = parents
        self._by_id: dict[str, Span] | None = None
        self._children: dict[str, list[str]] | None = None

    @property
    def by_id(self) -> dict[str, Span]:
        """span_id -> span (the first copy of a conflicting id). Built when first asked for."""
        if self._by_id is None:
            by_id: dict[str, Span] = {}
            for span in self.spans:
                by_id.setdefault(span.span_id, span)
            self._by_id = by_id
        return self._by_id

    @property
    def children(self) -> dict[str, list[str]]:
        """parent_span_id -> ids of its children in order of arrival; also of parents that are missing."""
        if self._children is None:
            children: dict[str, list[str]] = {}
            for span_id, parent in self.parents.items():
                if parent is not None:
                    children.setdefault(parent, []).append(span_id)
            self._children = children
        return self._children

    def forensics(self, *, closed: bool) -> Forensics:
        """The record's words for it. While the trace is open a gap may still be filled: ``pending``,
        without the faults that only say that something has not come yet. What is rejected stays rejected.
        """
        if closed or self.status == "rejected":
            return Forensics(self.status, self.faults)
        return Forensics("pending")


def examine(
    spans: Sequence[Span], faults: Sequence[SpanFault], *, redelivery: str
) -> IdentityReport:
    """Judge the identity of the ``spans`` of one trace.

    spans       all spans of the trace in order of arrival, of every kind (wrappers and judges hold the tree)
    faults      spans of this trace that came without a usable span_id
    redelivery  ``collapse``: a span delivered twice is one span; ``reject``: it is a fault

    The ordinary good trace is settled by set operations: no id twice, one root, all parents here, no cycle.
    """
    parents = {span.span_id: span.parent_span_id for span in spans}
    if len(parents) == len(spans) and not faults:
        named = set(parents.values())
        if None in named:
            named.discard(None)
            if named <= parents.keys() and not _cyclic(parents, named):
                roots = [span_id for span_id, parent in parents.items() if parent is None]
                if len(roots) == 1:
                    return IdentityReport("complete", (), spans, 0, roots, parents)
    return _examine_fully(spans, faults, redelivery)


def _examine_fully(
    spans: Sequence[Span], unusable: Sequence[SpanFault], redelivery: str
) -> IdentityReport:
    kept, redelivered, conflicting = _collapse(spans)
    parents: dict[str, str | None] = {}
    roots: dict[str, None] = {}
    own_parent, orphaned = set(), set()
    for span in kept:
        parents.setdefault(span.span_id, span.parent_span_id)
    for span in kept:
        parent = span.parent_span_id
        if parent is None:
            roots[span.span_id] = None
        elif parent == span.span_id:
            own_parent.add(parent)
        elif parent not in parents:
            orphaned.add(span.span_id)

    found: dict[str, Fault] = {}

    def note(kind: str, ids: Iterable[str], count: int | None = None) -> None:
        listed = sorted(ids)
        if listed or count:
            found[kind] = Fault(
                kind, tuple(listed[:LISTED_IDS]), len(listed) if count is None else count
            )

    for fault in unusable:
        before = found.get(fault.fault)
        found[fault.fault] = Fault(fault.fault, (), 1 if before is None else before.count + 1)
    note("duplicate_conflicting", conflicting)
    if redelivery == "reject":
        note("duplicate_redelivered", redelivered)
    note("self_parent", own_parent)
    # A conflicting id has no one parent, so no walk may pass through it: what it "closes" is not known.
    note("cycle", _on_cycles({i: p for i, p in parents.items() if i != p and i not in conflicting}))
    note("missing_parent", orphaned)
    if len(roots) > 1:
        note("multiple_roots", roots)
    elif not roots and not unusable:
        found["no_root"] = Fault("no_root", (), 1)

    classes = {FAULT_CLASS[kind] for kind in found}
    status: Status = (
        "rejected"
        if "rejected" in classes
        else "incomplete"
        if "incomplete" in classes
        else "complete"
    )
    return IdentityReport(
        status,
        tuple(found[kind] for kind in FAULT_CLASS if kind in found),
        kept,
        sum(redelivered.values()),
        list(roots),
        parents,
    )


def span_content(span: Span) -> tuple[object, ...]:
    """What two copies of one span have in common."""
    return (span.content_hash, span.parent_span_id, span.start_unix_nano, span.end_unix_nano)


def add_fault(report: IdentityReport, fault: Fault) -> None:
    """Joined with what the report says of that kind, in the order of ``FAULT_CLASS``."""
    found = {known.kind: known for known in report.faults}
    known = found.get(fault.kind)
    if known is not None:
        ids = sorted({*known.span_ids, *fault.span_ids})
        fault = Fault(fault.kind, tuple(ids[:LISTED_IDS]), known.count + fault.count)
    found[fault.kind] = fault
    order = list(FAULT_CLASS)
    report.faults = tuple(sorted(found.values(), key=lambda f: order.index(f.kind)))


def _collapse(spans: Sequence[Span]) -> tuple[list[Span], dict[str, int], set[str]]:
    """(spans without re-deliveries, id -> copies collapsed, ids with copies that differ)."""
    kept: list[Span] = []
    redelivered: dict[str, int] = {}
    conflicting: set[str] = set()
    seen: dict[str, set[tuple[object, ...]]] = {}
    for span in spans:
        copies = seen.get(span.span_id)
        content = span_content(span)
        if copies is None:
            seen[span.span_id] = {content}
        elif content in copies and all(
            (span.content_hash, span.start_unix_nano, span.end_unix_nano)
        ):
            redelivered[span.span_id] = redelivered.get(span.span_id, 0) + 1
            continue
        else:
            copies.add(content)
            conflicting.add(span.span_id)
        kept.append(span)
    return kept, redelivered, conflicting


def _cyclic(parents: dict[str, str | None], named: set[str | None]) -> bool:
    """Whether parent links close a circle. ``named``: the ids that are somebody's parent, all present.

    Only a parent can lie on a circle, and of those only one that is a parent's parent, and so on. Agents'
    trees are shallow, so going up level by level soon comes to nothing; where it gets slow, what is left
    is walked.
    """
    while named:
        upper = {parents[span_id] for span_id in named}  # type: ignore[index]  # None was taken out
        upper.discard(None)
        if 4 * len(upper) > 3 * len(
            named
        ):  # each level costs a pass: go on only while they shrink well
            return _walks_in_circles(parents, upper)
        named = upper
    return False


def _walks_in_circles(parents: dict[str, str | None], starts: set[str | None]) -> bool:
    """Whether going up from any of ``starts`` comes back to where it was. Each id is walked over once."""
    done: set[str | None] = {None}
    for start in starts:
        here = start
        walk: set[str | None] = set()
        while here not in done:
            if here in walk:
                return True
            walk.add(here)
            here = parents[here]  # type: ignore[index]  # None is done
        done |= walk
    return False


def _on_cycles(parents: dict[str, str | None]) -> set[str]:
    """Ids that lie on a circle of parent links. Each id is walked over once."""
    circular: set[str] = set()
    walk_of: dict[str, int] = {}
    for number, start in enumerate(parents):
        here: str | None = start
        path: list[str] = []
        while here is not None and here in parents and here not in walk_of:
            walk_of[here] = number
            path.append(here)
            here = parents[here]
        if here is not None and walk_of.get(here) == number:
            circular.update(path[path.index(here) :])
    return circular
