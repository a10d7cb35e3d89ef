"""A histogram without a sum.

From ``_sum / _count`` PromQL would rebuild the mean of a relational scorer's scores, which may exist
nowhere: not in a topic, a log, a metric or a dashboard. So this family has buckets and a count only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class SumlessHistogram(Collector):
    """Counts by right-closed bucket for each combination of label values, at most ``limit`` of them.

    Written by one thread; read by another through an atomic copy.
    """

    def __init__(
        self,
        name: str,
        help_: str,
        labels: Sequence[str],
        buckets: Sequence[float],
        limit: int,
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._help = name, help_
        self._labels = tuple(labels)
        self._bounds = tuple(buckets)
        self._limit = limit
        self._counts: dict[tuple[str, ...], list[int]] = {}
        registry.register(self)

    def observe(self, labels: tuple[str, ...], value: float) -> bool:
        """Count ``value``; False where the combination is new and the limit is reached."""
        if labels not in self._counts and len(self._counts) >= self._limit:
            return False
        self.spill(labels, value)
        return True

    def spill(self, labels: tuple[str, ...], value: float) -> None:
        """Count ``value`` whatever the limit: for the few combinations that stand for all the others."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
        counts[bisect_left(self._bounds, value)] += 1

    def collect(self) -> Iterable[Metric]:
        family = Metric(self._name, self._help, "histogram")
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, counts in self._counts.copy().items():
            labels = dict(zip(self._labels, values, strict=True))
            total = 0
            for bound, count in zip(bounds, counts.copy(), strict=True):
                total += count
                family.add_sample(f"{self._name}_bucket", {**labels, "le": bound}, total)
            family.add_sample(f"{self._name}_count", labels, total)
        yield family
