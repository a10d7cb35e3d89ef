"""How common a score as high as an incident's is among traces as long: counted on verdicts, not modelled.

A trace of 500 spans has a higher maximum than one of 5 whatever happens in it, so only traces of the same length
bucket (members, by powers of two, as the drift sums have them) are compared. ``F_role(x) ** n`` would give a number
for any length, and assume that the scores of a trace do not depend on each other.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from monitor.model import Incident, Verdict


class Common(msgspec.Struct, frozen=True):
    """Of ``traces`` with ``shortest`` to ``longest`` members and a score in the role, ``as_high`` reached the score."""

    shortest: int
    longest: int
    traces: int
    as_high: int


class Commonness:
    """Fed with verdicts in any order; answers for one incident.

    Counted are traces of the incident's service that closed before it opened, by its scorer version (of any scorer
    where it names none), the last revision of each life. Left out: its own trace, those cut short, and those whose
    identity is rejected, whose lengths are not known. Held: a few bytes a trace of that service.
    """

    def __init__(self, incident: Incident) -> None:
        self._incident = incident
        self._own: int | None = None  # members of the incident's trace
        self._revision = 0
        self._lives: dict[tuple[str, int], tuple[int, int, float | None]] = {}

    @property
    def answerable(self) -> bool:
        """Whether the incident is about a score of a role at all."""
        incident = self._incident
        return (
            incident.max_score is not None
            and incident.argmax_role is not None
            and incident.trace_id is not None
        )

    def add(self, verdict: Verdict) -> None:
        incident = self._incident
        if (verdict.trace_id, verdict.life) == (incident.trace_id, incident.life):
            if verdict.revision > self._revision:
                self._revision, self._own = verdict.revision, verdict.span_count
            return
        if (
            verdict.service != incident.service
            or verdict.trace_id == incident.trace_id
            or verdict.closed_at_ms > incident.opened_at_ms
        ):
            return
        key = verdict.trace_id, verdict.life
        known = self._lives.get(key)
        if known is None or verdict.revision > known[0]:
            counts = not verdict.cut and verdict.forensics.status != "rejected"
            top = self._top(verdict) if counts else None
            self._lives[key] = (verdict.revision, verdict.span_count, top)

    def _top(self, verdict: Verdict) -> float | None:
        incident = self._incident
        tops = [
            role.max
            for reduction in verdict.reductions
            if incident.scorer is None
            or (reduction.scorer, reduction.scorer_version)
            == (incident.scorer, incident.scorer_version)
            for name, role in reduction.roles.items()
            if name == incident.argmax_role and role.max is not None
        ]
        return max(tops, default=None)

    def found(self) -> Common | None:
        """None where no verdict of the incident's own trace was seen: its length is not known yet."""
        score = self._incident.max_score
        if self._own is None or score is None:
            return None
        bucket = self._own.bit_length() - 1
        counted: defaultdict[bool, int] = defaultdict(int)
        for _, spans, top in self._lives.values():
            if top is not None and spans.bit_length() - 1 == bucket:
                counted[top >= score] += 1
        shortest = 1 << bucket if bucket >= 0 else 0
        return Common(
            shortest, max(0, 2 * shortest - 1), counted[True] + counted[False], counted[True]
        )
