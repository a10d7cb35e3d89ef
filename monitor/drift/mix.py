"""Length and role mix of traces, and their incident rate: evidence once a trace.

Length: Y_j = [log2 bucket of the trace's members <= j]. Role mix: Y_r = role r's share of the members. The same
evidence as for scores, pi even. Never reported as behaviour: it decides the cardinality gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from monitor.drift.bins import SCALE
from monitor.drift.evidence import UNIT, Floats, Phis, log_evidence, radii
from monitor.drift.phi import Phi, learn
from monitor.drift.report import MixEvidence
from monitor.drift.settings import DriftSettings
from monitor.drift.sums import (
    MIX_INCIDENTS,
    MIX_N,
    MIX_N2,
    MIX_SHARES,
    MIX_SQUARES,
    MIX_TRACES,
    MIX_WIDTH,
    Ints,
    Sums,
)
from monitor.model import ROLES

LENGTHS: Final = (
    16  # buckets told apart: 1, 2-3, ... 32,768 and more (max_spans cuts a trace at 10,000)
)


class MixSums:
    """Length buckets, role shares and incidents of some traces of one verdict model version."""

    __slots__ = ("incidents", "lengths", "shares", "squares", "sum_n", "sum_n2", "traces")

    def __init__(self, lengths: Ints, columns: Ints) -> None:
        self.lengths = lengths  # traces by bucket [16]
        self.traces = int(columns[MIX_TRACES])
        self.incidents = int(columns[MIX_INCIDENTS])
        self.sum_n = int(columns[MIX_N])
        self.sum_n2 = int(columns[MIX_N2])
        self.shares: Ints = columns[MIX_SHARES : MIX_SHARES + len(ROLES)]
        self.squares: Ints = columns[MIX_SQUARES : MIX_SQUARES + len(ROLES)]

    @classmethod
    def of(cls, sums: Sums, model_version: str) -> MixSums:
        lengths = np.zeros(LENGTHS, dtype=np.int64)
        columns = np.zeros(sums.mix.data.shape[1], dtype=np.int64)
        for (version, length), row in zip(sums.mix.keys, sums.mix.data, strict=True):
            if version == model_version:
                lengths[min(length, LENGTHS - 1)] += row[MIX_TRACES]
                columns += row
        return cls(lengths, columns)

    @classmethod
    def added(cls, windows: Sequence[MixSums]) -> MixSums:
        """The sum of some; all zero for none."""
        new = cls(np.zeros(LENGTHS, dtype=np.int64), np.zeros(MIX_WIDTH, dtype=np.int64))
        for w in windows:
            for field in cls.__slots__:
                setattr(new, field, getattr(new, field) + getattr(w, field))
        return new

    @property
    def spans_per_trace(self) -> tuple[float, float]:
        """Mean and standard deviation."""
        mean = self.sum_n / self.traces
        return mean, float(np.sqrt(max(0.0, self.sum_n2 / self.traces - mean * mean)))

    def moments(self, what: str) -> tuple[Floats, Floats]:
        """m and v [J] of one trace's Y: ``length`` (J = 16), ``roles`` (5) or ``incidents`` (1)."""
        if what == "roles":
            m = self.shares / (SCALE * self.traces)
            return m, np.maximum(0.0, self.squares / (SCALE * self.traces) - m * m)
        if what == "length":
            m = self.lengths.cumsum() / self.traces
            return m, m * (1.0 - m)
        # none in 400 traces is not known to be none at all: the variance is that of one more, and one not
        smooth = (self.incidents + 1.0) / (self.traces + 2.0)
        return np.array([self.incidents / self.traces]), np.array([smooth * (1.0 - smooth)])


class MixPhis:
    """phi of the three, learnt from the reference's windows; None: fewer than 8 of them."""

    __slots__ = ("incidents", "length", "roles")

    def __init__(self, windows: Sequence[MixSums]) -> None:
        live = [w for w in windows if w.traces > 0]
        self.length = self.roles = self.incidents = None
        if live:
            self.length = _phi(live, "length")
            self.roles = _phi(live, "roles")
            self.incidents = _phi(live, "incidents")


def _phi(windows: Sequence[MixSums], what: str) -> Phi | None:
    traces = np.array([w.traces for w in windows], dtype=np.float64)
    s1 = np.stack([w.moments(what)[0] for w in windows]) * traces[:, None]
    mean = s1.sum(axis=0) / traces.sum()
    if what == "roles":
        second = np.stack([w.squares for w in windows]).sum(axis=0) / (SCALE * traces.sum())
        v = np.maximum(0.0, second - mean * mean)
    else:
        v = mean * (1.0 - mean)
    return learn(s1, traces[:, None], mean[None], v)


def mix_evidence(
    ref: MixSums,
    cur: MixSums,
    what: str,
    phi: Phi | None,
    nbar_current: float,
    log_needed: float | None,
    settings: DriftSettings,
    d0: float | None = None,
) -> MixEvidence:
    """Evidence of one of the three. ``log_needed``: natural log E at which it is ``shifted``."""
    m_ref, v_ref = ref.moments(what)
    m_cur, v_cur = cur.moments(what)
    delta = m_cur - m_ref
    d = float(np.abs(delta).max())
    if phi is None:
        return MixEvidence(
            d=d, log_e=None, radius=None, phi=None, decision="unknown", reason="phi_unknown"
        )
    share = ref.traces / (ref.traces + cur.traces)
    m = share * m_ref + (1.0 - share) * m_cur
    v_pooled = np.maximum(
        0.0, share * (v_ref + m_ref * m_ref) + (1.0 - share) * (v_cur + m_cur * m_cur) - m * m
    )
    phis = phi.sides(nbar_current)
    var = mix_variance(v_ref, v_cur, v_pooled, ref.traces, cur.traces, phis)
    same = ((m_ref == 0.0) & (m_cur == 0.0)) | ((m_ref == 1.0) & (m_cur == 1.0))
    even = np.full(len(delta), -float(np.log(len(delta))))
    against = np.array([settings.d0_page if d0 is None else d0])
    log_e = float(
        log_evidence(delta[None], var[None], same[None], even, against, settings.tau)[0, 0]
    )
    r = float(radii(var[None], settings.tau, settings.alpha_equivalent)[0])
    if log_needed is not None and log_e >= log_needed:
        decision, reason = "shifted", "evidence"
    elif d + r < settings.d_equivalent:
        decision, reason = "stationary", "equivalent"
    else:
        decision, reason = "unknown", "not_yet"
    return MixEvidence(d=d, log_e=log_e, radius=r, phi=phi.value, decision=decision, reason=reason)


def mix_variance(
    v_ref: Floats, v_cur: Floats, v_pooled: Floats, m_ref: int, m_cur: int, phis: Phis
) -> Floats:
    ref, cur = phis.reference / m_ref, phis.current / m_cur
    return np.maximum((v_pooled + UNIT) * (ref + cur), (v_ref + UNIT) * ref + (v_cur + UNIT) * cur)
