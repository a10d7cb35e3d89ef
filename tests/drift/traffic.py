"""Made traffic for the drift tests: traces of correlated scores, and the sums of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from monitor.drift.delta import DeltaAccumulator, ScoreDelta, TracePart, trace_part
from monitor.drift.sums import RoleSums, Sums, merge, sums_by_window
from monitor.model import Score, Span

SERVICE, SCORER = "svc", "guard"


def correlated(rng: np.random.Generator, n: int, icc: float = 0.5, d: float = 0.0) -> np.ndarray:
    """n scores of one trace: 1 - Beta(8, 2), a Gaussian copula of correlation icc; shifted by KS distance d.

    The shift raises the normal score by s, where D = 2 Phi(s/2) - 1.
    """
    shift = 2.0 * stats.norm.ppf((1.0 + d) / 2.0)
    z = np.sqrt(icc) * rng.standard_normal() + np.sqrt(1 - icc) * rng.standard_normal(n) + shift
    return 1.0 - stats.beta.isf(stats.norm.cdf(z), 8, 2)


class Table:
    """Quantile table of the same marginal: a hundred times faster than ppf a draw."""

    def __init__(self) -> None:
        self.z = np.linspace(-6, 6, 4001)
        self.x = stats.beta.ppf(stats.norm.cdf(self.z), 2, 8)

    def draw(
        self, rng: np.random.Generator, n: int, icc: float = 0.5, d: float = 0.0
    ) -> np.ndarray:
        shift = 2.0 * stats.norm.ppf((1.0 + d) / 2.0) if d else 0.0
        z = np.sqrt(icc) * rng.standard_normal() + np.sqrt(1 - icc) * rng.standard_normal(n) + shift
        return np.clip(np.interp(z, self.z, self.x), 0.0, 1.0)


def trace(
    roles: dict[str, Sequence[float]],
    *,
    model: str = "m1",
    version: str = "1",
    incident: bool = False,
) -> TracePart:
    """One closed trace: scores by role."""
    spans = [
        Span(
            f"{i:016x}",
            role,
            (Score(SCORER, version, float(v)),),
            service=SERVICE,
            model_version=model,
        )
        for i, (role, v) in enumerate((r, v) for r, values in roles.items() for v in values)
    ]
    return trace_part(
        spans,
        verdict_service=SERVICE,
        verdict_model_version=model,
        threshold_of=lambda *_: 0.3,
        incident=incident,
    )


def deltas(parts: Sequence[tuple[int, TracePart]]) -> list[ScoreDelta]:
    acc = DeltaAccumulator()
    for window, part in parts:
        acc.add(window, part, 1)
    return acc.flush()


def sums_of(parts: Sequence[TracePart]) -> Sums:
    found = [s for delta in deltas([(0, p) for p in parts]) for s in sums_by_window(delta).values()]
    return merge(found)


def role_sums(
    parts: Sequence[TracePart], role: str, model: str = "m1", version: str = "1"
) -> RoleSums:
    return RoleSums(sums_of(parts).of_version(version, model), role)
