"""Over-dispersion: how much more a reference wanders from window to window than its traces' spread explains.

Learnt from the reference alone: one that also looks at the current side hides a change that comes during it.
An hour's effect does not shrink with traces per hour, so it is carried to the current side by traffic:
nbar = sum n_w^2 / sum n_w, rho = (phi - 1) / nbar_ref, phi_cur = 1 + rho nbar_cur.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from monitor.drift.evidence import Floats, Phis

MIN_BLOCKS: Final = 8  # a variance of fewer says nothing


class Phi(msgspec.Struct, frozen=True, array_like=True):
    """phi of one role and comparison, the windows it was learnt from and their traffic."""

    value: float
    windows: int
    nbar: float

    def sides(self, nbar_current: float) -> Phis:
        rho = (self.value - 1.0) / self.nbar if self.nbar > 0 else 0.0
        return Phis(self.value, 1.0 + rho * nbar_current)

    def larger(self, nbar_current: float) -> float:
        """The larger of the two sides', where one has to serve both (the tail's likelihood ratio)."""
        sides = self.sides(nbar_current)
        return max(sides.reference, sides.current)


def mean_traffic(traces: Floats) -> float:
    """nbar of traces per window [W]."""
    total = float(traces.sum())
    return float((traces * traces).sum()) / total if total > 0 else 0.0


def over_dispersion(residuals: Floats, traces: Floats, v: Floats) -> float | None:
    """phi >= 1, or None under 8 windows.

    residuals [W, J]: a window's sum of (Y - its stratum's mean), in the order of time; traces [W] > 0;
    v [J]: variance of one trace within its stratum.
    """
    windows = len(traces)
    if windows < MIN_BLOCKS:
        return None
    spread = float(v.sum())
    if spread <= 0.0:
        return 1.0
    f: list[float] = []
    candidates = [1.0]
    size = 1
    while (blocks := windows // size) >= MIN_BLOCKS:
        used = blocks * size
        r = residuals[:used].reshape(blocks, size, -1).sum(axis=1)
        n = traces[:used].reshape(blocks, size).sum(axis=1)
        ratio = r / n[:, None]
        f.append(float(n.mean()) * float(ratio.var(axis=0, ddof=1).sum()) / spread)
        candidates.append(f[-1] * (1.0 + float(np.sqrt(2.0 / (blocks - 1)))))
        size *= 2
    candidates += [2.0 * f[i + 1] - f[i] for i in range(len(f) - 1)]
    return max(candidates)


def learn(s1: Floats, strata: Floats, means: Floats, v: Floats) -> Phi | None:
    """phi from per-window sums.

    s1 [W, J]: sum of Y (in traces) of each window; strata [W, S]: its traces by stratum; means [S, J]: each
    stratum's m over all these windows; v [J] as above. Windows without traces are left out. None: under 8.
    """
    traces = strata.sum(axis=1)
    live = traces > 0
    s1, strata, traces = s1[live], strata[live], traces[live]
    value = over_dispersion(s1 - strata @ means, traces, v)
    return None if value is None else Phi(value, len(traces), mean_traffic(traces))
