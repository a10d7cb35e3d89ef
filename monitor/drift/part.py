"""One closed trace's contribution to the drift sums: small, storable, and enough to take it out again."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from monitor.drift.bins import UPPERS
from monitor.model import ROLES, UNKNOWN, Score, Span

OTHER: Final = "other"

# Distinct (service, model version) of one trace, in order of arrival; what is past them counts as (other, other).
# An agent graph has a handful, one for each service that is being upgraded a second; spans choose them freely.
MAX_PLACES: Final = 32
# Groups of one trace that only say "not scored". There can be (services x roles x versions) x scorers of them, far
# more than the trace has spans; five roles under 32 scorers, three of four scored by none, still fit.
MAX_UNSCORED: Final = 256

_ROLE_INDEX: Final[dict[str, int]] = {role: i for i, role in enumerate(ROLES)}
_OTHER_ROLE: Final = _ROLE_INDEX[UNKNOWN]


class GroupPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One trace's scores of one (service, scorer, scorer version, role, model version): places in ``names``.

    ``bins``: the sorted bins of the scored spans, 2 bytes each in the machine's order; b"" means that the
    trace has such spans and the scorer, seen elsewhere in the trace, scored none of them. ``exceeded``: some
    score >= ``threshold``.
    """

    service: int
    scorer: int
    scorer_version: int
    role: int
    model_version: int
    bins: bytes
    threshold: float
    exceeded: bool


class TracePart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One closed trace's whole contribution. ``role_counts``: member spans by role, in the order of ROLES.

    At most one group a score, and MAX_UNSCORED more. ``names``: those of the groups, each once, so that
    many groups with long names weigh no more than the trace that brought them.
    """

    service: str  # of the verdict
    model_version: str  # of the verdict
    scorers: tuple[str, ...]
    spans: int  # members
    role_counts: tuple[int, ...]
    incident: bool  # some incident was opened for the trace
    names: tuple[str, ...]
    groups: tuple[GroupPart, ...]


_Where = tuple[str, str, str]  # service, role, model version
_Scores = list[tuple[Score, ...]]
_ByScorer = dict[tuple[str, str], list[float]]
_Whos = dict[tuple[str, str], list[float]]  # its keys, in order of arrival


def trace_part(
    members: Sequence[Span],
    *,
    verdict_service: str,
    verdict_model_version: str,
    threshold_of: Callable[[str, str, str], float],
    incident: bool,
    units: Sequence[Span] = (),
) -> TracePart:
    """Contribution of one closed trace that was neither cut nor rejected (the fold decides which have one).

    members: member spans only, each with at most one score per scorer version (the one in force).
    threshold_of: (service, scorer, role) -> incident threshold (``Thresholds.value``).
    units: for scores of another unit than their span's role says (a tool's result): copies of the spans in that
    unit's role with these scores alone. They are scored there, and are no further members.
    A score that is NaN or outside [0, 1] is never binned: it counts as not scored (intake rejects such).
    """
    by_span: dict[_Where, _Scores] = {}
    for span in members:
        where = (span.service, span.role, span.model_version)
        if where in by_span:
            by_span[where].append(span.scores)
        else:
            by_span[where] = [span.scores]
    role_counts = [0] * len(ROLES)
    for (_, role, _), all_scores in by_span.items():
        role_counts[_ROLE_INDEX.get(role, _OTHER_ROLE)] += len(all_scores)
    for unit in units:
        where = (unit.service, unit.role, unit.model_version)
        by_span.setdefault(where, []).append(unit.scores)
    if len(by_span) > MAX_PLACES:
        by_span = _bounded(by_span, verdict_service)
    scored: dict[_Where, _ByScorer] = {}
    seen: dict[str, _Whos] = {}  # service -> scorer versions that scored any of its spans
    names: dict[str, int] = {}
    for where, all_scores in by_span.items():
        scored[where] = values = _by_scorer(all_scores)
        if where[0] in seen:
            seen[where[0]].update(values)
        else:
            seen[where[0]] = dict(values)
    uppers = UPPERS
    groups = []
    unscored = 0
    for (service, role, model_version), values in scored.items():
        whos = seen[service]
        s = names.setdefault(service, len(names))
        r = names.setdefault(role, len(names))
        m = names.setdefault(model_version, len(names))
        for (scorer, version), found in values.items():
            threshold = threshold_of(service, scorer, role)
            found.sort()
            # bins.bin_of, written out: this runs once a span
            bins = array("H", [(k := int(v * 1000.0)) + (v > uppers[k]) for v in found]).tobytes()
            c = names.setdefault(scorer, len(names))
            v = names.setdefault(version, len(names))
            groups.append(GroupPart(s, c, v, r, m, bins, threshold, found[-1] >= threshold))
        if len(values) == len(whos) or unscored == MAX_UNSCORED:
            continue
        for who in whos:
            if who not in values:
                scorer, version = who
                threshold = threshold_of(service, scorer, role)
                c = names.setdefault(scorer, len(names))
                v = names.setdefault(version, len(names))
                groups.append(GroupPart(s, c, v, r, m, b"", threshold, False))
                unscored += 1
                if unscored == MAX_UNSCORED:
                    break
    return TracePart(
        verdict_service,
        verdict_model_version,
        tuple(sorted({scorer for whos in seen.values() for scorer, _ in whos})),
        len(members),
        tuple(role_counts),
        incident,
        tuple(names),
        tuple(groups),
    )


def _bounded(by_span: dict[_Where, _Scores], of: str) -> dict[_Where, _Scores]:
    """All but the first MAX_PLACES pairs of service and model version under (other, other). The trace's own service,
    ``of``, has as many to itself: another one's made-up versions must not push it out of the sums."""
    own: set[tuple[str, str]] = set()
    others: set[tuple[str, str]] = set()
    bounded: dict[_Where, _Scores] = {}
    for (service, role, model_version), scores in by_span.items():
        place = (service, model_version)
        places = own if service == of else others
        if place not in places:
            if len(places) == MAX_PLACES:
                place = (OTHER, OTHER)
            else:
                places.add(place)
        bounded.setdefault((place[0], role, place[1]), []).extend(scores)
    return bounded


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
