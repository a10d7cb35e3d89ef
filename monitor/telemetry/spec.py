"""How a metric is declared: name, kind, help, unit, labels and who moves it, all in one call.

The declarations build the real prometheus_client objects and remember what was said of them, so the
reference page, the rules' and the dashboards' tests read the same words as ``/metrics``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from monitor.telemetry.scores import SumlessHistogram

PREFIX: Final = "agent_monitor"

# A `_created` series beside every counter and histogram would add half again to the series, and no
# rule or dashboard of ours reads one.
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class MetricSpec:
    """``name`` is the family's as queries spell it (counters end in ``_total``)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    unit: str
    labels: tuple[str, ...]
    by: str  # the part of the monitor that moves it
    has_sum: bool = True

    def series_names(self) -> tuple[str, ...]:
        """The names that a query may ask for."""
        if self.kind != "histogram":
            return (self.name,)
        suffixes = ("_bucket", "_count", "_sum") if self.has_sum else ("_bucket", "_count")
        return tuple(self.name + suffix for suffix in suffixes)


class Declarations:
    """Makes metrics on one registry and keeps their specs in order of declaration."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.specs: list[MetricSpec] = []

    def counter(self, name: str, help_: str, *labels: str, unit: str, by: str) -> Counter:
        full = f"{PREFIX}_{name}"
        self.specs.append(MetricSpec(full, "counter", help_, unit, labels, by))
        return Counter(full.removesuffix("_total"), help_, labels, registry=self._registry)

    def gauge(self, name: str, help_: str, *labels: str, unit: str, by: str) -> Gauge:
        full = f"{PREFIX}_{name}"
        self.specs.append(MetricSpec(full, "gauge", help_, unit, labels, by))
        return Gauge(full, help_, labels, registry=self._registry)

    def histogram(
        self, name: str, help_: str, *labels: str, unit: str, by: str, buckets: Sequence[float]
    ) -> Histogram:
        full = f"{PREFIX}_{name}"
        self.specs.append(MetricSpec(full, "histogram", help_, unit, labels, by))
        return Histogram(full, help_, labels, registry=self._registry, buckets=buckets)

    def sumless_histogram(
        self,
        name: str,
        help_: str,
        *labels: str,
        unit: str,
        by: str,
        buckets: Sequence[float],
        limit: int,
    ) -> SumlessHistogram:
        full = f"{PREFIX}_{name}"
        self.specs.append(MetricSpec(full, "histogram", help_, unit, labels, by, has_sum=False))
        return SumlessHistogram(full, help_, labels, buckets, limit, self._registry)
