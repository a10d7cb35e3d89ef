"""Pipeline: is the monitor itself well?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.counting import increase
from dashboards.panels import (
    BYTES,
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
            "pipeline",
            "Pipeline",
            "Lag, throughput, memory, recovery, refusals and delivery: whether what the other dashboards show is whole.",
            since="now-3h",
        )
        .with_row(dashboard.Row("State"))
        .with_panel(
            number(
                "Workers",
                "Workers that are scraped.",
                SHORT,
                Query("count(agent_monitor_build_info)"),
                (1, "green"),
                base=RED,
                empty="0",
            )
        )
        .with_panel(
            number(
                "Partitions refused",
                "Could not be restored and are left out: their traces are not watched.",
                SHORT,
                Query("sum(agent_monitor_refused_partitions)"),
                (1, RED),
                empty="0",
            )
        )
        .with_panel(
            number(
                "Input topics missing",
                "Named by MONITOR_INPUTS and not there.",
                SHORT,
                Query("sum(max by (topic) (agent_monitor_input_topic_missing))"),
                (1, RED),
                empty="0",
            )
        )
        .with_panel(
            number(
                "Partitions outranked",
                "Use other settings than the worker that owns them.",
                SHORT,
                Query("sum(agent_monitor_settings_outranked)"),
                (1, YELLOW),
                empty="0",
            )
        )
        .with_panel(
            number(
                "Time stands still for",
                "Longest hold of time on a quiet partition, because ingest is behind.",
                SECONDS,
                Query("max(agent_monitor_tick_hold_seconds)"),
                (30, YELLOW),
                (300, RED),
                empty="0 s",
            )
        )
        .with_panel(
            number(
                "Oldest loop",
                "Since the slowest loop last went round.",
                SECONDS,
                Query("max(time() - agent_monitor_heartbeat_timestamp_seconds)"),
                (10, YELLOW),
                (60, RED),
                empty="unknown",
            )
        )
        .with_row(dashboard.Row("Flow"))
        .with_panel(
            lines(
                "Lag",
                "Age of the oldest record not yet processed.",
                SECONDS,
                Query("agent_monitor:consumer_lag_seconds:max", "{{stage}} {{topic}}"),
            )
        )
        .with_panel(
            lines(
                "Lag in records",
                "Records between the committed position and the end, all partitions.",
                SHORT,
                Query(
                    "sum by (stage, topic) (agent_monitor_consumer_lag_records)",
                    "{{stage}} {{topic}}",
                ),
            )
        )
        .with_panel(
            lines(
                "Input",
                "Records read a second. Behind a Collector one record holds many spans.",
                PER_SECOND,
                Query(
                    f"sum by (topic) (rate(agent_monitor_input_records_total{RATE}))", "{{topic}}"
                ),
            )
        )
        .with_panel(
            lines(
                "Input bytes",
                "Bytes read a second.",
                "Bps",
                Query(f"sum by (topic) (rate(agent_monitor_input_bytes_total{RATE}))", "{{topic}}"),
            )
        )
        .with_panel(
            lines(
                "Since the last record",
                "By our clock, since the Kafka timestamp of the newest record of a topic.",
                SECONDS,
                Query(
                    "time() - max by (topic) (agent_monitor_input_last_record_timestamp_seconds)",
                    "{{topic}}",
                ),
            )
        )
        .with_panel(
            lines(
                "Dead letters",
                "Items refused a second, by reason. They are kept in monitor.deadletters.",
                PER_SECOND,
                Query(
                    f"sum by (topic, reason) (rate(agent_monitor_dead_letters_total{RATE}))",
                    "{{topic}} {{reason}}",
                ),
                stacked=True,
            )
        )
        .with_panel(
            rows(
                "Roles without a mapping, 24 h",
                "Raw values of spans that became `unknown`: what to add to MONITOR_CONVENTIONS.",
                SHORT,
                Query(
                    f"topk(20, sum by (raw) {increase('agent_monitor_unknown_roles_total', '24h')} > 0)",
                    "spans",
                ),
            )
        )
        .with_panel(
            lines(
                "Share of spans without a score",
                "By scorer, in traces where it scored another span. What no scorer has looked at cannot be judged.",
                RATIO,
                Query(
                    f"sum by (scorer) (rate(agent_monitor_unscored_spans_total{RATE}))"
                    f" / (sum by (scorer) (rate(agent_monitor_unscored_spans_total{RATE}))"
                    f" + sum by (scorer) (rate(agent_monitor_scored_spans_total{RATE})))",
                    "{{scorer}}",
                ),
                maximum=1,
            )
        )
        .with_panel(
            lines(
                "Traces without any score",
                "Closed traces a second in which no scorer scored anything: only their shape was watched.",
                PER_SECOND,
                Query(
                    f"sum by (service) (rate(agent_monitor_unscored_traces_total{RATE}))",
                    "{{service}}",
                ),
            )
        )
        .with_row(dashboard.Row("Assembly"))
        .with_panel(
            lines(
                "Traces in memory",
                "Open, and closed but still waiting for late spans.",
                SHORT,
                Query("sum(agent_monitor_open_lives)", "open"),
                Query("sum(agent_monitor_closed_lives)", "closed"),
            )
        )
        .with_panel(
            lines(
                "Memory of the fullest partition",
                "Encoded spans as a share of the partition's budget. At 1 traces close as `pressure`, or lose their late window.",
                RATIO,
                Query(
                    'max(agent_monitor_open_bytes) / scalar(max(agent_monitor_bytes_limit{state="open"}))',
                    "open",
                ),
                Query(
                    'max(agent_monitor_closed_bytes) / scalar(max(agent_monitor_bytes_limit{state="closed"}))',
                    "closed",
                ),
                maximum=1,
            )
        )
        .with_panel(
            lines(
                "Late and repeated",
                "Revisions made by late spans, and identical copies of spans that were collapsed, a second.",
                PER_SECOND,
                Query(
                    f"sum(rate(agent_monitor_verdict_revisions_total{RATE}))",
                    "revisions of verdicts",
                ),
                Query(
                    f"sum(rate(agent_monitor_incident_revisions_total{RATE}))",
                    "revisions of incidents",
                ),
                Query(
                    f"sum(rate(agent_monitor_redelivered_spans_total{RATE}))", "redelivered spans"
                ),
            )
        )
        .with_panel(
            lines(
                "Cut traces",
                "A limit cut them: every span was judged, none enters the drift sums.",
                PER_SECOND,
                Query(
                    f"sum by (closed_by) (rate(agent_monitor_cut_traces_total{RATE}))",
                    "{{closed_by}}",
                ),
                stacked=True,
            )
        )
        .with_panel(
            lines(
                "Fold events",
                "What the fold counts on its way.",
                PER_SECOND,
                Query(f"sum by (event) (rate(agent_monitor_fold_events_total{RATE}))", "{{event}}"),
            )
        )
        .with_panel(
            lines(
                "Messages of the keyed stages",
                "`skipped`: already applied, after a restart.",
                PER_SECOND,
                Query(
                    f"sum by (agent, outcome) (rate(agent_monitor_agent_messages_total{RATE}))",
                    "{{agent}} {{outcome}}",
                ),
            )
        )
        .with_row(dashboard.Row("Transactions and recovery"))
        .with_panel(
            lines(
                "Transactions",
                "By outcome. `fenced` comes with a rebalance; `unknown` is a commit whose answer was lost, resolved by reading it.",
                PER_SECOND,
                Query(
                    f"sum by (stage, outcome) (rate(agent_monitor_transactions_total{RATE}))",
                    "{{stage}} {{outcome}}",
                ),
            )
        )
        .with_panel(
            lines(
                "Transaction time, p99",
                "From the first record to the commit.",
                SECONDS,
                Query(
                    f"histogram_quantile(0.99, sum by (le, stage) (rate(agent_monitor_transaction_seconds_bucket{RATE})))",
                    "{{stage}}",
                ),
            )
        )
        .with_panel(
            lines(
                "Snapshot size",
                "Of the largest partition.",
                BYTES,
                Query("max(agent_monitor_snapshot_bytes)", "largest"),
            )
        )
        .with_panel(
            lines(
                "Restore time, p99",
                "Time to take over one partition.",
                SECONDS,
                Query(
                    "histogram_quantile(0.99, sum by (le) (rate(agent_monitor_restore_seconds_bucket[1h])))",
                    "p99",
                ),
            )
        )
        .with_panel(
            lines(
                "Lanes",
                "By state, all workers.",
                SHORT,
                Query("sum by (stage, state) (agent_monitor_lanes)", "{{stage}} {{state}}"),
            )
        )
        .with_panel(
            lines(
                "Alerts waiting for delivery",
                "Not yet taken by Alertmanager.",
                SHORT,
                Query("sum(agent_monitor_delivery_queue)", "waiting"),
            )
        )
        .with_panel(
            lines(
                "Folded label values",
                "Names that the dashboards show as `other`, by label.",
                PER_SECOND,
                Query(
                    f"sum by (label) (rate(agent_monitor_labels_folded_total{RATE}))", "{{label}}"
                ),
            )
        )
    )
