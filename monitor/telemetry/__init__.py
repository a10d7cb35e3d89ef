"""Every metric, in one place: declared in ``metrics.py``, moved through :class:`Telemetry`."""

from __future__ import annotations

from monitor.telemetry.labels import OTHER, BoundedLabel, clean
from monitor.telemetry.observe import Telemetry
from monitor.telemetry.spec import MetricSpec

__all__ = ["OTHER", "BoundedLabel", "MetricSpec", "Telemetry", "clean"]
