"""What stays of a life that was cut, for the life that goes on under its trace id.

Only composition reads it, and only by argument flow: tagged steps, elevated spans, the flow tokens of what may be
a sink or an untrusted read, and what the user asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from monitor.model import Score, Span, SpanDetail
from monitor.trace.life import Life

# A composed attack has a handful of steps; 64 spans and 64 kB hold those of a very long run, and 100 such
# residues fit into the least budget that makes sense (a quarter of 32 MB).
SPAN_LIMIT: Final = 64
BYTES_LIMIT: Final = 64_000

# Beside the encoded bytes: what a residue and each of its spans cost decoded (tokens twice their encoded size).
RESIDUE_BYTES: Final = 600
SPAN_BYTES: Final = 800

_ENCODER: Final = msgspec.msgpack.Encoder()


class Residue(msgspec.Struct, frozen=True, array_like=True):
    trace_id: str
    life: int
    nth: int
    spans: tuple[Span, ...]
    bytes: int
    deadline: int


def residue_of(life: Life, deadline: int) -> Residue:
    """Of the life's own spans and of the residue it took over: elevated ones first, then tagged ones, the
    latest first; kept in order of arrival."""
    content = life.load()
    kept, size = chosen(
        (*life.residue, *content.joined(), *life.past),
        content.highest(),
        life.rules.thresholds.elevated,
        BYTES_LIMIT,
    )
    return Residue(
        life.trace_id,
        life.birth,
        life.nth,
        kept,
        RESIDUE_BYTES + SPAN_BYTES * len(kept) + 2 * size,
        deadline,
    )


def keep_past(life: Life, span: Span) -> int:
    """Remember a span that came past the limit of a life if composition may need it: padding must not hide the last
    act of an attack. Returns by how many bytes the life has grown."""
    elevated = life.rules.thresholds.elevated
    if not (elevated(span) or (span.detail is not None and span.detail.tags)):
        return 0
    before = life.past_bytes
    life.past, size = chosen((*life.past, span), {}, elevated, BYTES_LIMIT)
    life.past_bytes = SPAN_BYTES * len(life.past) + 2 * size
    life.bytes += life.past_bytes - before
    return life.past_bytes - before


def chosen(
    spans: Iterable[Span],
    highest: Mapping[str, tuple[Score, ...]],
    elevated: Callable[[Span], bool],
    limit: int,
    *,
    acts: Callable[[Span], bool] | None = None,
) -> tuple[tuple[Span, ...], int]:
    """The spans that composition may need later, SPAN_LIMIT at most, and their encoded bytes, ``limit`` at most:
    elevated ones first, then tagged ones, the latest first; in order of arrival.

    highest  span_id -> the highest score of each scorer version: a policy looks at these
    acts     untagged spans that are wanted too, last of all; instead of them, where None, what the user asked for
    """
    ranked = []
    for place, span in enumerate(spans):
        if span.span_id in highest:
            span = msgspec.structs.replace(span, scores=highest[span.span_id])
        high = elevated(span)
        detail = span.detail
        tagged = detail is not None and bool(detail.tags)
        also = (
            acts(span) if acts is not None else detail is not None and bool(detail.request_tokens)
        )
        if high or tagged or also:
            bare = not tagged and acts is None
            ranked.append((not high, not tagged, -place, bare, span))
    ranked.sort(key=lambda entry: entry[:3])
    kept: list[tuple[int, Span]] = []
    size = 0
    for _, _, place, bare, span in ranked[:SPAN_LIMIT]:
        span = _bare(span, bare)
        needed = len(_ENCODER.encode(span))
        if size + needed > limit:
            continue
        size += needed
        kept.append((-place, span))
    kept.sort(key=lambda entry: entry[0])
    return tuple(span for _, span in kept), size


def _bare(span: Span, untagged: bool) -> Span:
    """Without the tokens that no policy can follow: those of a span that is neither source nor sink."""
    detail = span.detail
    if detail is None or not untagged:
        return span
    return msgspec.structs.replace(
        span,
        detail=SpanDetail(
            tool_name=detail.tool_name,
            tool_call_id=detail.tool_call_id,
            agent=detail.agent,
            session_id=detail.session_id,
            request_tokens=detail.request_tokens,
            flags=detail.flags,
        ),
    )
