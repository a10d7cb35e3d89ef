"""A trace as the matching of policies sees it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from monitor.model import Score, Span
from monitor.policy.causal import AnyOrder, ByTime, Part
from monitor.policy.flow import Request
from monitor.policy.rules import Severity, Step

LISTED_SPANS: Final = (
    50  # of a finding: what a person reads; the record's neighbourhood shows what is around
)


# span_id -> the highest score of each scorer version, of spans whose score in force is not the highest
Highest = Mapping[str, Sequence[Score]]
NO_HIGHER: Final[Highest] = MappingProxyType({})


class Fitting:
    """Which spans fit which step, worked out once a step: policies share steps.

    highest  scores that were given once and are no longer in force. A step's ``min_score`` looks at them too:
             a later, lower score, which any service that scores can send, takes nothing back.
    """

    __slots__ = ("_of", "highest", "spans")

    def __init__(self, spans: Sequence[Span], highest: Highest = NO_HIGHER) -> None:
        self.spans = spans
        self.highest = highest
        self._of: dict[Step, frozenset[str]] = {}

    def of(self, step: Step) -> frozenset[str]:
        """Ids of the spans that fit ``step``."""
        known = self._of.get(step)
        if known is None:
            fits, higher = step.fits, self.highest
            known = self._of[step] = frozenset(
                [
                    span.span_id
                    for span in self.spans
                    if fits(span)
                    or (higher and span.span_id in higher and fits(span, higher[span.span_id]))
                ]
            )
        return known


class Scene:
    """
    parts    the trees of the trace
    fitting  which spans fit which step
    cut      spans of it are missing
    request  what the user asked for
    """

    __slots__ = ("_order", "_part_of", "cut", "fitting", "parts", "request")

    def __init__(self, parts: Sequence[Part], fitting: Fitting, *, cut: bool) -> None:
        self.parts = parts
        self.fitting = fitting
        self.cut = cut
        self.request = Request(parts)
        self._order: dict[str, int] | None = None
        self._part_of: dict[str, Part] | None = None

    def part_of(self, span: Span) -> Part:
        """The part that ``span`` is in."""
        if len(self.parts) == 1:
            return self.parts[0]
        if self._part_of is None:
            self._part_of = {one.span_id: part for part in self.parts for one in part.spans}
        return self._part_of[span.span_id]

    def by_time(self) -> ByTime:
        """All spans whose time is known. One without would seem to come before everything."""
        return ByTime(
            [span for part in self.parts for span in part.spans if span.start_unix_nano > 0]
        )

    def in_any_order(self) -> AnyOrder:
        """All spans, whatever their times say."""
        return AnyOrder([span for part in self.parts for span in part.spans])

    def in_order(self, span_ids: Collection[str], last: str) -> tuple[str, ...]:
        """Ids in causal order, part by part, with ``last`` at the end."""
        if self._order is None:
            spans = (span for part in self.parts for span in part.spans)
            self._order = {span.span_id: n for n, span in enumerate(spans)}
        return (*sorted((i for i in span_ids if i != last), key=self._order.__getitem__), last)


def lowered(severity: Severity) -> Severity:
    """Severity of a finding that is undecidable: never a page."""
    return "warning" if severity == "critical" else severity
