"""The classical view, for comparison only: a fixed-sample Kolmogorov-Smirnov test. Not for alerting.

On scores of at most three decimals it equals ``scipy.stats.ks_2samp(method="asymp")``. It takes every span as
independent and one look as the only look; the second p-value at least counts traces' effective number.
"""

from __future__ import annotations

import msgspec
import numpy as np
from scipy.stats import kstwo

from monitor.drift.evidence import variance
from monitor.drift.sums import RoleSums


class Classical(msgspec.Struct, frozen=True):
    """``d``, ``p``: raw span counts. ``p_effective``: the same d with the effective numbers ``n_effective``."""

    d: float
    p: float
    p_effective: float | None
    spans: tuple[int, int]
    n_effective: tuple[float, float] | None
    label: str = "fixed sample, not for alerting"


def classical(ref: RoleSums, cur: RoleSums) -> Classical | None:
    """None where a side has no span."""
    if ref.spans <= 0 or cur.spans <= 0:
        return None
    gap = cur.count_bins().cumsum() / cur.spans - ref.count_bins().cumsum() / ref.spans
    d = float(np.abs(gap).max())
    n_ref, n_cur = effective_size(ref), effective_size(cur)
    known = n_ref is not None and n_cur is not None
    return Classical(
        d=d,
        p=ks_p(d, ref.spans, cur.spans),
        p_effective=ks_p(d, n_ref, n_cur) if n_ref is not None and n_cur is not None else None,
        spans=(ref.spans, cur.spans),
        n_effective=(n_ref, n_cur) if known else None,  # type: ignore[arg-type]
    )


def ks_p(d: float, n_ref: float, n_cur: float) -> float:
    """p-value of a two-sample KS distance, as scipy's asymptotic method has it."""
    n = n_ref * n_cur / (n_ref + n_cur)
    return float(np.clip(kstwo.sf(d, max(1.0, np.round(n))), 0.0, 1.0))


def effective_size(side: RoleSums) -> float | None:
    """M sum m(1-m) / sum v: how many independent scores would know F as well. None where F has no spread."""
    s1, s2 = side.s1.sum(axis=0, keepdims=True), side.s2.sum(axis=0, keepdims=True)
    m, v = variance(side.traces.sum(keepdims=True), s1, s2)
    spread = float(v.sum())
    return side.total * float((m * (1.0 - m)).sum()) / spread if spread > 0 else None
