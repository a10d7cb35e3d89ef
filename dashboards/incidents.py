"""Incidents: how many, of what kind, where, and how fast the page was."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard

from dashboards.counting import RATE_WINDOW, increase
from dashboards.panels import (
    PER_SECOND,
    RATE,
    RATIO,
    SHORT,
    Query,
    board,
    choice,
    heat,
    lines,
    rows,
)

_OF_SERVICE: Final = 'agent_monitor_incidents_total{service=~"$service"}'


def build() -> dashboard.Dashboard:
    return (
        board(
            "incidents",
            "Incidents",
            "What was opened, why and where. Each incident's evidence is in its record in monitor.incidents.",
            since="now-24h",
        )
        .with_variable(choice("service", "Service", "agent_monitor_incidents_total"))
        .with_row(dashboard.Row("Opened"))
        .with_panel(
            lines(
                "By reason",
                "Incidents opened in the time up to each point.",
                SHORT,
                Query(
                    "sum by (reason) " + increase(_OF_SERVICE, RATE_WINDOW),
                    "{{reason}}",
                ),
                stacked=True,
                exemplars=True,
            )
        )
        .with_panel(
            lines(
                "By severity",
                "Incidents opened in the time up to each point. `critical` pages, `warning` waits for the morning, `info` is recorded.",
                SHORT,
                Query(
                    "sum by (severity) " + increase(_OF_SERVICE, RATE_WINDOW),
                    "{{severity}}",
                ),
                stacked=True,
                exemplars=True,
            )
        )
        .with_panel(
            rows(
                "Services with most incidents, 24 h",
                "Incidents opened in the last 24 hours by service, reason and severity.",
                SHORT,
                Query(
                    f"topk(20, sum by (service, reason, severity) {increase(_OF_SERVICE, '24h')} > 0)",
                    "incidents",
                ),
            )
        )
        .with_panel(
            rows(
                "Composition policies, 24 h",
                "Which declared chain of steps was found. Each is one incident a trace.",
                SHORT,
                Query(
                    f"topk(20, sum by (policy, severity) {increase('agent_monitor_policy_incidents_total', '24h')} > 0)",
                    "incidents",
                ),
            )
        )
        .with_panel(
            lines(
                "Critical incidents a closed trace",
                "Over 30 minutes (line) against the day before (line ending in 1 d).",
                RATIO,
                Query(
                    'agent_monitor:critical_incidents_per_trace:ratio30m{service=~"$service"}',
                    "{{service}}",
                ),
                Query(
                    'agent_monitor:critical_incidents_per_trace:ratio1d{service=~"$service"}',
                    "{{service}} 1 d",
                ),
            )
        )
        .with_panel(
            lines(
                "Undecidable policy decisions",
                "A policy needed content that was not captured, or an unbroken trace. It fell back to tags and order, at severity warning.",
                PER_SECOND,
                Query(f"sum(rate(agent_monitor_policies_undecidable_total{RATE}))", "undecidable"),
            )
        )
        .with_row(dashboard.Row("Forensics"))
        .with_panel(
            lines(
                "Forensics status of closed traces",
                "`rejected`: identity broken, no chain drawn. `incomplete`: a gap, listed and not bridged.",
                PER_SECOND,
                Query(f"sum by (status) (rate(agent_monitor_forensics_total{RATE}))", "{{status}}"),
                stacked=True,
            )
        )
        .with_panel(
            lines(
                "Identity faults by kind",
                "What is wrong with span ids.",
                PER_SECOND,
                Query(
                    f"sum by (kind) (rate(agent_monitor_identity_faults_total{RATE}))", "{{kind}}"
                ),
                stacked=True,
            )
        )
        .with_row(dashboard.Row("Pages"))
        .with_panel(
            heat(
                "Span to page",
                "Seconds from the Kafka timestamp of the causing record to Alertmanager's answer.",
                "s",
                Query(
                    f"sum by (le) (increase(agent_monitor_span_to_page_seconds_bucket{RATE}))",
                    "{{le}}",
                ),
            )
        )
        .with_panel(
            lines(
                "Alert groups firing",
                "Held at Alertmanager now; they resolve after MONITOR_INCIDENT_QUIET without a new incident.",
                SHORT,
                Query("sum by (severity) (agent_monitor_alerts_firing)", "{{severity}}"),
            )
        )
        .with_panel(
            lines(
                "Recorded, not pushed",
                "`shadow`: MONITOR_PAGE_SCORERS leaves the scorer out. `age`: older than MONITOR_PAGE_MAX_AGE, announced in one alert.",
                PER_SECOND,
                Query(
                    f"sum by (why) (rate(agent_monitor_incidents_not_pushed_total{RATE}))",
                    "{{why}}",
                ),
            )
        )
        .with_panel(
            lines(
                "Deliveries to Alertmanager",
                "Posts a second, by replica and outcome.",
                PER_SECOND,
                Query(
                    f"sum by (replica, outcome) (rate(agent_monitor_deliveries_total{RATE}))",
                    "{{replica}} {{outcome}}",
                ),
            )
        )
    )
