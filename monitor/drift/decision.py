"""From figures to a decision: drift, not_comparable, explained_by_counts, equivalent, not_yet (how many more)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.drift.evidence import (
    Comparison,
    Floats,
    Phis,
    difference_variance,
    log_evidence,
    radii,
    radius,
    variance,
)
from monitor.drift.report import Decision
from monitor.drift.settings import DriftSettings
from monitor.drift.sums import RoleSums

# A change of coverage of this much could by itself move F by as much as what pages (d0 = .05); three standard
# errors, since a share looked at often must not flicker.
COVERAGE_ERRORS = 3.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What a look knows of one role of a pair. ``log_e`` rows: d0 of page, of ticket; null where undefined."""

    role: Comparison
    counts: Comparison | None
    log_e_role: tuple[float, float]
    log_e_counts: tuple[float, float] | None  # None: counts not supported
    radius: float
    radius_counts: float | None

    @property
    def log_e(self) -> tuple[float, float] | None:
        """The smaller of role and counts; None stands for E = 0."""
        if self.log_e_counts is None:
            return None
        return (
            min(self.log_e_role[0], self.log_e_counts[0]),
            min(self.log_e_role[1], self.log_e_counts[1]),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    decision: Decision
    reason: str
    why: str


def figures(
    role: Comparison, counts: Comparison | None, log_pi: Floats, settings: DriftSettings
) -> Figures:
    d0 = np.array((settings.d0_page, settings.d0_ticket))
    supported = counts is not None and counts.supported
    sides = [role, counts] if counts is not None and supported else [role]
    log_e = log_evidence(
        np.stack([c.delta for c in sides]),
        np.stack([c.var for c in sides]),
        np.stack([c.same for c in sides]),
        log_pi,
        d0,
        settings.tau,
    )
    r = radii(np.stack([c.var for c in sides]), settings.tau, settings.alpha_equivalent)
    return Figures(
        role=role,
        counts=counts,
        log_e_role=(float(log_e[0, 0]), float(log_e[1, 0])),
        log_e_counts=(float(log_e[0, 1]), float(log_e[1, 1])) if supported else None,
        radius=float(r[0]),
        radius_counts=float(r[1]) if supported else None,
    )


def decide(
    found: Figures, log_needed: float, best_radius: float, settings: DriftSettings
) -> Verdict:
    """The first that holds. ``best_radius``: what the radius would be with endless traces of the current side."""
    role, counts, limit = found.role, found.counts, settings.d_equivalent
    log_e = found.log_e
    if log_e is not None and log_e[0] >= log_needed:
        return Verdict(
            "drift",
            "evidence",
            f"scores moved by D = {role.d:.3f} ({0.0 if counts is None else counts.d:.3f} at equal counts of spans); "
            f"log E = {log_e[0]:.1f} >= {log_needed:.1f}",
        )
    crossed = found.log_e_role[0] >= log_needed
    if crossed and found.log_e_counts is None:
        return Verdict(
            "not_comparable",
            "counts_not_supported",
            f"scores of the role moved by D = {role.d:.3f}, but fewer than half of the traces have a counterpart with "
            "as many spans; cure: traffic of both versions with lengths that overlap",
        )
    counts_equal = (
        counts is not None
        and found.radius_counts is not None
        and counts.d + found.radius_counts < limit
    )
    if crossed and counts is not None and counts_equal:
        return Verdict(
            "explained_by_counts",
            "counts_equal",
            f"scores of the role moved by D = {role.d:.3f}; at equal counts of spans by {counts.d:.3f} "
            f"(to within {found.radius_counts:.3f}): the counts changed, not the behaviour",
        )
    if role.d + found.radius < limit and (found.log_e_counts is None or counts_equal):
        return Verdict(
            "equivalent",
            "within_margin",
            f"D = {role.d:.3f} and the truth is within {found.radius:.3f} of it: no shift of {limit:.2f} or more",
        )
    if best_radius >= limit and found.log_e_role[0] < log_needed and role.d <= settings.d0_page:
        return Verdict(
            "not_comparable",
            "reference_too_small",
            f"with this reference D is never known better than to {best_radius:.3f}, so neither drift nor equivalence "
            "can be shown; cure: more reference traces, or pin a version that has more",
        )
    return Verdict(
        "not_yet",
        "more_traces_needed",
        f"D = {role.d:.3f}, known to within {found.radius:.3f}; log E = "
        + (f"{log_e[0]:.1f}" if log_e is not None else "0 (counts not supported)")
        + f" of {log_needed:.1f}",
    )


def coverage(side: RoleSums) -> float | None:
    """Share of the role's traces that were scored."""
    seen = side.total + side.unscored
    return side.total / seen if seen > 0 else None


def coverage_moved(ref: RoleSums, cur: RoleSums, phis: Phis, settings: DriftSettings) -> bool:
    a, b = coverage(ref), coverage(cur)
    if a is None or b is None:
        return False
    error = np.sqrt(
        a * (1 - a) * phis.reference / (ref.total + ref.unscored)
        + b * (1 - b) * phis.current / (cur.total + cur.unscored)
    )
    return bool(abs(a - b) > settings.d0_page + COVERAGE_ERRORS * error)


def variances(ref: RoleSums, cur: RoleSums) -> tuple[Floats, Floats, Floats]:
    """v [J] of one trace at the role's cuts: reference, current, both added up."""
    sides = [
        (int(s.traces.sum()), s.s1.sum(axis=0, keepdims=True), s.s2.sum(axis=0, keepdims=True))
        for s in (ref, cur)
    ]
    both = tuple(a + b for a, b in zip(*sides, strict=True))
    v = [variance(np.array([n]), s1, s2)[1][0] for n, s1, s2 in (*sides, both)]
    return v[0], v[1], v[2]


def best_radius(ref: RoleSums, phis: Phis, settings: DriftSettings) -> float:
    """The radius that endless traces of the current side would leave, were it as the reference is."""
    n, s1, s2 = (
        np.array([ref.total]),
        ref.s1.sum(axis=0, keepdims=True),
        ref.s2.sum(axis=0, keepdims=True),
    )
    v = variance(n, s1, s2)[1][0]
    endless = np.full(1, np.inf)
    var = difference_variance(v, v, v, np.full(1, float(ref.total)), endless, phis)
    return radius(var, settings.tau, settings.alpha_equivalent)


_GROWTH = 1.25 ** np.arange(
    1, 41
)  # up to 7,500 times the traces; beyond that nothing useful can be said


def traces_needed(
    ref: RoleSums,
    cur: RoleSums,
    phis: Phis,
    found: Figures,
    log_pi: Floats,
    log_needed: float,
    settings: DriftSettings,
) -> tuple[int, str] | None:
    """(how many more traces of the current version, toward what) if delta stays as it is; None: never."""
    v_ref, v_cur, v_pooled = variances(ref, cur)
    m_cur: Floats = np.asarray(cur.total * _GROWTH[:, None], dtype=np.float64)
    var = difference_variance(
        v_ref, v_cur, v_pooled, np.full((1, 1), float(ref.total)), m_cur, phis
    )
    many = len(_GROWTH)
    log_e = log_evidence(
        np.broadcast_to(found.role.delta, var.shape),
        var,
        np.broadcast_to(found.role.same, var.shape),
        log_pi,
        np.array([settings.d0_page]),
        settings.tau,
    )[0]
    r = radii(var, settings.tau, settings.alpha_equivalent)
    drift = log_e >= log_needed
    equal = found.role.d + r < settings.d_equivalent
    for i in range(many):
        if drift[i] or equal[i]:
            return int(np.ceil(m_cur[i, 0])) - cur.total, "drift" if drift[i] else "equivalent"
    return None


def benjamini_hochberg(log_e: list[float], m: int, q: float) -> list[int]:
    """Indices rejected by e-BH among m hypotheses: equal to Benjamini-Hochberg on p = min(1, 1/E)."""
    order = sorted(range(len(log_e)), key=lambda i: (-log_e[i], i))
    best = 0
    for k, i in enumerate(order, 1):
        if max(log_e[i], 0.0) >= np.log(m / (q * k)):
            best = k
    return sorted(order[:best])
