"""Kitagawa's split of a pooled difference into composition and behaviour, exactly additive.

    dF_pooled = sum (p_c - p_r) (F_r + F_c)/2   [composition]   +   sum (p_r + p_c)/2 (F_c - F_r)   [behaviour]

over strata (role, length, own count), p the stratum's share of spans; where a stratum is missing on one side
its F there is the other side's.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from monitor.drift.bins import BINS, UPPERS
from monitor.drift.evidence import Floats
from monitor.drift.report import Composition, Split
from monitor.drift.sums import SPANS, Sums

_UPPERS: Final = np.array(UPPERS)


def kitagawa(ref: Sums, cur: Sums) -> Composition | None:
    """``ref``, ``cur``: sums of one version each, with bins. None where a side has no scored span."""
    keys = sorted({k[2:] for side in (ref, cur) for k in side.rows.keys if k[4] >= 0})
    n_ref, f_ref = _strata(ref, keys)
    n_cur, f_cur = _strata(cur, keys)
    if n_ref.sum() <= 0 or n_cur.sum() <= 0:
        return None
    p_ref, p_cur = n_ref / n_ref.sum(), n_cur / n_cur.sum()
    f_ref = np.where(n_ref[:, None] > 0, f_ref, f_cur)
    f_cur = np.where(n_cur[:, None] > 0, f_cur, f_ref)
    composition = (p_cur - p_ref) @ ((f_ref + f_cur) / 2.0)
    behaviour = ((p_ref + p_cur) / 2.0) @ (f_cur - f_ref)
    pooled = p_cur @ f_cur - p_ref @ f_ref
    at = int(np.abs(pooled).argmax())
    moved = abs(float(composition[at])) + abs(float(behaviour[at]))
    return Composition(
        share=abs(float(composition[at])) / moved if moved > 0 else None,
        at=UPPERS[at],
        cdf=Split(float(pooled[at]), float(composition[at]), float(behaviour[at])),
        mean=Split(_mean(pooled), _mean(composition), _mean(behaviour)),
    )


def _mean(d_cdf: Floats) -> float:
    """Difference of means that a difference of F stands for (scores at their bins' upper ends)."""
    return float(-(d_cdf[:-1] * np.diff(_UPPERS)).sum())


def _strata(side: Sums, keys: list[tuple[str, int, int]]) -> tuple[Floats, Floats]:
    """Spans [S] and F [S, 1002] by stratum."""
    if side.bins is None:
        raise ValueError("these sums hold no bins: take totals and open windows, not folded ones")
    at = {k: i for i, k in enumerate(keys)}
    place = np.array([at.get(k[2:], -1) for k in side.rows.keys], dtype=np.int64)
    spans = np.zeros(len(keys))
    known = place >= 0
    spans[place[known]] = side.rows.data[known, SPANS]
    row, where = np.divmod(side.bins.at, BINS)
    flat = np.bincount(
        place[row] * BINS + where, weights=side.bins.counts, minlength=len(keys) * BINS
    )
    counts = flat.reshape(len(keys), BINS)
    return spans, counts.cumsum(axis=1) / np.maximum(spans, 1.0)[:, None]
