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


class Request:
    """What the user asked for, as far as the trace can tell whose words they are.

    A value that the user named may leave, so whoever can pass words off as the user's can make any value
    leave in silence. Words count as the user's only where nobody else can have put them in:

    - They stand at a root, or below it where only spans of the root's own service lie between: there in every
      such span that holds a request, for a service's name is easily given to a span too. What only those nearest
      to the root say may be the user's. What stands deeper is what one agent asked of another; what hangs below a
      missing parent, or another service's span says, may be anybody's.
    - Every root says them. A second root is easily sent, by a service that is called too, and the agent that
      acts may hang below either: no root is the user's for sure. So a value that only some of them name is
      neither let pass (an attacker's root would name the destination) nor does it take from the proof where the
      root above the act does not name it (or the attacker's root would turn a page into a warning).

    known    some root's request was captured
    settled  tokens that are the user's for sure
    """

    __slots__ = ("_by_part", "_of_any", "known", "settled")

    def __init__(self, parts: Iterable[Part]) -> None:
        self._by_part: dict[Part, frozenset[int]] = {}
        sure: list[frozenset[int]] = []
        for part in parts:
            if part.rooted:
                words, settled = _asked(part)
                sure.append(settled)
                if words is not None:
                    self._by_part[part] = words
        self.known = bool(self._by_part)
        self._of_any: frozenset[int] = NO_TOKENS.union(*self._by_part.values())
        self.settled = sure[0].intersection(*sure[1:]) if sure else NO_TOKENS

    def allows(self, part: Part) -> frozenset[int]:
        """Tokens that a span of ``part`` may pass on: the user named them. None of a part without a root."""
        return self.settled if part.rooted else NO_TOKENS

    def may_allow(self, part: Part) -> frozenset[int]:
        """Tokens that the user may have named: those of the part's root, or of any where it has none."""
        return self._by_part.get(part, self._of_any)


def user_request(parts: Iterable[Part]) -> frozenset[int] | None:
    """Tokens of what the user asked for, for sure; None where that was not captured."""
    request = Request(parts)
    return request.settled if request.known else None


def _asked(part: Part) -> tuple[frozenset[int] | None, frozenset[int]]:
    """(tokens that the request nearest to the root may hold, those of them that it holds for sure)."""
    top = part.spans[0]
    if top.detail is not None and top.detail.request_tokens is not None:
        words = tokens(top.detail.request_tokens)
        return words, words
    home: set[str | None] = {top.span_id}  # spans with only the root's service above them
    own: list[tuple[int, frozenset[int]]] = []
    others: list[tuple[int, frozenset[int]]] = []
    for span in part.spans:  # parents first
        at_home = span.service == top.service and span.parent_span_id in home
        if at_home:
            home.add(span.span_id)
        if span.detail is not None and span.detail.request_tokens is not None:
            asked = (part.depth[span.span_id], tokens(span.detail.request_tokens))
            (own if at_home else others).append(asked)
    found = own or others
    if not found:
        return None, NO_TOKENS
    nearest = min(depth for depth, _ in found)
    words = NO_TOKENS.union(*(said for depth, said in found if depth == nearest))
    return words, words.intersection(*(said for _, said in own)) if own else NO_TOKENS
