"""How the steps of a policy follow on each other along a track, the last step (the sink) left out.

For every span that may be one of the earlier steps it is worked out once how soon the chain of steps from it
can be complete, so that each possible sink is answered by a comparison: the cost grows with the spans, not with
the pairs of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from monitor.model import Span
from monitor.policy.rules import Step
from monitor.policy.scene import Fitting


class Track(Protocol):
    """Spans in an order with when each is entered and left, and has its effect: a part of the trace, or all
    of it by time or in any order."""

    @property
    def spans(self) -> Sequence[Span]: ...
    @property
    def entered(self) -> dict[str, int]: ...
    @property
    def left(self) -> dict[str, int]: ...
    def effect(self, span: Span, /) -> int: ...


class Ladder:
    """
    fitting   per step, the sink too: the spans that fit it and, but for the sink, have a chain before them
    done      per earlier step: span_id -> when the soonest chain from it over the rest is complete; a span from
              which there is none is not in it
    soonest   the chain that is complete first of all (empty: there is none), and
    complete  when that is
    """

    __slots__ = ("_before", "_next", "complete", "done", "fitting", "soonest", "track")

    def __init__(self, steps: Sequence[Step], track: Track, fitting: Fitting) -> None:
        self.track = track
        ids = [fitting.of(step) for step in steps]
        self.fitting = [[span for span in track.spans if span.span_id in fit] for fit in ids]
        self.done: list[dict[str, int]] = [{} for _ in steps[:-1]]
        self._next: list[dict[str, Span]] = [{} for _ in steps[:-1]]
        self._before: list[Span] = []
        self.soonest: list[Span] = []
        self.complete = 0
        if all(self.fitting) and self._reach():
            for number in range(len(self.done) - 1, -1, -1):
                self._link(number)
            done = self.done[0]
            first = min(
                (s for s in self.fitting[0] if s.span_id in done), key=lambda s: done[s.span_id]
            )
            self.soonest = self.chain(first, 0)
            self.complete = done[first.span_id]

    def chain(self, span: Span, number: int) -> list[Span]:
        """The soonest chain over the earlier steps that has ``span`` as step ``number``."""
        chain = [*self._before[:number], span]
        for following in self._next[number:-1]:
            chain.append(following[chain[-1].span_id])
        return chain

    def _reach(self) -> bool:
        """Keep the spans that have a chain before them; the soonest such chain is ``_before``."""
        entered = self.track.entered
        for number in range(len(self.done)):
            spans = self.fitting[number]
            if self._before:
                soonest = self.track.effect(self._before[-1])
                spans = self.fitting[number] = [s for s in spans if entered[s.span_id] > soonest]
            if not spans:
                return False
            self._before.append(min(spans, key=self.track.effect))
        return True

    def _link(self, number: int) -> None:
        spans = self.fitting[number]
        if number == len(self.done) - 1:
            self.done[number] = {span.span_id: self.track.effect(span) for span in spans}
            return
        entered, after = self.track.entered, self.done[number + 1]
        best = sorted(
            (span for span in self.fitting[number + 1] if span.span_id in after),
            key=lambda s: entered[s.span_id],
        )
        starts = [entered[span.span_id] for span in best]
        for i in range(
            len(best) - 2, -1, -1
        ):  # of those from here on, the one that is complete soonest
            if after[best[i + 1].span_id] < after[best[i].span_id]:
                best[i] = best[i + 1]
        for span in spans:
            i = bisect_right(starts, self.track.effect(span))
            if i < len(best):
                self._next[number][span.span_id] = best[i]
                self.done[number][span.span_id] = after[best[i].span_id]
