"""Match composition policies over the traces of one session: a sub-agent starts a trace of its own, and a conversation
is many.

Each trace is a part of the scene (`monitor.policy.scene`), so what holds between the parts of a torn trace holds here:
a value that flows from one trace into a sink of another is proof; tags and the order of clocks are none. What lies in
one trace alone is that trace's own incident, and is not found again.

Rises of scores are not looked for: they need every turn, and a session keeps only the steps of each trace.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from monitor.model import PLAIN, Span, SpanDetail
from monitor.policy.causal import Part
from monitor.policy.rules import UNTAGGED, Finding, Policy
from monitor.policy.scene import Fitting, Scene
from monitor.policy.steps import match_steps_between

_MISSING: Final = "missing"  # parent of spans that hang below no root whose words are known


class Turn(msgspec.Struct, frozen=True):
    """The steps of one trace. Ids of spans are unique over the session.

    request    tokens of what the user asked for, for sure; None where that was not captured
    explained  tokens that came out of some result of the trace, of spans that are not among its steps
    """

    name: str
    spans: tuple[Span, ...]
    request: bytes | None = None
    explained: bytes = b""


class Caring:
    """Which spans the policies of some settings care about; made once for many traces."""

    __slots__ = ("_acts", "_carriers")

    def __init__(self, policies: tuple[Policy, ...]) -> None:
        steps = [step for policy in policies for step in policy.steps]
        self._carriers = [step for step in steps if step.min_score > 0.0]
        self._acts = [step for step in steps if UNTAGGED in step.tags and step.flow_from]

    def elevated(self, span: Span) -> bool:
        """Whether its scores are high enough for some policy, whatever the threshold of its role."""
        return any(step.fits(span) for step in self._carriers)

    def acts(self, span: Span) -> bool:
        """Whether it has no tag, and arguments that a policy may follow a value into."""
        detail = span.detail
        return (
            detail is not None
            and bool(detail.argument_tokens)
            and any(step.fits(span) for step in self._acts)
        )


class _View:
    """A trace as `monitor.policy.causal.Part` reads it: a root that says the request, its steps below."""

    status = "incomplete"

    def __init__(self, top: Span, spans: Sequence[Span]) -> None:
        self.spans: Sequence[Span] = [top, *spans]
        self.parents: dict[str, str | None] = {span.span_id: top.span_id for span in spans}
        self.parents[top.span_id] = top.parent_span_id
        self.by_id = {span.span_id: span for span in self.spans}
        self.children = {top.span_id: [span.span_id for span in spans]}


def match_session(turns: Sequence[Turn], policies: Sequence[Policy]) -> tuple[Finding, ...]:
    """Findings that span several traces, in the order of ``policies``, at most one each."""
    if len(turns) < 2:  # one trace judges itself
        return ()
    fitting = Fitting([span for turn in turns for span in turn.spans])
    possible = [p for p in policies if p.steps and all(fitting.of(step) for step in p.steps)]
    if not possible:
        return ()
    scene = Scene([_part(turn) for turn in turns], fitting, cut=True)
    found = (match_steps_between(policy, scene) for policy in possible)
    return tuple(finding for finding in found if finding is not None)


def _part(turn: Turn) -> Part:
    top = Span(
        turn.name,
        parent_span_id=None if turn.request is not None else _MISSING,
        start_unix_nano=min(
            (s.start_unix_nano for s in turn.spans if s.start_unix_nano), default=0
        ),
        kind=PLAIN,
        detail=SpanDetail(request_tokens=turn.request, result_tokens=turn.explained),
    )
    return Part(top, _View(top, turn.spans))


def packed(tokens: frozenset[int], limit: int) -> bytes:
    """Tokens as a ``*_tokens`` field holds them, sorted, the first ``limit`` of them."""
    some = sorted(tokens)[:limit]
    return struct.pack(f"<{len(some)}Q", *some)
