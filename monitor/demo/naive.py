"""What the usual roll-ups say of the same scores: the demo's own arithmetic, nowhere in the monitor."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from scipy.stats import ks_2samp

MEAN_THRESHOLD: Final = 0.30


def trace_mean(scores: Sequence[float]) -> str:
    """The mean of a trace against the usual incident threshold."""
    mean = statistics.fmean(scores)
    verdict = "incident" if mean >= MEAN_THRESHOLD else "clean"
    return f"mean {mean:.2f} over {len(scores)} spans: {verdict}"


def pooled_drift(reference: Sequence[float], current: Sequence[float]) -> str:
    """Span-level two-sample KS over all roles pooled, at the usual .05."""
    test = ks_2samp(reference, current, method="asymp")
    if test.pvalue >= 0.05:
        return f"pooled KS D={test.statistic:.2f}, p={test.pvalue:.2f}: no change"
    direction = "safer" if statistics.fmean(current) < statistics.fmean(reference) else "worse"
    return f"pooled KS D={test.statistic:.2f}, p={test.pvalue:.0e}: {direction}"


def last_write_parent(spans: Sequence[dict[str, object]], span_id: str) -> str:
    """A join by span_id keeps whichever span came last: a plausible, wrong chain."""
    joined = {span["span_id"]: span for span in spans}
    return f"joins span {span_id} to {joined[span_id]['name']!r}, {len(spans) - len(joined)} spans lost"
