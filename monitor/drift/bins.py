"""The fixed grid that every drift sum shares, so that sums of any worker add up.

Bins (1002): bin 0 is exactly 0, bin k in 1..999 is ((k-1)/1000, k/1000], bin 1000 is (.999, 1), bin 1001 is
exactly 1. A score of at most three decimals sits on its bin's upper end, so distances are exact for it.
Cutpoints (35): where second moments are kept and evidence is looked for; each is the upper end of a bin.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Final

BINS: Final = 1002
WIDTH: Final = 0.001
# A trace's weights sum to exactly this: 720720 is divisible by 1..16, so up to 16 spans weigh 1/n without
# rounding, and Y^2 / 720720 summed over 10^12 traces still fits int64.
SCALE: Final = 720_720
HALF: Final = SCALE // 2

UPPERS: Final[tuple[float, ...]] = (*(k / 1000 for k in range(1000)), math.nextafter(1.0, 0.0), 1.0)

# Denser where scores of harmless traffic sit (.02-.09) and at the ends; the same everywhere.
CUT_BINS: Final[tuple[int, ...]] = (
    *(0, 1, 2, 5),
    *range(10, 101, 10),
    *range(150, 951, 50),
    *(980, 990, 995, 999),
)
CUTS: Final[tuple[float, ...]] = tuple(k / 1000 for k in CUT_BINS)
J: Final = len(CUTS)

# bin -> first cut at or over it; J for bins beyond the last cut
CUT_OF_BIN: Final[tuple[int, ...]] = tuple(bisect_left(CUT_BINS, k) for k in range(BINS))


def bin_of(value: float) -> int:
    """Bin of a score in [0, 1]: the least k with score <= UPPERS[k], exactly.

    ``value * 1000`` is off by less than one unit in the last place, so its floor is that k or k - 1.
    """
    k = int(value * 1000.0)
    return k + (value > UPPERS[k])
