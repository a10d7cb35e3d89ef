"""A version's windows in the order of time: what phi is learnt from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from monitor.drift.bins import SCALE, J
from monitor.drift.evidence import Floats, variance
from monitor.drift.phi import Phi, learn
from monitor.drift.sums import TRACES, Ints, Sums, cumulative

Stratum = tuple[int, int]  # length, own


class _Window(NamedTuple):
    strata: list[Stratum]
    traces: Ints  # [S]
    s1: Ints  # [S, J] cumulative
    s2: Ints
    tails: dict[tuple[Stratum, float], tuple[int, int]]


class RoleSeries:
    """One role of one version, window by window; windows without scored traces of the role are left out."""

    def __init__(self, windows: list[_Window]) -> None:
        self.windows = windows
        self.strata = sorted({s for w in windows for s in w.strata})
        at = {s: i for i, s in enumerate(self.strata)}
        self.traces = np.zeros((len(windows), len(self.strata)), dtype=np.int64)  # [W, S]
        self.s1 = np.zeros((len(windows), len(self.strata), J), dtype=np.int64)
        self.s2 = np.zeros_like(self.s1)
        for i, w in enumerate(windows):
            place = [at[s] for s in w.strata]
            self.traces[i, place] = w.traces
            self.s1[i, place] = w.s1
            self.s2[i, place] = w.s2

    def phis(self) -> tuple[Phi | None, Phi | None]:
        """phi by role, and within strata."""
        return self._phi(self.traces.sum(axis=1, keepdims=True), grouped=False), self._phi(
            self.traces, grouped=True
        )

    def _phi(self, traces: Ints, *, grouped: bool) -> Phi | None:
        if not self.windows:
            return None
        axes = (0,) if grouped else (0, 1)
        s1 = self.s1.sum(axis=axes).reshape(traces.shape[1], J)
        s2 = self.s2.sum(axis=axes).reshape(traces.shape[1], J)
        means, v = variance(traces.sum(axis=0), s1, s2)
        number = traces.sum(axis=0).astype(np.float64)
        return learn(
            self.s1.sum(axis=1) / SCALE, traces.astype(np.float64), means, number @ v / number.sum()
        )

    def tail_phi(self, threshold: float) -> Phi | None:
        """phi of the exceedance indicator within strata, over windows judged by this threshold."""
        at = {s: i for i, s in enumerate(self.strata)}
        traces = np.zeros((len(self.windows), len(self.strata)))
        exceed = np.zeros_like(traces)
        for i, w in enumerate(self.windows):
            for (stratum, t), (m, k) in w.tails.items():
                if t == threshold and stratum in at:
                    traces[i, at[stratum]], exceed[i, at[stratum]] = m, k
        total = traces.sum(axis=0)
        used = total > 0
        if not used.any():
            return None
        traces, total = traces[:, used], total[used]
        rate: Floats = exceed[:, used].sum(axis=0) / total
        v = np.array([float(total @ (rate * (1.0 - rate))) / float(total.sum())])
        return learn(exceed.sum(axis=1, keepdims=True), traces, rate[:, None], v)


def by_role(
    windows: Iterable[Sums], scorer_version: str, model_version: str
) -> dict[str, RoleSeries]:
    """Series of every role of one version. ``windows`` in the order of time; bins are not needed."""
    found: dict[str, list[_Window]] = {}
    for sums in windows:
        rows: dict[str, list[int]] = {}
        for i, key in enumerate(sums.rows.keys):
            if (
                key[0] == scorer_version
                and key[1] == model_version
                and sums.rows.data[i, TRACES] > 0
            ):
                rows.setdefault(key[2], []).append(i)
        tails: dict[str, dict[tuple[Stratum, float], tuple[int, int]]] = {}
        for (key, threshold), (m, k) in zip(sums.tails.keys, sums.tails.data.tolist(), strict=True):
            if key[0] == scorer_version and key[1] == model_version:
                tails.setdefault(key[2], {})[key[3:], threshold] = (m, k)
        for role, mine in rows.items():
            s1, s2 = cumulative(sums.rows.data[mine])
            strata = [sums.rows.keys[i][3:] for i in mine]
            window = _Window(strata, sums.rows.data[mine, TRACES], s1, s2, tails.get(role, {}))
            found.setdefault(role, []).append(window)
    return {role: RoleSeries(ws) for role, ws in found.items()}
