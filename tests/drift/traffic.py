"""Made traffic for the drift tests: traces of correlated scores, and the sums of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from monitor.drift.delta import DeltaAccumulator, ScoreDelta, TracePart, encode_message, trace_part
from monitor.drift.engine import DriftEngine
from monitor.drift.report import DriftReport, MixReport
from monitor.drift.settings import DriftSettings
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


def log_of(
    parts: Sequence[tuple[int, TracePart]], *, flushes_a_window: int = 1, partitions: int = 1
) -> list[bytes]:
    """Score-deltas messages of traces given as (window, part) in the order of time.

    Each window is flushed ``flushes_a_window`` times by each of ``partitions`` folds in turn.
    """
    messages: list[bytes] = []
    by_window: dict[int, list[TracePart]] = {}
    for window, part in parts:
        by_window.setdefault(window, []).append(part)
    for window in sorted(by_window):
        mine = by_window[window]
        pieces = flushes_a_window * partitions
        for i in range(pieces):
            acc = DeltaAccumulator()
            for part in mine[i::pieces]:
                acc.add(window, part, 1)
            messages += [encode_message(d) for d in acc.flush()]
    return messages


class Run:
    """A drift engine over two dicts, and everything it said."""

    def __init__(self, settings: DriftSettings | None = None) -> None:
        self.windows: dict[bytes, bytes] = {}
        self.totals: dict[bytes, bytes] = {}
        self.engine = DriftEngine(settings or DriftSettings(), self.windows, self.totals)
        self.outputs: list = []
        self.gates: list = []
        self.controls: list = []
        self.offset = 0

    def feed(self, messages: Sequence[bytes]) -> Run:
        for message in messages:
            plan = self.engine.plan(message, self.offset)
            self.outputs += plan.outputs
            self.gates += plan.gates
            self.controls += plan.controls
            self.engine.commit(plan)
            self.offset += 1
        return self

    def drift(self, role: str = "planner", current: str = "m2") -> list[DriftReport]:
        return [
            r
            for r in self.outputs
            if isinstance(r, DriftReport) and r.role == role and r.current == current
        ]

    def mix(self, current: str = "m2") -> list[MixReport]:
        return [r for r in self.outputs if isinstance(r, MixReport) and r.current == current]
