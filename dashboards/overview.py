"""Overview: is anything wrong now?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.counting import RATE_WINDOW, increase
from dashboards.panels import (
    PER_SECOND,
    RATE,
    RATIO,
    RED,
    SECONDS,
    SHORT,
    YELLOW,
    Query,
    board,
    lines,
    number,
    rows,
)


def build() -> dashboard.Dashboard:
    return (
        board(
            "overview",
            "Overview",
            "Is anything wrong now: what pages, what drifts, and whether the monitor itself is well.",
        )
        .with_row(dashboard.Row("Now"))
        .with_panel(
            number(
                "Critical alerts firing",
                "Alert groups of severity critical that the monitor holds at Alertmanager.",
                SHORT,
                Query('sum(agent_monitor_alerts_firing{severity="critical"})'),
                (1, RED),
                empty="0",
            )
        )
        .with_panel(
            number(
                "Critical incidents, 1 h",
                "Critical incidents opened in the last hour. One trace may open several.",
                SHORT,
                Query("sum" + increase('agent_monitor_incidents_total{severity="critical"}', "1h")),
                (1, YELLOW),
                (10, RED),
                empty="0",
            )
        )
        .with_panel(
            number(
                "Comparisons in drift",
                "Comparisons of two model versions in one role that are called drift and not yet accepted as the new baseline.",
                SHORT,
                Query(
                    'count(max by (service, scorer, scorer_version, role, comparison, reference, current) (agent_monitor_drift_decision{decision="drift"}))'
                ),
                (1, RED),
                empty="0",
            )
        )
        .with_panel(
            number(
                "Traces rejected, 15 min",
                "Share of closed traces whose span identity is broken: no causal chain of them can be trusted.",
                RATIO,
                Query(
                    'sum(agent_monitor:traces_closed:increase15m{status="rejected"}) / sum(agent_monitor:traces_closed:increase15m)'
                ),
                (0.001, YELLOW),
                (0.01, RED),
                empty="no traces",
            )
        )
        .with_panel(
            number(
                "Behind by",
                "Age of the oldest record that some stage has not processed: pages come this much late.",
                SECONDS,
                Query("max(agent_monitor:consumer_lag_seconds:max)"),
                (10, YELLOW),
                (120, RED),
                empty="unknown",
                base="green",
            )
        )
        .with_panel(
            number(
                "Span to page, p99",
                "From the Kafka timestamp of the record that caused it to Alertmanager's answer, last hour. The promise is under 2 s.",
                SECONDS,
                Query(
                    "histogram_quantile(0.99, sum by (le) (rate(agent_monitor_span_to_page_seconds_bucket[1h])))"
                ),
                (2, YELLOW),
                (10, RED),
                empty="no pages",
            )
        )
        .with_row(dashboard.Row("Traffic"))
        .with_panel(
            lines(
                "Spans by role",
                "Accepted spans a second. `unknown` is a role without a mapping: the pipeline dashboard lists the raw values.",
                PER_SECOND,
                Query(f"sum by (role) (rate(agent_monitor_spans_total{RATE}))", "{{role}}"),
                stacked=True,
            )
        )
        .with_panel(
            lines(
                "Traces closed",
                "Closed traces a second, by what closed them. Many `idle` mean that roots do not arrive; `pressure` means that memory is short.",
                PER_SECOND,
                Query(
                    f"sum by (closed_by) (rate(agent_monitor_verdicts_total{RATE}))",
                    "{{closed_by}}",
                ),
                stacked=True,
            )
        )
        .with_row(dashboard.Row("What agents do"))
        .with_panel(
            lines(
                "Incidents by reason",
                "Incidents opened in the time up to each point. `threshold`: one span's score; `policy`: a composed attack; `identity`: broken span ids; `scalar`: a valid mean; `fault`: the monitor's own.",
                SHORT,
                Query(
                    "sum by (reason, severity) "
                    + increase("agent_monitor_incidents_total", RATE_WINDOW),
                    "{{reason}} {{severity}}",
                ),
                stacked=True,
                exemplars=True,
            )
        )
        .with_panel(
            lines(
                "Critical incidents a closed trace",
                "The rate that an agent's length cannot dilute, by service, over 30 minutes.",
                RATIO,
                Query("agent_monitor:critical_incidents_per_trace:ratio30m", "{{service}}"),
            )
        )
        .with_panel(
            rows(
                "Drift decisions in force",
                "Each comparison of model versions, with its KS distance D and the decision about it.",
                SHORT,
                Query(
                    "max by (service, scorer, scorer_version, role, comparison, reference, current, decision) (agent_monitor_drift_decision) * on (service, scorer, scorer_version, role, comparison, reference, current) group_left () max by (service, scorer, scorer_version, role, comparison, reference, current) (agent_monitor_drift_distance)",
                    "D",
                ),
                span=24,
            )
        )
    )
