"""Exceedance of a role's threshold: what a KS distance cannot see (.1 % to .5 % of traces).

E is the mean, over ratios psi, of a conditional likelihood ratio of the current side's exceedances within
strata; upward only. It is shown when the current rate is at least twice the reference's: an effect gate, no
proof of 2x.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from monitor.drift.evidence import Floats
from monitor.drift.sums import RoleSums

RATIOS: Final = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """Traces with a span at or over ``incident_threshold``. ``log_e`` natural; null: not comparable."""

    incident_threshold: float
    exceed: tuple[int, int]
    traces: tuple[int, int]
    log_e: float | None
    threshold: float | None  # log E needed
    phi: float | None
    shown: bool  # current rate at least twice the reference's
    decision: str  # drift | not_yet | not_comparable


def log_tail_evidence(
    m_ref: Floats, k_ref: Floats, m_cur: Floats, k_cur: Floats, phi: float
) -> float:
    """Natural log of E over strata [S]: traces m and exceeding traces k of both sides."""
    psi = np.array(RATIOS)[:, None]
    c = 0.5 * m_ref / m_ref.sum()
    per_stratum = k_cur * np.log(psi) - (k_ref + k_cur + c) * np.log(
        (m_ref + psi * m_cur) / (m_ref + m_cur)
    )
    exponent = per_stratum.sum(axis=1) / phi
    top = float(exponent.max())
    return top + float(np.log(np.exp(exponent - top).mean()))


def tail_strata(
    ref: RoleSums, cur: RoleSums, incident_threshold: float, min_stratum: int
) -> tuple[Floats, Floats, Floats, Floats] | None:
    """(m_ref, k_ref, m_cur, k_cur) over shared strata judged by this threshold.

    None where they hold less than half of either side's such traces.
    """
    a, b = ref.tails.get(incident_threshold, {}), cur.tails.get(incident_threshold, {})
    shared = [s for s in sorted(a) if s in b and a[s][0] >= min_stratum and b[s][0] >= min_stratum]
    if not shared:
        return None
    table = np.array([(*a[s], *b[s]) for s in shared], dtype=np.float64)
    if (
        2 * table[:, 0].sum() < totals(ref, incident_threshold)[0]
        or 2 * table[:, 2].sum() < totals(cur, incident_threshold)[0]
    ):
        return None
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def totals(side: RoleSums, incident_threshold: float) -> tuple[int, int]:
    """(traces, exceeding traces) of a side judged by this threshold."""
    strata = side.tails.get(incident_threshold, {}).values()
    return sum(m for m, _ in strata), sum(k for _, k in strata)
