"""The comparison of two tables: the example's output, scipy's figures, input that is not as it should be."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from monitor.drift.table import compare


def columns(scores: list, spans: int = 1, window: int | None = None) -> dict:
    return {
        "trace_id": [i // spans for i in range(len(scores))],
        "role": ["planner"] * len(scores),
        "score": scores,
        "hour": [i // spans // 50 if window is None else window for i in range(len(scores))],
    }


def test_the_example_says_same_and_moved(repository: Path) -> None:
    example = str(repository / "examples" / "compare_versions.py")
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True)
    same, moved = done.stdout.splitlines()
    assert same.startswith("the same: tool_call equivalent") or "not_yet" in same
    assert moved.startswith("moved: tool_call drift")


def test_figures_are_scipys() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.beta(2, 8, 400).round(3), rng.beta(3, 8, 300).round(3)
    [found] = compare(columns(a.tolist()), columns(b.tolist()))
    classical = stats.ks_2samp(a, b, method="asymp")
    assert found.classical is not None
    assert found.classical.d == pytest.approx(classical.statistic, abs=1e-12)
    assert found.classical.p == pytest.approx(classical.pvalue, rel=1e-12, abs=1e-300)
    assert found.d == pytest.approx(classical.statistic, abs=1e-12)  # one span a trace
    assert found.w1 == pytest.approx(stats.wasserstein_distance(a, b), abs=1e-12)


def test_input_that_is_not_as_it_should_be() -> None:
    assert compare(columns([]), columns([])) == []
    [found] = compare(columns([0.1] * 10), columns([math.nan, None, 7, "x"]))
    assert (found.decision, found.traces.current) == ("not_comparable", 0)
    two_hours = columns([0.1, 0.2], spans=2) | {"hour": [1, 2]}
    with pytest.raises(ValueError, match="two windows"):
        compare(two_hours, two_hours, window="hour")
    with pytest.raises(ValueError, match="differ in length"):
        compare(columns([0.1]) | {"role": []}, columns([0.1]))


def test_phi_needs_windows_and_says_where_there_are_none() -> None:
    rng = np.random.default_rng(4)
    table = columns(rng.beta(2, 8, 1000).tolist())
    [without], [within] = compare(table, table), compare(table, table, window="hour")
    assert without.phi is None
    assert "without windows" in without.why
    assert within.phi is not None
    assert within.phi >= 1
    assert within.d == 0
