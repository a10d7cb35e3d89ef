"""Label values that are known beforehand: their series stand at 0 from the start.

Prometheus' ``increase`` and ``rate`` see the difference of two samples. A counter whose labelled series is born at 60,
with its first burst, shows them nothing: no alert, an empty panel. Where a label is open (a service, a scorer) no
series can stand there before; the rules and dashboards count such a one from nothing (``dashboards/counting.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args, get_type_hints

from monitor.drift.report import Decision, GateName
from monitor.intake.reasons import REASONS
from monitor.model import ROLES, Forensics, Incident, Verdict
from monitor.trace.identity import FAULT_CLASS
from monitor.trace.judge import JUDGE_ERROR, PAST_LIMIT, SCORE_WITHOUT_SPAN

OPEN_LABELS: Final = frozenset({"service", "scorer", "raw", "replica", "model_version"})
"""Labels whose values come from outside while a worker runs."""

# Every reason code of a dead letter, by what lies at the letter's coordinates.
INPUT_REASONS: Final = (*REASONS, "span_not_in_memory", "scores_no_member")
FRAGMENT_REASONS: Final = ("undecodable_fragment", "output_too_large")
AGENT_REASONS: Final = ("undecodable_record", "agent_error")

# What the fold counts (`Output.count`), and what it means.
FOLD_EVENTS: Final = {
    "spans": "spans folded, re-deliveries included",
    "late_spans": "spans that found their trace closed and still in memory",
    "late_scores": "scores that did",
    "past_max_spans": "spans past max_spans, or past the closed budget: judged and counted, not kept",
    "continued": "traces that took over what a cut one had left",
    "session_steps": "summaries of a trace's steps for its sessions",
    "cut": "traces closed by a limit; they enter no drift sums",
    "revised": "closed traces judged again for what came late",
    "unpublished": "closings without a verdict: no GenAI or scored span, or scores only",
    "judge_errors": "exceptions while judging a trace: each is a critical incident",
    "scores_replaced": "scores in whose place a later one by the same scorer version has come",
    "scores_of_no_member": "scores whose span is an evaluator or guardrail: each is a dead letter",
    "span_not_in_memory": "scores whose span never came while their trace was in memory",
    "evicted_by_budget": "closed traces that left memory early, for want of closed_bytes",
    "residues_dropped": "what cut traces had left, dropped for want of memory",
    "faults": "spans whose identity is unusable, joined to their trace as faults",
    "orphans": "spans without a usable trace id",
    "undecodable": "records of our own topic that do not decode: each is a dead letter",
    "not_log_append_time": "records without a broker's time stamp: no time passed for them",
    "gates_applied": "changes of the cardinality gate",
    "gates_passed_over": "older ones, passed over",
    "settings_applied": "changes of settings",
    "settings_passed_over": "settings that were in force already, or ranked lower",
    "resets": "states given up by `monitor topics reset-partition`",
}


def _choices(of: type, field: str) -> tuple[str, ...]:
    return get_args(get_type_hints(of)[field])


SEVERITIES: Final = _choices(Incident, "severity")
_CLOSED_BY: Final = _choices(Verdict, "closed_by")
_STAGES: Final = ("ingest", "assemble")
_OUTCOMES: Final = ("committed", "aborted", "fenced", "unknown")
_AGENTS: Final = ("incidents", "drift", "sessions")
_MESSAGES: Final = ("applied", "skipped", "failed", "retried")

KNOWN: Final[Mapping[str, Iterable[tuple[str, ...]]]] = {
    "spans_total": [(role,) for role in ROLES],
    "forensics_total": [(status,) for status in _choices(Forensics, "status")],
    "identity_faults_total": [
        (kind,) for kind in (*FAULT_CLASS, SCORE_WITHOUT_SPAN, PAST_LIMIT, JUDGE_ERROR)
    ],
    "cut_traces_total": [(by,) for by in _CLOSED_BY],
    "fold_events_total": [(event,) for event in FOLD_EVENTS],
    "drift_reports_total": [
        *(("drift", decision) for decision in get_args(Decision)),
        *(("mix", gate) for gate in get_args(GateName)),
    ],
    "drift_refused_total": [(bound,) for bound in ("keys", "versions", "strata")],
    "session_drops_total": [(why,) for why in ("traces", "bytes", "age", "sessions", "stale")],
    "agent_messages_total": [(agent, outcome) for agent in _AGENTS for outcome in _MESSAGES],
    "transactions_total": [(stage, outcome) for stage in _STAGES for outcome in _OUTCOMES],
    "transaction_seconds": [(stage,) for stage in _STAGES],
    "incidents_not_pushed_total": [("shadow",), ("age",), ("groups",)],
    "span_to_page_seconds": [(severity,) for severity in SEVERITIES],
}
"""Metric -> its label values, for those that every worker knows; ``Telemetry.declare`` adds what settings say."""


def show_at_zero(metrics: object) -> None:
    """Make the series of ``KNOWN``."""
    for name, values in KNOWN.items():
        metric: Any = getattr(metrics, name)
        for labels in values:
            metric.labels(*labels)
