"""How rules and panels count: an increase that does not miss the first sample of a series.

``increase`` sees the difference of two samples. A series that is born with a burst (its first sample says 60) has none
for them, however long one looks. So a series that was not there when the window began counts from nothing: its last
value. That holds only where Prometheus would have seen it: it scraped the same worker when the window began, or the
worker started after that. If not (Prometheus itself was away), only what it has seen since counts.

A counter that was born within the window and then reset (the worker restarted) is told too small, by what it said
before. `deploy/prometheus/rules/recording.yml` holds the same text, and a test compares them.
"""

from __future__ import annotations

from typing import Final

RATE_WINDOW: Final = "$__rate_interval"
_UNITS: Final = {"m": 60, "h": 3600}
_YOUNG_SECONDS: Final = 300
"""A worker's youth where the window is Grafana's variable, which has no number: about what it stands for."""


def increase(series: str, window: str) -> str:
    """PromQL: the growth of every series of the counter ``series`` (with its matchers) in ``window``.

    ``window`` is minutes or hours (`10m`, `1h`), or ``RATE_WINDOW``. To be summed; the labels are the series' own.
    """
    return (
        f"((last_over_time({series}[{window}]) unless {series} offset {window})"
        f" and on (job, instance) (agent_monitor_build_info offset {window}"
        f" or last_over_time(agent_monitor_started_timestamp_seconds[{window}]) > time() - {_seconds(window)})"
        f" or increase({series}[{window}]))"
    )


def _seconds(window: str) -> int:
    return _YOUNG_SECONDS if window == RATE_WINDOW else int(window[:-1]) * _UNITS[window[-1]]
