"""The demo's traffic is what the story says of it: only then do its claims mean something."""

from __future__ import annotations

from collections import defaultdict

import pytest
from scipy.stats import ks_2samp

from monitor.demo.traffic import REFERENCE, SHIFTED, UPGRADED, Traffic, Version

TRACES = 3_000


def by_role(version: Version, seed: int) -> dict[str, list[float]]:
    traffic = Traffic(seed)
    scores: dict[str, list[float]] = defaultdict(list)
    for _ in range(TRACES):
        for span in traffic.ordinary(version).spans:
            scores[span["role"]].append(span["scores"][0]["value"])
    return scores


def test_the_upgrade_takes_three_times_the_steps_and_every_role_scores_as_before() -> None:
    old, new = by_role(REFERENCE, 1), by_role(UPGRADED, 2)
    assert 2.3 < len(new["planner"]) / len(old["planner"]) < 3.1  # with the root, which both have
    for role, scores in old.items():
        # A root of fixed score would be a tenth of the old planners and a thirtieth of the new: D = .09.
        assert ks_2samp(scores, new[role]).statistic < 0.03, role


def test_the_shift_is_in_tool_calls_alone() -> None:
    old, new = by_role(REFERENCE, 1), by_role(SHIFTED, 2)
    distances = {role: ks_2samp(scores, new[role]).statistic for role, scores in old.items()}
    assert distances.pop("tool_call") > 0.3
    assert max(distances.values()) < 0.03


@pytest.mark.parametrize("version", [REFERENCE, SHIFTED])
def test_no_trace_of_the_old_length_reaches_the_next_bucket(version: Version) -> None:
    traffic = Traffic(3)
    assert max(len(traffic.ordinary(version).spans) for _ in range(TRACES)) == 15
