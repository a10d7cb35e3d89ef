"""The short form of the proof, and that its looks are the product's comparison; a broken method fails it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks import drift_proof
from benchmarks.drift_proof import EVERY, Row, at_looks, evidence, rows, score, simulate, summed
from monitor.drift.decision import figures
from monitor.drift.evidence import Phis, compare_counts, compare_role, mixture_weights, variance
from monitor.drift.settings import DriftSettings
from tests.drift.traffic import role_sums, trace

RUNS = 20
SHORT = [row for row in rows() if row.short]


@pytest.mark.parametrize("row", SHORT, ids=[row.name for row in SHORT])
def test_a_bar_is_not_missed(row: Row) -> None:
    outcome = simulate(row, RUNS)
    assert outcome.verdict != "no", outcome


def test_a_look_is_the_products_comparison() -> None:
    rng = np.random.default_rng(7)
    sides, parts = [], []
    for model, shift in (("m1", 0.0), ("m2", 0.4)):
        n = rng.integers(1, 9, 300)
        values = [np.clip(score(rng.standard_normal(k) + shift), 0, 1) for k in n]
        stratum = np.log2(n).astype(np.int64)  # length and own count are one here
        sides.append(summed(np.concatenate(values), n, stratum))
        parts.append([trace({"planner": v}, model=model) for v in values])
    phis = Phis(1.5, 2.5)
    ref = role_sums(parts[0], "planner")
    by_role, by_counts = evidence(sides[0], sides[1], 4, phis)
    for look in range(3):
        cur = role_sums(parts[1][: (look + 1) * EVERY], "planner", "m2")
        s1, s2 = ref.s1.sum(axis=0, keepdims=True), ref.s2.sum(axis=0, keepdims=True)
        log_pi = mixture_weights(variance(np.array([ref.total]), s1, s2)[0][0])
        counts = compare_counts(ref, cur, phis, 20)
        found = figures(compare_role(ref, cur, phis), counts, log_pi, DriftSettings())
        assert found.log_e_counts is not None
        assert by_role[1:, look] == pytest.approx(found.log_e_role[::-1], rel=1e-9)
        assert by_counts[1:, look] == pytest.approx(found.log_e_counts[::-1], rel=1e-9)
    assert at_looks(sides[1], 4, EVERY)[0].sum(axis=1).tolist() == [100, 200, 300]


def _variance_of_spans(*args: object) -> object:
    """Every span as if independent: the mistake that the method is there to avoid."""
    m, v = variance(*args)  # type: ignore[arg-type]
    return m, v / 6.0


@pytest.mark.parametrize(
    ("name", "broken"),
    [("variance", _variance_of_spans), ("learn", None)],
    ids=["spans taken as independent", "hours not learnt"],
)
def test_a_broken_method_is_seen(
    name: str, broken: Callable[..., object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken is None:
        from monitor.drift.phi import Phi

        broken = lambda *_: Phi(1.0, 40, 50.0)  # noqa: E731
    monkeypatch.setattr(drift_proof, name, broken)
    verdicts = {row.name: simulate(row, RUNS).verdict for row in SHORT if row.most is not None}
    assert "no" in verdicts.values(), verdicts
