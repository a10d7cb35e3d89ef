"""A trace as the matching of policies sees it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from monitor.model import Span
from monitor.policy.causal import ByTime, Part
from monitor.policy.flow import user_request
from monitor.policy.rules import Severity, Step

LISTED_SPANS: Final = (
    50  # of a finding: what a person reads; the record's neighbourhood shows what is around
)


class Fitting:
    """Which spans fit which step, worked out once a step: policies share steps."""

    __slots__ = ("_of", "spans")

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        self._of: dict[Step, frozenset[str]] = {}

    def of(self, step: Step) -> frozenset[str]:
        """Ids of the spans that fit ``step``."""
        known = self._of.get(step)
        if known is None:
            fits = step.fits
            known = self._of[step] = frozenset([span.span_id for span in self.spans if fits(span)])
        return known


class Scene:
    """
    parts    the trees of the trace
    fitting  which spans fit which step
    cut      spans of it are missing
    request  tokens of the user's request, None where it was not captured
    """

    __slots__ = ("_order", "cut", "fitting", "parts", "request")

    def __init__(self, parts: Sequence[Part], fitting: Fitting, *, cut: bool) -> None:
        self.parts = parts
        self.fitting = fitting
        self.cut = cut
        self.request = user_request(parts)
        self._order: dict[str, int] | None = None

    def by_time(self) -> ByTime:
        """All spans whose time is known. One without would seem to come before everything."""
        return ByTime(
            [span for part in self.parts for span in part.spans if span.start_unix_nano > 0]
        )

    def in_order(self, span_ids: Collection[str], last: str) -> tuple[str, ...]:
        """Ids in causal order, part by part, with ``last`` at the end."""
        if self._order is None:
            spans = (span for part in self.parts for span in part.spans)
            self._order = {span.span_id: n for n, span in enumerate(spans)}
        return (*sorted((i for i in span_ids if i != last), key=self._order.__getitem__), last)


def lowered(severity: Severity) -> Severity:
    """Severity of a finding that is undecidable: never a page."""
    return "warning" if severity == "critical" else severity
