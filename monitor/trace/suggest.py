"""Thresholds by role for a wished number of pages a day: counted on recorded traces by their highest score, not modelled.

A product of per-role distributions would assume that scores of one trace do not depend on each other, which is what
agent traces break. So a threshold is an order statistic of maxima that were seen, and what it would have paged is
how often that was so, each trace once.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from scipy.stats import chi2

from monitor.model import ROLES, Reduction

# A count of 10 is known to within a factor of about two (Poisson, 95 %: 4.8 to 18.4); below it a rate is a guess.
ENOUGH: Final = 10
# A retrieval over its threshold opens a warning, not a page (unless its scorer is per-unit).
WARNING_ROLES: Final = frozenset({"retrieval"})
STEPS: Final = 10_000  # thresholds have four decimals
_Z: Final = 1.959964  # standard normal quantile of .975

Maxima = Mapping[
    str, float
]  # role -> highest score of one trace, by any scorer; no role that has none


class Suggestion(msgspec.Struct, frozen=True):
    """
    threshold  proposed, in [0, 1], four decimals, rounded away from paging
    traces     with a score in this role
    over       of them at or over it; ``over_now``: over what is in force
    labelled   of the labelled traces those with a score in this role, ``missed`` those of them under the threshold
    """

    role: str
    threshold: float
    now: float
    traces: int
    over: int
    over_now: int
    labelled: int
    missed: int

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the figure should not be believed, in words."""
        found = []
        if self.over < ENOUGH:
            found.append(f"rests on {self.over} traces over it, {ENOUGH} are needed")
        if 2 * self.over > self.traces:
            found.append("over half of the traces are over it")
        return tuple(found)


class Suggested(msgspec.Struct, frozen=True):
    """``pages``: traces at or over the threshold of any role that pages, each once; ``pages_now``: with the present
    thresholds. ``labelled`` traces, of which ``missed`` are under every proposed threshold, warnings included."""

    roles: tuple[Suggestion, ...]
    traces: int
    pages: int
    pages_now: int
    labelled: int
    missed: int


def maxima_of(reductions: Iterable[Reduction]) -> dict[str, float]:
    """A trace's highest score by role, over all its scorers."""
    found: dict[str, float] = {}
    for reduction in reductions:
        for role, of_role in reduction.roles.items():
            if of_role.max is not None and of_role.max >= found.get(role, 0.0):
                found[role] = of_role.max
    return found


def suggest(
    traces: Mapping[str, Maxima],
    wished: int,
    now: Mapping[str, float],
    labelled: frozenset[str] = frozenset(),
) -> Suggested:
    """The lowest thresholds under which at most ``wished`` of the traces page and at most as many warn.

    Every role that pages may have the same number of traces over its threshold: the largest at which the traces over
    any of them, each counted once, are no more than wished.

    traces  trace id -> its maxima;  wished  pages a day times the days that the traces cover
    now     thresholds in force, by role
    """
    values: dict[str, list[float]] = {
        role: sorted(t[role] for t in traces.values() if role in t) for role in ROLES
    }
    paging = [role for role in ROLES if values[role] and role not in WARNING_ROLES]
    warning = [role for role in ROLES if values[role] and role in WARNING_ROLES]

    def at(count: int, roles: Sequence[str]) -> dict[str, float]:
        return {role: threshold_for(values[role], count) for role in roles}

    low, high = 0, wished  # ``low`` keeps within the wish, or nothing does
    while low < high:
        middle = (low + high + 1) // 2
        if _over_any(traces.values(), at(middle, paging)) <= wished:
            low = middle
        else:
            high = middle - 1
    chosen = at(low, paging) | at(wished, warning)
    known = labelled & traces.keys()
    return Suggested(
        tuple(
            _suggestion(role, chosen[role], now[role], values[role], traces, known)
            for role in ROLES
            if role in chosen
        ),
        len(traces),
        _over_any(traces.values(), {role: chosen[role] for role in paging}),
        _over_any(traces.values(), {role: now[role] for role in paging}),
        len(known),
        len(known) - _over_any((traces[t] for t in known), chosen),
    )


def threshold_for(ascending: Sequence[float], count: int) -> float:
    """The lowest threshold of four decimals that at most ``count`` of the values reach; 1 where even that is more.

    >>> threshold_for([0.1, 0.2, 0.3], 1), threshold_for([1.0, 1.0], 1)
    (0.2001, 1.0)
    """
    if count >= len(ascending):
        return math.floor(ascending[0] * STEPS) / STEPS  # all of them
    return min(1.0, (math.floor(ascending[-count - 1] * STEPS) + 1) / STEPS)


def exceedance(ascending: Sequence[float], threshold: float) -> int:
    """How many values reach the threshold."""
    return len(ascending) - bisect_left(ascending, threshold)


def wilson(k: int, n: int) -> tuple[float, float]:
    """95 % interval of a share of which k in n were seen (Wilson 1927): within [0, 1], and of use for 0 of n.

    >>> [round(x, 3) for x in wilson(0, 56)]
    [0.0, 0.064]
    """
    if n == 0:
        return 0.0, 1.0
    share, spread = k / n, _Z * _Z / n
    middle = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def poisson(k: int) -> tuple[float, float]:
    """95 % interval of an expected count of which k were seen (Garwood 1936).

    >>> [round(x, 1) for x in poisson(10)]
    [4.8, 18.4]
    """
    low = chi2.ppf(0.025, 2 * k) / 2 if k else 0.0
    return float(low), float(chi2.ppf(0.975, 2 * k + 2) / 2)


def _over_any(traces: Iterable[Maxima], thresholds: Mapping[str, float]) -> int:
    return sum(
        any(trace.get(role, -1.0) >= threshold for role, threshold in thresholds.items())
        for trace in traces
    )


def _suggestion(
    role: str,
    threshold: float,
    now: float,
    values: Sequence[float],
    traces: Mapping[str, Maxima],
    labelled: Iterable[str],
) -> Suggestion:
    of_labelled = [traces[t][role] for t in labelled if role in traces[t]]
    return Suggestion(
        role,
        threshold,
        now,
        len(values),
        exceedance(values, threshold),
        exceedance(values, now),
        len(of_labelled),
        sum(value < threshold for value in of_labelled),
    )
