"""One function says where a trace goes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from scipy import stats

from monitor.stream.placement import partition_of


def _random_ids() -> list[str]:
    rnd = random.Random(1)
    return [f"{rnd.getrandbits(128):032x}" for _ in range(40_000)]


def _xray_ids() -> list[str]:
    """AWS X-Ray: the first 8 digits are the time in seconds."""
    rnd = random.Random(2)
    return [f"{1_760_000_000 + n // 4000:08x}{rnd.getrandbits(96):024x}" for n in range(40_000)]


def _counted_ids() -> list[str]:
    return [f"{n:032x}" for n in range(40_000)]


@pytest.mark.parametrize("ids", [_random_ids, _xray_ids, _counted_ids])
@pytest.mark.parametrize("partitions", [2, 8, 12, 64])
def test_ids_of_every_make_spread_evenly(ids, partitions: int) -> None:
    counts = Counter(partition_of(trace_id, partitions) for trace_id in ids())
    assert stats.chisquare([counts[p] for p in range(partitions)]).pvalue > 1e-4 or (
        max(counts.values()) < 1.05 * 40_000 / partitions
    )


def test_the_placement_is_pinned() -> None:
    """A change of it would move open traces to other partitions."""
    assert [partition_of(f"{n:032x}", 8) for n in range(6)] == [0, 6, 4, 2, 1, 7]
