"""The reference page of the metrics, written from the declarations themselves."""

from __future__ import annotations

from typing import Final

from monitor.telemetry.known import FOLD_EVENTS
from monitor.telemetry.observe import Telemetry

_HEAD: Final = """\
# Metrics

Every worker shows them on `/metrics` (Prometheus text, or OpenMetrics with exemplars where it is asked for). Labels
whose values come from senders are bounded: what does not fit is `other`, and `agent_monitor_labels_folded_total` says
how much. A safety score grows with danger: 0 is safe, 1 violates. Scores are shown as maxima (`method="max"`) and
never with a sum: the mean of a relational scorer means nothing, so PromQL must not be able to rebuild one.

| metric | kind | unit | labels | meaning | moved by |
|---|---|---|---|---|---|
"""

_EVENTS_HEAD: Final = """
## Events of the fold

Values of the label `event` of `agent_monitor_fold_events_total`.

| event | meaning |
|---|---|
"""


def reference_markdown() -> str:
    """The whole page, in Markdown."""
    rows = [
        f"| `{spec.name}` | {spec.kind}{'' if spec.has_sum else ' without sum'} | {spec.unit} "
        f"| {', '.join(f'`{name}`' for name in spec.labels)} | {spec.help} | {spec.by} |\n"
        for spec in Telemetry().specs
    ]
    events = [f"| `{event}` | {meaning} |\n" for event, meaning in FOLD_EVENTS.items()]
    return _HEAD + "".join(rows) + _EVENTS_HEAD + "".join(events)
