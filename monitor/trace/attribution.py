"""What a span can only be told from its trace: whose model acted through it, and that it doubles another call.

A tool or retrieval span seldom names the model that called it. Instrumentations one above the other (a framework's,
its client's) show one model call as two or three nested spans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

import msgspec

from monitor.model import ALIAS_MODEL, MEMBER, MODEL_CALL, UNKNOWN, WRAPPER, Span, SpanDetail

_CALLED: Final = frozenset({"tool_call", "retrieval"})
_AMBIGUOUS: Final = ("", 0)

_Version = tuple[str, int]  # model version, and ALIAS_MODEL where it is only that


def attributed(spans: Sequence[Span], parents: Mapping[str, str | None]) -> Sequence[Span]:
    """``spans`` with model versions filled in and doubled calls out of the members; the same object where nothing
    changes.

    spans    of one trace whose identity is not rejected, re-deliveries collapsed, scores joined; any order
    parents  span_id -> parent_span_id, without cycles; a parent may be missing

    Model version of a tool or retrieval span without one: that of the model call that asked for it, by tool-call
    id, unless calls of several versions hold that id; else that of its nearest ancestor that has one. Who of its
    own service holds the id goes before those of others, who can send any id. A version that is only the requested
    alias stays marked as such.

    Of two model calls of one service and role directly one above the other (nothing between them but wrappers and
    the like) one is a wrapper: the one without a score, of two such the outer. Two with scores stay: a scored span
    is always looked at. Other services' calls double none: any service may send a span below this one's, and would
    take its answer out of what is judged. O(n).
    """
    wanting: list[Span] = []
    calls: dict[str, Span] = {}
    for span in spans:
        if span.model_version == UNKNOWN and span.role in _CALLED:
            wanting.append(span)
        elif span.kind == MEMBER and span.detail is not None and span.detail.flags & MODEL_CALL:
            calls[span.span_id] = span
    # Mostly a model call has nothing below it, so none can be there twice.
    nested = len(calls) > 1 and not calls.keys().isdisjoint(parents.values())
    doubled = _doubled(spans, calls, parents) if nested else frozenset()
    versions = _versions(spans, wanting, parents) if wanting else {}
    if not doubled and not versions:
        return spans
    return [
        msgspec.structs.replace(span, kind=WRAPPER)
        if span.span_id in doubled
        else _with_version(span, versions[span.span_id])
        if span.span_id in versions
        else span
        for span in spans
    ]


def _doubled(
    spans: Sequence[Span], calls: Mapping[str, Span], parents: Mapping[str, str | None]
) -> frozenset[str]:
    members = {span.span_id for span in spans if span.kind == MEMBER}
    above = _nearest(calls, parents, members.__contains__)
    doubled = set()
    for span_id, inner in calls.items():
        outer = calls.get(above[span_id] or "")
        if outer is not None and (outer.service, outer.role) == (inner.service, inner.role):
            if not outer.scores:
                doubled.add(outer.span_id)
            elif not inner.scores:
                doubled.add(span_id)
    return frozenset(doubled)


def _versions(
    spans: Sequence[Span], wanting: Sequence[Span], parents: Mapping[str, str | None]
) -> dict[str, _Version]:
    known: dict[str, _Version] = {}
    by_call: dict[str, _Version] = {}
    contested: set[str] = set()
    for span in spans:
        if span.model_version == UNKNOWN:
            continue
        detail = span.detail
        version = (span.model_version, detail.flags & ALIAS_MODEL if detail is not None else 0)
        known[span.span_id] = version
        if detail is not None:
            for call_id in detail.call_ids:
                if by_call.setdefault(call_id, version) != version:
                    contested.add(call_id)
    own = _by_service(spans, contested, known) if contested else {}
    found: dict[str, _Version] = {}
    left: list[str] = []
    for span in wanting:
        own_id = span.detail.tool_call_id if span.detail is not None else None
        asked = by_call.get(own_id, _AMBIGUOUS) if own_id is not None else _AMBIGUOUS
        if own_id in contested:
            asked = own.get((span.service, own_id), _AMBIGUOUS)
        if asked is _AMBIGUOUS:
            left.append(span.span_id)
        else:
            found[span.span_id] = asked
    if left:
        nearest = _nearest(left, parents, known.__contains__)
        for span_id in left:
            above = nearest[span_id]
            if above is not None:
                found[span_id] = known[above]
    return found


def _by_service(
    spans: Sequence[Span], contested: Set[str], known: Mapping[str, _Version]
) -> dict[tuple[str, str], _Version]:
    """(service, tool-call id) -> version of the service's calls that hold it, of ids that several versions hold."""
    own: dict[tuple[str, str], _Version] = {}
    for span in spans:
        version = known.get(span.span_id)
        if version is None or span.detail is None:
            continue
        for call_id in span.detail.call_ids:
            if call_id in contested:
                holder = (span.service, call_id)
                if own.setdefault(holder, version) != version:
                    own[holder] = _AMBIGUOUS
    return own


def _nearest(
    of: Sequence[str] | Mapping[str, Span],
    parents: Mapping[str, str | None],
    wanted: Callable[[str], bool],
) -> dict[str, str | None]:
    """span_id -> its nearest ancestor that is ``wanted``, of these and of all on the way: no way is gone twice."""
    nearest: dict[str, str | None] = {}
    at: str | None
    for start in of:
        way: list[str] = [start]
        at = parents.get(start)
        while at is not None and not wanted(at):
            if at in nearest:
                at = nearest[at]
                break
            way.append(at)
            at = parents.get(at)
        for passed in way:
            nearest[passed] = at
    return nearest


def _with_version(span: Span, version: _Version) -> Span:
    model, alias = version
    detail = span.detail
    if alias:
        old = detail or SpanDetail()
        detail = msgspec.structs.replace(old, flags=old.flags | alias)
    return Span(  # `replace` costs three times as much, and a third of all spans come here
        span.span_id,
        span.role,
        span.scores,
        span.parent_span_id,
        span.service,
        span.name,
        model,
        span.start_unix_nano,
        span.end_unix_nano,
        span.kind,
        span.content_hash,
        span.source,
        detail,
    )
