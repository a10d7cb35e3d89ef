"""Argument flow: a value in a span's arguments that came out of an earlier result.

Content never gets here. Intake makes each token of it a keyed 8-byte hash and drops the rest; that the same
hash stands in a result and in later arguments says that the same value does. ``None`` means that content
was not captured, ``b""`` that it was and held no token.
"""

from __future__ import annotations

from collections.abc import Iterable

from monitor.model import OVERFLOW, TRUNCATED, Span
from monitor.policy.causal import Part

NO_TOKENS: frozenset[int] = frozenset()


def tokens(packed: bytes | None) -> frozenset[int]:
    """The hashes of a ``*_tokens`` field as a set; a torn last one is left out."""
    if not packed:
        return NO_TOKENS
    whole = len(packed) & ~7
    return frozenset(memoryview(packed[:whole]).cast("Q"))


def results_of(span: Span) -> frozenset[int]:
    return NO_TOKENS if span.detail is None else tokens(span.detail.result_tokens)


def arguments_of(span: Span) -> frozenset[int]:
    return NO_TOKENS if span.detail is None else tokens(span.detail.argument_tokens)


def result_known(span: Span) -> bool:
    """Whether all that came out of ``span`` was captured: if not, 'no flow' cannot be said of it."""
    detail = span.detail
    return (
        detail is not None
        and detail.result_tokens is not None
        and not detail.flags & (TRUNCATED | OVERFLOW)
    )


def arguments_known(span: Span) -> bool:
    detail = span.detail
    return (
        detail is not None
        and detail.argument_tokens is not None
        and not detail.flags & (TRUNCATED | OVERFLOW)
    )


def user_request(parts: Iterable[Part]) -> frozenset[int] | None:
    """Tokens of what the user asked for, or None where that was not captured.

    Read from the spans nearest to a real root that have it. What stands deeper is what one agent asked of
    another, and may be what an attacker put there; what hangs below a missing parent may be, too.
    """
    found: set[int] | None = None
    for part in parts:
        if not part.rooted:
            continue
        asked = [
            s for s in part.spans if s.detail is not None and s.detail.request_tokens is not None
        ]
        if asked:
            nearest = min(part.depth[s.span_id] for s in asked)
            top = [s for s in asked if part.depth[s.span_id] == nearest]
            found = set() if found is None else found
            found.update(*(tokens(s.detail.request_tokens) for s in top if s.detail))
    return None if found is None else frozenset(found)
