"""Is the distribution of scores another one? Effect sizes, and evidence that stays valid however often one looks.

A comparison holds, at each of the 35 cuts, the difference of the two sides' F (``delta``, current minus
reference) and its variance ``V``. Evidence is a mixture of likelihood ratios over shifts with sd tau
(Robbins 1970; Howard and Ramdas 2021): delta is Brownian in information time 1/V, so E is a martingale under
|F_cur - F_ref| <= d0, and P(E ever reaches 1/alpha) <= alpha. It depends on sums alone.

    g = tau^2 / (tau^2 + V)            z(+-) = (+-delta - d0) / sqrt(V)
    log E(+-) = log 2 + log(1 - g)/2 + g z^2 / 2 + log Phi(sqrt(g) z)
    E = sum over cuts of pi * (E(+) + E(-)) / 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from monitor.drift.bins import SCALE
from monitor.drift.sums import Ints, RoleSums

Floats = NDArray[np.float64]
_LOG2: Final = float(np.log(2.0))
UNIT: Final = 1.0 / SCALE  # what S2 is rounded to: no variance is trusted below it


@dataclass(frozen=True, slots=True)
class Phis:
    """Over-dispersion of the two sides: how much more F wanders from window to window than traces explain."""

    reference: float = 1.0
    current: float = 1.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides of one role at the cuts.

    delta, var [J]; ``same`` [J]: every trace of both sides lies on the same side of the cut, so the cut says
    nothing (E = 1). ``v_reference``, ``v_current``, ``v_pooled`` [J]: variances of one trace, for plans of
    how many more are needed. ``supported``: enough of both sides' traces take part.
    """

    delta: Floats
    var: Floats
    same: NDArray[np.bool_]
    d: float
    w1: float
    supported: bool
    strata: int


def variance(traces: Ints, s1: Ints, s2: Ints) -> tuple[Floats, Floats]:
    """m and v [S, J] of one trace at the cuts, from sums of ``traces`` [S] > 0; v without its floor."""
    n = SCALE * traces.astype(np.float64)[:, None]
    m = s1 / n
    return m, np.maximum(0.0, s2 / n - m * m)


def difference_variance(
    v_ref: Floats, v_cur: Floats, v_pooled: Floats, m_ref: Floats, m_cur: Floats, phis: Phis
) -> Floats:
    """V: the larger of the pooled and the unpooled form (pooled alone 12 %, unpooled alone 90 % false alarms)."""
    ref, cur = phis.reference / m_ref, phis.current / m_cur
    return np.maximum((v_pooled + UNIT) * (ref + cur), (v_ref + UNIT) * ref + (v_cur + UNIT) * cur)


def compare_role(ref: RoleSums, cur: RoleSums, phis: Phis) -> Comparison:
    """All traces of the role as one stratum. Both sides must have traces."""
    distance = _distance(
        ref,
        cur,
        np.full(len(ref.strata), 1.0 / ref.total),
        np.full(len(cur.strata), 1.0 / cur.total),
    )
    return _compare(_Side.added_up(ref), _Side.added_up(cur), phis, distance, supported=True)


def compare_counts(ref: RoleSums, cur: RoleSums, phis: Phis, min_stratum: int) -> Comparison | None:
    """Within (length, own count), over strata with enough traces on both sides; None where there is none.

    Supported: at least half of each side's traces lie in such strata.
    """
    rows_ref, rows_cur = shared_strata(ref, cur, min_stratum)
    if not rows_ref:
        return None
    side_ref, side_cur = _Side.of(ref, rows_ref), _Side.of(cur, rows_cur)
    m_r, m_c = side_ref.traces.astype(np.float64), side_cur.traces.astype(np.float64)
    h = m_r * m_c / (m_r + m_c)
    w = h / h.sum()
    factors_ref, factors_cur = np.zeros(len(ref.strata)), np.zeros(len(cur.strata))
    factors_ref[rows_ref], factors_cur[rows_cur] = w / m_r, w / m_c
    supported = (
        2 * int(side_ref.traces.sum()) >= ref.total and 2 * int(side_cur.traces.sum()) >= cur.total
    )
    return _compare(
        side_ref, side_cur, phis, _distance(ref, cur, factors_ref, factors_cur), supported, w
    )


def shared_strata(ref: RoleSums, cur: RoleSums, min_stratum: int) -> tuple[list[int], list[int]]:
    """Rows of the strata that have enough traces on both sides, in the same order."""
    at = {key: i for i, key in enumerate(cur.strata) if cur.traces[i] >= min_stratum}
    pairs = [
        (i, at[key])
        for i, key in enumerate(ref.strata)
        if key in at and ref.traces[i] >= min_stratum
    ]
    return [i for i, _ in pairs], [j for _, j in pairs]


@dataclass(frozen=True, slots=True)
class _Side:
    traces: Ints
    s1: Ints
    s2: Ints

    @classmethod
    def of(cls, sums: RoleSums, rows: Sequence[int]) -> _Side:
        return cls(sums.traces[rows], sums.s1[rows], sums.s2[rows])

    @classmethod
    def added_up(cls, sums: RoleSums) -> _Side:
        traces = np.array([sums.total])
        return cls(traces, sums.s1.sum(axis=0, keepdims=True), sums.s2.sum(axis=0, keepdims=True))


def _compare(
    ref: _Side,
    cur: _Side,
    phis: Phis,
    distance: tuple[float, float],
    supported: bool,
    weights: Floats | None = None,
) -> Comparison:
    m_ref, v_ref = variance(ref.traces, ref.s1, ref.s2)
    m_cur, v_cur = variance(cur.traces, cur.s1, cur.s2)
    both = ref.s1 + cur.s1
    _, v_pooled = variance(ref.traces + cur.traces, both, ref.s2 + cur.s2)
    n_ref = ref.traces.astype(np.float64)[:, None]
    n_cur = cur.traces.astype(np.float64)[:, None]
    delta = m_cur - m_ref
    var = difference_variance(v_ref, v_cur, v_pooled, n_ref, n_cur, phis)
    same = (both == 0) | (both == SCALE * (ref.traces + cur.traces)[:, None])
    w = np.ones(1) if weights is None else weights
    return Comparison(
        delta=w @ delta,
        var=(w * w) @ var,
        same=same.all(axis=0),
        d=distance[0],
        w1=distance[1],
        supported=supported,
        strata=len(w),
    )


def _distance(
    ref: RoleSums, cur: RoleSums, factors_ref: Floats, factors_cur: Floats
) -> tuple[float, float]:
    """(D, W1) over all bins of the F that weigh a trace of stratum s by factors[s]."""
    steps = cur.weight_bins(factors_cur) - ref.weight_bins(factors_ref)
    gap = np.abs(steps.cumsum()) / SCALE
    # Bin k's F holds from k/1000 to the next bin's upper end; the last two bins are (.999, 1) and 1 itself.
    return float(gap[:-1].max()), float(gap[:1000].sum() / 1000.0)


def mixture_weights(m_reference: Floats) -> Floats:
    """log pi [J]: half even, half by how much of the reference lies about each cut (``m_reference`` = F_r)."""
    f = np.concatenate(([0.0], m_reference, [1.0]))
    pi = 1.0 / (2 * len(m_reference)) + (f[2:] - f[:-2]) / 4.0
    return np.asarray(np.log(pi / pi.sum()))


def log_evidence(
    delta: Floats, var: Floats, same: NDArray[np.bool_], log_pi: Floats, d0: Floats, tau: float
) -> Floats:
    """Natural log of E. delta, var, same [C, J]; log_pi [J]; d0 [D]. Returns [D, C]."""
    t2 = tau * tau
    total = t2 + var
    g = t2 / total
    x = np.stack((delta, -delta))[:, None] - d0[:, None, None]  # [2, D, C, J]
    x /= np.sqrt(var)
    scaled = np.sqrt(g) * x
    log_e = _LOG2 + 0.5 * np.log(var / total) + 0.5 * scaled * scaled + log_ndtr(scaled)
    both = np.logaddexp(log_e[0], log_e[1]) - _LOG2
    both[:, same] = 0.0
    both += log_pi
    top = both.max(axis=-1)
    return np.asarray(top + np.log(np.exp(both - top[..., None]).sum(axis=-1)))


def radius(var: Floats, tau: float, alpha: float) -> float:
    """r: with probability 1 - alpha no cut's delta is ever further than this from the truth. var [J]."""
    return float(radii(var[None], tau, alpha)[0])


def radii(var: Floats, tau: float, alpha: float) -> Floats:
    """The same for many at once: var [K, J] -> [K]."""
    t2 = tau * tau
    count = var.shape[-1]
    inside = var * (1.0 + var / t2) * np.log((1.0 + t2 / var) * (count / alpha) ** 2)
    return np.asarray(np.sqrt(inside.max(axis=-1)))
