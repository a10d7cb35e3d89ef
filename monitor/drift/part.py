"""One closed trace's contribution to the drift sums: small, storable, and enough to take it out again."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from monitor.drift.bins import UPPERS
from monitor.model import ROLES, UNKNOWN, Score, Span

_ROLE_INDEX: Final[dict[str, int]] = {role: i for i, role in enumerate(ROLES)}
_OTHER_ROLE: Final = _ROLE_INDEX[UNKNOWN]


class GroupPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One trace's scores of one (service, scorer, scorer version, role, model version).

    ``bins``: the sorted bins of the scored spans, 2 bytes each in the machine's order; b"" means that the
    trace has such spans and the scorer, seen elsewhere in the trace, scored none of them. ``exceeded``: some
    score >= ``threshold``.
    """

    service: str
    scorer: str
    scorer_version: str
    role: str
    model_version: str
    bins: bytes
    threshold: float
    exceeded: bool


class TracePart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One closed trace's whole contribution. ``role_counts``: member spans by role, in the order of ROLES."""

    service: str  # of the verdict
    model_version: str  # of the verdict
    scorers: tuple[str, ...]
    spans: int  # members
    role_counts: tuple[int, ...]
    incident: bool  # some incident was opened for the trace
    groups: tuple[GroupPart, ...]


_Scores = list[tuple[Score, ...]]
_ByScorer = dict[tuple[str, str], list[float]]


def trace_part(
    members: Sequence[Span],
    *,
    verdict_service: str,
    verdict_model_version: str,
    threshold_of: Callable[[str, str, str], float],
    incident: bool,
) -> TracePart:
    """Contribution of one closed trace that was neither cut nor rejected (the fold decides which have one).

    members: member spans only, each with at most one score per scorer version (the one in force).
    threshold_of: (service, scorer, role) -> incident threshold (``Thresholds.value``).
    A score that is NaN or outside [0, 1] is never binned: it counts as not scored (intake rejects such).
    """
    by_span: dict[tuple[str, str, str], _Scores] = {}
    for span in members:
        where = (span.service, span.role, span.model_version)
        if where in by_span:
            by_span[where].append(span.scores)
        else:
            by_span[where] = [span.scores]
    role_counts = [0] * len(ROLES)
    scored: dict[tuple[str, str, str], _ByScorer] = {}
    seen: dict[
        str, set[tuple[str, str]]
    ] = {}  # service -> scorer versions that scored any of its spans
    for where, all_scores in by_span.items():
        role_counts[_ROLE_INDEX.get(where[1], _OTHER_ROLE)] += len(all_scores)
        scored[where] = values = _by_scorer(all_scores)
        seen.setdefault(where[0], set()).update(values)
    uppers = UPPERS
    groups = []
    for (service, role, model_version), values in scored.items():
        for who in seen[service]:
            scorer, version = who
            threshold = threshold_of(service, scorer, role)
            found = values.get(who)
            if found is None:
                groups.append(
                    GroupPart(service, scorer, version, role, model_version, b"", threshold, False)
                )
                continue
            found.sort()
            # bins.bin_of, written out: this runs once a span
            bins = array("H", [(k := int(v * 1000.0)) + (v > uppers[k]) for v in found]).tobytes()
            exceeded = found[-1] >= threshold
            groups.append(
                GroupPart(service, scorer, version, role, model_version, bins, threshold, exceeded)
            )
    if len(groups) > 1:
        groups.sort(key=_group_key)
    scorers = {scorer for whos in seen.values() for scorer, _ in whos}
    return TracePart(
        verdict_service,
        verdict_model_version,
        tuple(sorted(scorers)),
        len(members),
        tuple(role_counts),
        incident,
        tuple(groups),
    )


def _by_scorer(all_scores: _Scores) -> _ByScorer:
    """Values by scorer version. First the usual case: every span has one score, of the same version."""
    try:
        first = all_scores[0][0]
        scorer, version = first.scorer, first.version
        found = [s.value for (s,) in all_scores if s.scorer == scorer and s.version == version]
    except (IndexError, ValueError):
        pass
    else:
        # a NaN makes the sum NaN, and a NaN is not >= 0
        if (
            len(found) == len(all_scores)
            and min(found) >= 0.0
            and max(found) <= 1.0
            and sum(found) >= 0.0
        ):
            return {(scorer, version): found}
    values: _ByScorer = {}
    for scores in all_scores:
        for score in scores:
            if 0.0 <= score.value <= 1.0:
                values.setdefault((score.scorer, score.version), []).append(score.value)
    return values


def _group_key(part: GroupPart) -> tuple[str, str, str, str, str]:
    return (part.service, part.scorer, part.scorer_version, part.role, part.model_version)
