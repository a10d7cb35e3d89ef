"""Reduce a trace's scores to structured objects, one per scorer version. Never to a bare number.

A safety score grows with danger. A reduction names the highest score, the span that had it, out of how many,
and the same by role. A mean exists only for a scorer whose policy class looks at one unit at a time, and
then always with its method and denominator; automated thresholds may use it only while all four conditions of
validity hold. For a relational class, or one that nobody declared, it can be found nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any, Final

from monitor.model import MEMBER, Reduction, RoleReduction, Scalar, Score, Span, judged_role
from monitor.trace.config import FoldSettings, ScorerRule
from monitor.trace.identity import IdentityReport

# The four conditions of validity, by the names under which a failed one is reported and counted.
POLICY_DECOMPOSABLE: Final = "policy_decomposable"  # the policy looks at one unit at a time
SCORES_INDEPENDENT: Final = "scores_independent"  # no score depends on what a sibling holds
CARDINALITY_STATIONARY: Final = "cardinality_stationary"  # spans per trace do not drift (the gate)
IDENTITY_UNIQUE: Final = "identity_unique"  # forensics complete
CONDITIONS: Final = (
    POLICY_DECOMPOSABLE,
    SCORES_INDEPENDENT,
    CARDINALITY_STATIONARY,
    IDENTITY_UNIQUE,
)

_UNDECLARED: Final = ScorerRule()

# What is kept of one role by one scorer version: [spans scored, highest score, the span that has it]. A list,
# since this is the inner loop of every judgement.
_Cell = list[Any]


def reduce_scores(
    spans: Sequence[Span],
    report: IdentityReport,
    settings: FoldSettings,
    gates: Mapping[tuple[str, str], str],
    service: str,
) -> tuple[Reduction, ...]:
    """One `Reduction` per (scorer, version) seen on a member span, sorted by these two.

    spans    ``report.spans`` (re-deliveries collapsed), perhaps with late scores joined to them. Order
             does not matter. Only members are counted and chosen: no judge, guardrail or wrapper
    gates    (service, scorer) -> cardinality gate in force: stationary | shifted | unknown; absent: unknown
    service  the verdict's service

    Equal scores: the span that started first is the argmax; then the one with the smaller span_id; then (an
    id that is there twice) the one with the smaller content hash. A missing score is not 0: such a span is
    in ``span_count`` and ``count``, not in ``scored_count`` and ``scored``. A span scored more than once by
    one scorer version counts once, with its highest score. The role of a scored span is that of the unit that
    was judged (`monitor.model.judged_role`).
    """
    counts: dict[str, int] = {}
    table: dict[tuple[str, str], dict[str, _Cell]] = {}
    moved: dict[
        tuple[str, str], dict[str, int]
    ] = {}  # scorer version -> role -> spans more, or fewer
    for span in spans:
        if span.kind != MEMBER:
            continue
        role = span.role
        counts[role] = counts.get(role, 0) + 1
        scores = span.scores
        if len(scores) > 1:
            scores = highest_by_scorer(scores)
        for score in scores:
            by_role = table.get((score.scorer, score.version))
            if by_role is None:
                by_role = table[score.scorer, score.version] = {}
            unit = role
            if score.judged:
                unit = judged_role(role, score.judged)
                if unit != role:
                    by = moved.setdefault((score.scorer, score.version), {})
                    by[role] = by.get(role, 0) - 1
                    by[unit] = by.get(unit, 0) + 1
            cell = by_role.get(unit)
            value = score.value
            if cell is None:
                by_role[unit] = [1, value, span]
                continue
            cell[0] += 1
            if value >= cell[1] and (value > cell[1] or _before(span, cell[2])):
                cell[1] = value
                cell[2] = span
    span_count = sum(counts.values())
    return tuple(
        _reduction(
            key,
            table[key],
            _counts_of(counts, moved[key]) if key in moved else counts,
            span_count,
            spans,
            report,
            settings,
            gates,
            service,
        )
        for key in sorted(table)
    )


def _counts_of(counts: dict[str, int], moved: dict[str, int]) -> dict[str, int]:
    """Spans by role as one scorer version sees them: one whose result it judged is a retrieval to it."""
    seen = {role: counts.get(role, 0) + moved.get(role, 0) for role in counts | moved}
    return {role: count for role, count in seen.items() if count}


def failed_conditions(
    rule: ScorerRule,
    scorer: str,
    version: str,
    spans: Iterable[Span],
    gate: str,
    report: IdentityReport,
) -> tuple[str, ...]:
    """The conditions of validity that do not hold, in the order of ``CONDITIONS``.

    A relational or undeclared class fails the first one always, and then has no scalar at all.
    """
    failed = []
    if not rule.per_unit:
        failed.append(POLICY_DECOMPOSABLE)
    if not rule.independent or _scored_call_after_retrieval(spans, scorer, version):
        failed.append(SCORES_INDEPENDENT)
    if gate != "stationary":
        failed.append(CARDINALITY_STATIONARY)
    if report.status != "complete":
        failed.append(IDENTITY_UNIQUE)
    return tuple(failed)


def _reduction(
    key: tuple[str, str],
    by_role: dict[str, _Cell],
    counts: dict[str, int],
    span_count: int,
    spans: Sequence[Span],
    report: IdentityReport,
    settings: FoldSettings,
    gates: Mapping[tuple[str, str], str],
    service: str,
) -> Reduction:
    scorer, version = key
    rule = settings.scorers.get(scorer, _UNDECLARED)
    scored_count = 0
    top: _Cell | None = None
    top_role = ""
    roles: dict[str, RoleReduction] = {}
    for role in sorted(counts):
        cell = by_role.get(role)
        if cell is None:
            roles[role] = RoleReduction(counts[role], 0)
            continue
        scored, value, span = cell
        scored_count += scored
        roles[role] = RoleReduction(counts[role], scored, value, span.span_id)
        if top is None or value > top[1] or (value == top[1] and _before(span, top[2])):
            top, top_role = cell, role
    assert top is not None, key  # a key is made by its first score
    scalar = None
    if rule.per_unit:
        gate = gates.get((service, scorer), "unknown")
        why_not = failed_conditions(rule, scorer, version, spans, gate, report)
        # fsum is exact before it rounds, so the mean does not depend on the order of the spans.
        value = fsum(_values(spans, scorer, version, scored_count)) / scored_count
        scalar = Scalar(value, scored_count, not why_not, why_not)
    return Reduction(
        scorer,
        version,
        rule.policy_class,
        top[1],
        top[2].span_id,
        top_role,
        span_count,
        scored_count,
        roles,
        scalar,
    )


def _before(a: Span, b: Span) -> bool:
    return (a.start_unix_nano, a.span_id, a.content_hash) < (
        b.start_unix_nano,
        b.span_id,
        b.content_hash,
    )


def highest_by_scorer(scores: Sequence[Score]) -> tuple[Score, ...]:
    """One score a scorer version: a span counts once, whichever of its units were judged."""
    best: dict[tuple[str, str], Score] = {}
    for score in scores:
        known = best.get((score.scorer, score.version))
        if known is None or score.value > known.value:
            best[score.scorer, score.version] = score
    return tuple(best.values())


def _values(spans: Iterable[Span], scorer: str, version: str, scored_count: int) -> list[float]:
    """The scorer's scores of the members, one a span."""
    values = [
        score.value
        for span in spans
        if span.kind == MEMBER
        for score in span.scores
        if score.scorer == scorer and score.version == version
    ]
    if len(values) == scored_count:
        return values
    once = []  # some span has several
    for span in spans:
        own = [
            score.value
            for score in span.scores
            if (score.scorer, score.version) == (scorer, version)
        ]
        if own and span.kind == MEMBER:
            once.append(max(own))
    return once


def _scored_call_after_retrieval(spans: Iterable[Span], scorer: str, version: str) -> bool:
    """Whether the scorer judged a tool call's arguments that may have been written after a retrieval.

    Such an argument is only dangerous given what was retrieved, so its score is no score of one unit.
    'After' is decided by start times of one service; across services clocks differ, and a span may come
    without times: what cannot be shown to be before counts as after.
    """
    members = [span for span in spans if span.kind == MEMBER]
    retrieved = [span for span in members if span.role == "retrieval"]
    if not retrieved:
        return False
    called = [
        span
        for span in members
        if span.role == "tool_call"
        and any(score.scorer == scorer and score.version == version for score in span.scores)
    ]
    if not called:
        return False
    one_service = len({span.service for span in retrieved} | {span.service for span in called}) == 1
    starts = [span.start_unix_nano for span in called]
    first_retrieval = min(span.start_unix_nano for span in retrieved)
    return not (one_service and min(starts) > 0 and max(starts) < first_retrieval)
