"""Drift: has an agent's behaviour changed, or only how much it does?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import RATE, RATIO, SHORT, Query, board, choice, heat, lines, rows

_KEY: Final = 'service=~"$service",scorer=~"$scorer",role=~"$role"'
_PAIR: Final = "service, scorer, scorer_version, role, comparison, reference, current"
_LEGEND: Final = "{{service}} {{scorer}} {{scorer_version}} {{role}}: {{reference}} → {{current}} ({{comparison}})"


def build() -> dashboard.Dashboard:
    return (
        board(
            "drift",
            "Drift",
            "Scores by role and model version: what changed, how sure that is, and what a change of length or mix explains.",
            since="now-7d",
        )
        .with_variable(choice("service", "Service", "agent_monitor_drift_decision"))
        .with_variable(choice("scorer", "Scorer", "agent_monitor_trace_score_count"))
        .with_variable(choice("role", "Role", "agent_monitor_trace_score_count"))
        .with_row(dashboard.Row("Decisions"))
        .with_panel(
            rows(
                "Decisions in force",
                "`drift`: behaviour changed. `explained_by_counts`: another length or mix explains it. `equivalent`: shown to be the same. `not_yet`: too few traces. `not_comparable`: the report says what would cure it.",
                SHORT,
                Query(f"max by ({_PAIR}, decision) (agent_monitor_drift_decision{{{_KEY}}})"),
                span=24,
            )
        )
        .with_panel(
            lines(
                "KS distance D",
                "Greatest distance between the two versions' distributions in one role, each trace counted once. Up to .05 it opens nothing.",
                SHORT,
                Query(f"max by ({_PAIR}) (agent_monitor_drift_distance{{{_KEY}}})", _LEGEND),
                maximum=1,
            )
        )
        .with_panel(
            lines(
                "Evidence still missing",
                "Natural logarithm of the threshold less that of the evidence E. At 0 the comparison is called drift; E stays valid however often one looks.",
                SHORT,
                Query(
                    f"clamp_min(max by ({_PAIR}) (agent_monitor_drift_log_threshold{{{_KEY}}}) - max by ({_PAIR}) (agent_monitor_drift_log_e{{{_KEY}}}), 0)",
                    _LEGEND,
                ),
            )
        )
        .with_row(dashboard.Row("Composition: never behaviour, always beside it"))
        .with_panel(
            lines(
                "Share of the pooled change that the mix explains",
                "Kitagawa split: 1 means that the pooled scores moved only because lengths or roles did.",
                RATIO,
                Query(
                    'max by (service, scorer, comparison, reference, current) (agent_monitor_composition_share{service=~"$service",scorer=~"$scorer"})',
                    "{{service}} {{scorer}}: {{reference}} → {{current}} ({{comparison}})",
                ),
                maximum=1,
            )
        )
        .with_panel(
            lines(
                "Evidence for another length or role mix",
                "Natural logarithm of E.",
                SHORT,
                Query(
                    'max by (service, scorer, comparison, reference, current, what) (agent_monitor_mix_log_e{service=~"$service",scorer=~"$scorer"})',
                    "{{what}} {{service}} {{scorer}}: {{reference}} → {{current}} ({{comparison}})",
                ),
                minimum=None,
            )
        )
        .with_panel(
            rows(
                "Cardinality gate",
                "Only while it is `stationary` may the mean of a per-unit scorer alert.",
                SHORT,
                Query(
                    'max by (service, scorer, state) (agent_monitor_cardinality_gate{service=~"$service",scorer=~"$scorer"})'
                ),
            )
        )
        .with_panel(
            lines(
                "Means that were not allowed to alert",
                "By the condition of validity that did not hold, traces a second.",
                "cps",
                Query(
                    f'sum by (condition) (rate(agent_monitor_scalars_suppressed_total{{scorer=~"$scorer"}}{RATE}))',
                    "{{condition}}",
                ),
            )
        )
        .with_row(dashboard.Row("Distributions"))
        .with_panel(
            heat(
                "Highest score of a role in a trace",
                "Share of colour = traces. 0 is safe, 1 violates. It is the maximum of a role's spans in a trace (method max), never a mean; read it beside the lengths.",
                SHORT,
                Query(
                    f'sum by (le) (increase(agent_monitor_trace_score_bucket{{scorer=~"$scorer",role=~"$role",method="max"}}{RATE}))',
                    "{{le}}",
                ),
            )
        )
        .with_panel(
            heat(
                "Spans a trace",
                "Length of closed traces in member spans.",
                SHORT,
                Query(f"sum by (le) (increase(agent_monitor_trace_spans_bucket{RATE}))", "{{le}}"),
            )
        )
        .with_panel(
            lines(
                "Share of traces over .3, by version",
                "Traces whose highest score in the role is over .3 (the default threshold).",
                RATIO,
                Query(
                    f'1 - sum by (model_version, role) (rate(agent_monitor_trace_score_bucket{{scorer=~"$scorer",role=~"$role",method="max",le="0.3"}}{RATE})) / sum by (model_version, role) (rate(agent_monitor_trace_score_count{{scorer=~"$scorer",role=~"$role",method="max"}}{RATE}))',
                    "{{model_version}} {{role}}",
                ),
                maximum=1,
            )
        )
        .with_panel(
            lines(
                "Median spans a trace, by version",
                "An agent that loops is longer: a change here may be an outcome of behaviour, too.",
                SHORT,
                Query(
                    f"histogram_quantile(0.5, sum by (le, model_version) (rate(agent_monitor_trace_spans_bucket{RATE})))",
                    "{{model_version}}",
                ),
            )
        )
    )
