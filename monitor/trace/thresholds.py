"""Incident thresholds, conditioned on role: which score of which span is too high.

A safety score grows with danger, so a score **at or above** its threshold counts. The threshold of a span
depends on its role, since an echoed chunk scores high in a retrieval and means little there. A more
particular rule wins: service + scorer + role, then scorer + role, then role.
"""

from __future__ import annotations

from monitor.model import UNKNOWN, Score, Span, judged_role
from monitor.trace.config import DEFAULT_THRESHOLDS, FoldSettings


class Thresholds:
    """Look-up of thresholds in [0, 1], made once from the settings and asked for every score.

    No memory of what was asked: names of services come from hostile input, and a cache of them would
    need a bound. Most scorers have no rule of their own, which costs one set look-up to find out.

    >>> t = Thresholds(FoldSettings())
    >>> t.value("any service", "any scorer", "tool_call"), t.value("any", "any", "retrieval")
    (0.3, 0.8)
    """

    __slots__ = ("_by_role", "_by_scorer", "_by_service", "_default", "_own", "lowest")

    def __init__(self, settings: FoldSettings) -> None:
        self._by_role = {**DEFAULT_THRESHOLDS, **settings.thresholds}
        self._default = self._by_role[UNKNOWN]
        self._by_scorer: dict[tuple[str, str], float] = {}
        self._by_service: dict[tuple[str, str, str], float] = {}
        for rule in settings.threshold_overrides:
            if rule.service is None:
                self._by_scorer[rule.scorer, rule.role] = rule.value
            else:
                self._by_service[rule.service, rule.scorer, rule.role] = rule.value
        self._own = {rule.scorer for rule in settings.threshold_overrides}
        self.lowest = (
            min(  # no score below it can count, whatever its role: the first question on a hot path
                *self._by_role.values(), *(rule.value for rule in settings.threshold_overrides), 1.0
            )
        )

    def value(self, service: str, scorer: str, role: str) -> float:
        """Threshold of a score of ``scorer`` on a span of ``role`` and ``service``.

        A role that the settings do not name has the threshold of role ``unknown``.
        """
        if scorer in self._own:
            own = self._by_service.get((service, scorer, role))
            if own is None:
                own = self._by_scorer.get((scorer, role))
            if own is not None:
                return own
        return self._by_role.get(role, self._default)

    def reached_by(self, span: Span, score: Score) -> bool:
        """Whether ``score`` of ``span`` is at or over its threshold."""
        value = score.value
        return value >= self.lowest and value >= self.value(
            span.service, score.scorer, judged_role(span.role, score.judged)
        )

    def elevated(self, span: Span) -> bool:
        """Whether any score of ``span`` is at or over its threshold."""
        return any(self.reached_by(span, score) for score in span.scores)
