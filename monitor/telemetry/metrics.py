"""Every metric of the monitor, declared here and nowhere else.

Names are ``agent_monitor_…``; units are Prometheus' base units; a label that agents or senders
choose is bounded (see ``labels.py``). ``docs/reference/metrics.md`` is generated from this module.
"""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Final

from prometheus_client import CollectorRegistry

from monitor.telemetry import known
from monitor.telemetry.labels import BoundedLabel
from monitor.telemetry.spec import Declarations, MetricSpec

# Where thresholds usually lie (.3, .8) and where danger lies (.9 and up) must be bucket bounds.
SCORE_BUCKETS: Final = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
# Drift's length buckets.
SPAN_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# The promise is p99 under 2 s.
PAGE_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 30, 60, 300)
RESTORE_BUCKETS: Final = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120)
# A transaction's limit is 10 s.
STEP_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10)

# Bounds on label values. Together they keep a worker under 30,000 series.
SERVICES: Final = 200
SCORERS: Final = 50
MODEL_VERSIONS: Final = 100
RAW_ROLES: Final = 50
TOPICS: Final = 50
POLICIES: Final = 100
SCORE_KEYS: Final = 500  # x 16 series each
DRIFT_KEYS: Final = 3_000  # 200 services x 3 scorers x 5 roles, x 4 series each


class Metrics:
    """The metric objects, one attribute each. Label values that come from outside go through ``fold``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        d = Declarations(registry)
        self._declarations = d

        # A table, one row a metric: the formatter would make ten lines of each.
        # fmt: off
        # --- intake
        self.input_records_total = d.counter("input_records_total", "Records read from an input topic.", "topic", unit="records", by="ingest")
        self.input_bytes_total = d.counter("input_bytes_total", "Bytes of the values read from an input topic.", "topic", unit="bytes", by="ingest")
        self.input_last_record_timestamp_seconds = d.gauge("input_last_record_timestamp_seconds", "Kafka timestamp of the newest record read from an input topic.", "topic", unit="seconds since 1970", by="ingest")
        self.input_topic_missing = d.gauge("input_topic_missing", "1 while a configured input topic does not exist.", "topic", unit="1 or 0", by="ingest")
        self.spans_total = d.counter("spans_total", "Spans accepted, by role.", "role", unit="spans", by="ingest")
        self.unknown_roles_total = d.counter("unknown_roles_total", "Spans whose role is unknown, by the raw value that has no mapping.", "raw", unit="spans", by="ingest")
        self.dead_letters_total = d.counter("dead_letters_total", "Rejected items, by reason code and source topic.", "reason", "topic", unit="items", by="ingest, assemble")
        self.fragments_total = d.counter("fragments_total", "Fragments written.", unit="records", by="ingest")

        # --- assembly
        self.open_lives = d.gauge("open_lives", "Traces being assembled.", "partition", unit="lives", by="assemble")
        self.closed_lives = d.gauge("closed_lives", "Closed traces still in memory for late spans.", "partition", unit="lives", by="assemble")
        self.open_bytes = d.gauge("open_bytes", "Memory of open traces, as the budget counts it.", "partition", unit="bytes", by="assemble")
        self.closed_bytes = d.gauge("closed_bytes", "Memory of closed traces, as the budget counts it.", "partition", unit="bytes", by="assemble")
        self.bytes_limit = d.gauge("bytes_limit", "Budget of a partition for the memory of open and of closed traces.", "state", unit="bytes", by="assemble")
        self.verdicts_total = d.counter("verdicts_total", "Traces closed with a verdict, at their first closing.", "service", "closed_by", unit="traces", by="assemble")
        self.verdict_revisions_total = d.counter("verdict_revisions_total", "Later revisions of verdicts, made by late spans and scores.", unit="verdicts", by="assemble")
        self.forensics_total = d.counter("forensics_total", "Closed traces by forensics status at their first closing.", "status", unit="traces", by="assemble")
        self.identity_faults_total = d.counter("identity_faults_total", "Identity faults of closed traces, by kind.", "kind", unit="faults", by="assemble")
        self.redelivered_spans_total = d.counter("redelivered_spans_total", "Identical copies of spans that were collapsed.", unit="spans", by="assemble")
        self.cut_traces_total = d.counter("cut_traces_total", "Closed traces that a limit cut; they enter no drift sums.", "closed_by", unit="traces", by="assemble")
        self.trace_spans = d.histogram("trace_spans", "Member spans of a closed trace; read it beside every trace score.", "model_version", unit="spans", by="assemble", buckets=SPAN_BUCKETS)
        self.trace_score = d.sumless_histogram("trace_score", "Highest score of a role's spans in a closed trace (0 safe, 1 violates). It has no sum: a mean of relational scores means nothing.", "scorer", "role", "model_version", "method", unit="score, 0 to 1", by="assemble", buckets=SCORE_BUCKETS, limit=SCORE_KEYS)
        self.scored_spans_total = d.counter("scored_spans_total", "Member spans of closed traces that have a score of the scorer.", "scorer", unit="spans", by="assemble")
        self.unscored_spans_total = d.counter("unscored_spans_total", "Member spans without one, in traces where the scorer scored another span.", "scorer", unit="spans", by="assemble")
        self.unscored_traces_total = d.counter("unscored_traces_total", "Closed traces in which no scorer scored anything.", "service", unit="traces", by="assemble")
        self.scalars_total = d.counter("scalars_total", "Means of per-unit scorers that were allowed to alert.", "scorer", unit="traces", by="assemble")
        self.scalars_suppressed_total = d.counter("scalars_suppressed_total", "Means that were not allowed to alert, by scorer and by the condition of validity that did not hold.", "scorer", "condition", unit="traces", by="assemble")
        self.incidents_total = d.counter("incidents_total", "Incidents opened.", "service", "reason", "severity", unit="incidents", by="assemble")
        self.incident_revisions_total = d.counter("incident_revisions_total", "Later revisions of incidents.", unit="records", by="assemble")
        self.policy_incidents_total = d.counter("policy_incidents_total", "Incidents opened by a composition policy.", "policy", "severity", unit="incidents", by="assemble")
        self.policies_undecidable_total = d.counter("policies_undecidable_total", "Policy decisions that lacked content or an unbroken trace.", unit="findings", by="assemble")
        self.fold_events_total = d.counter("fold_events_total", "What the fold counts on its way, by event; the reference lists them.", "event", unit="events", by="assemble")

        # --- drift
        drift_labels = ("service", "scorer", "scorer_version", "role", "comparison", "reference", "current")
        mix_labels = ("service", "scorer", "comparison", "reference", "current")
        self.drift_distance = d.gauge("drift_distance", "KS distance D in one role: between two model versions, or (comparison `past`) between a version and its own first windows.", *drift_labels, unit="0 to 1", by="drift agent")
        self.drift_log_e = d.gauge("drift_log_e", "Natural logarithm of the evidence E for a change greater than d0 = .05.", *drift_labels, unit="log", by="drift agent")
        self.drift_log_threshold = d.gauge("drift_log_threshold", "Natural logarithm of the evidence that this comparison needs to be called drift.", *drift_labels, unit="log", by="drift agent")
        self.drift_decision = d.gauge("drift_decision", "1 for the decision in force.", *drift_labels, "decision", unit="1", by="drift agent")
        self.drift_ticket = d.gauge("drift_ticket", "1 where the evidence for a change greater than d0 = .02 is worth a ticket (e-BH at q = .1).", *drift_labels, unit="1", by="drift agent")
        self.drift_reports_total = d.counter("drift_reports_total", "Drift and mix reports published, by kind and by decision (of a mix report: what it says of the gate).", "kind", "decision", unit="records", by="drift agent")
        self.composition_share = d.gauge("composition_share", "Share of the pooled change that a change of mix explains (Kitagawa split), 0 to 1.", *mix_labels, unit="ratio", by="drift agent")
        self.mix_log_e = d.gauge("mix_log_e", "Natural logarithm of the evidence for a change of trace lengths or of the role mix.", *mix_labels, "what", unit="log", by="drift agent")
        self.cardinality_gate = d.gauge("cardinality_gate", "1 for the state in force of the cardinality gate: stationary, shifted or unknown.", "service", "scorer", "state", unit="1", by="drift agent")
        self.drift_refused_total = d.counter("drift_refused_total", "What the drift sums left out since a bound was reached, by bound: keys (records of a new service and scorer), versions or strata (rows of a delta).", "bound", unit="records or rows", by="drift agent")

        # --- sessions
        self.sessions = d.gauge("sessions", "Sessions whose steps are held, to match policies over several traces.", unit="sessions", by="session agent")
        self.session_bytes = d.gauge("session_bytes", "Memory of these steps, as the budget counts it.", unit="bytes", by="session agent")
        self.session_drops_total = d.counter("session_drops_total", "What sessions let go, by bound: traces, bytes or age (a trace's steps), sessions (a whole session, the longest quiet first), or stale (steps that a later revision had replaced).", "why", unit="traces or sessions", by="session agent")
        self.agent_messages_total = d.counter("agent_messages_total", "Messages of the keyed stages, by agent and outcome: applied, skipped (already applied) or failed.", "agent", "outcome", unit="messages", by="agents")

        # --- the Kafka shell
        self.consumer_lag_records = d.gauge("consumer_lag_records", "Records between the committed position and the end of the partition.", "stage", "topic", "partition", unit="records", by="ingest, assemble, agents")
        self.consumer_lag_seconds = d.gauge("consumer_lag_seconds", "Age of the oldest record not yet processed; 0 when there is none.", "stage", "topic", "partition", unit="seconds", by="ingest, assemble, agents")
        self.lanes = d.gauge("lanes", "Lanes of this worker, by state: live, restoring or waiting.", "stage", "state", unit="lanes", by="ingest, assemble")
        self.refused_partitions = d.gauge("refused_partitions", "1 for a partition that could not be restored and is left out.", "stage", "topic", "partition", unit="1", by="ingest, assemble")
        self.transactions_total = d.counter("transactions_total", "Transactions by outcome: committed, aborted, fenced or unknown (the commit failed).", "stage", "outcome", unit="transactions", by="ingest, assemble")
        self.transaction_seconds = d.histogram("transaction_seconds", "Time from the first record of a transaction to its commit.", "stage", unit="seconds", by="ingest, assemble", buckets=STEP_BUCKETS)
        self.snapshot_bytes = d.gauge("snapshot_bytes", "Size of the last snapshot.", "partition", unit="bytes", by="assemble")
        self.snapshots_total = d.counter("snapshots_total", "Snapshots written.", unit="snapshots", by="assemble")
        self.restore_seconds = d.histogram("restore_seconds", "Time to restore one partition.", unit="seconds", by="assemble", buckets=RESTORE_BUCKETS)
        self.restored_records_total = d.counter("restored_records_total", "Records folded again without output while restoring.", unit="records", by="assemble")
        self.tick_hold_seconds = d.gauge("tick_hold_seconds", "How long no time has passed on a quiet partition because ingest is behind.", "partition", unit="seconds", by="assemble")
        self.settings_revision = d.gauge("settings_revision", "MONITOR_SETTINGS_REVISION of this worker (ours) and of the settings in force (log).", "whose", unit="rank", by="assemble")
        self.settings_started_timestamp_seconds = d.gauge("settings_started_timestamp_seconds", "Second part of the rank: start of the process that sent the settings.", "whose", unit="seconds since 1970", by="assemble")
        self.settings_outranked = d.gauge("settings_outranked", "1 where a partition uses other settings than this worker's, because those rank higher.", "partition", unit="1 or 0", by="assemble")
        self.heartbeat_timestamp_seconds = d.gauge("heartbeat_timestamp_seconds", "When a loop of this worker last went round.", "stage", unit="seconds since 1970", by="ingest, assemble, agents")

        # --- paging
        self.deliveries_total = d.counter("deliveries_total", "Posts to an Alertmanager, by replica and outcome: ok, rejected (4xx) or failed.", "replica", "outcome", unit="requests", by="incident agent")
        self.delivery_last_success_timestamp_seconds = d.gauge("delivery_last_success_timestamp_seconds", "When a replica last took a post.", "replica", unit="seconds since 1970", by="incident agent")
        self.delivery_queue = d.gauge("delivery_queue", "Alerts waiting to be posted.", unit="alerts", by="incident agent")
        self.alerts_firing = d.gauge("alerts_firing", "Alert groups firing now, by severity.", "severity", unit="alerts", by="incident agent")
        self.incidents_not_pushed_total = d.counter("incidents_not_pushed_total", "Incidents that were recorded and not pushed, by why: shadow (MONITOR_PAGE_SCORERS), age (MONITOR_PAGE_MAX_AGE) or groups (more alert groups than a worker keeps).", "why", unit="incidents", by="incident agent")
        self.span_to_page_seconds = d.histogram("span_to_page_seconds", "From the Kafka timestamp of the causing record to the first Alertmanager's answer.", "severity", unit="seconds", by="incident agent", buckets=PAGE_BUCKETS)

        # --- the process
        self.build_info = d.gauge("build_info", "1, with the version as a label.", "version", "python", unit="1", by="worker")
        self.build_info.labels(
            version=metadata.version("agent-trace-monitor"), python=platform.python_version()
        ).set(1)
        self.started_timestamp_seconds = d.gauge("started_timestamp_seconds", "When this worker started: a series that is younger than this counts from 0.", unit="seconds since 1970", by="worker")
        self.labels_folded_total = d.counter("labels_folded_total", "Label values that a dashboard shows as `other`, by label.", "label", unit="values", by="telemetry")

        # fmt: on
        known.show_at_zero(self)
        self.services = self._bounded("service", SERVICES)
        self.scorers = self._bounded("scorer", SCORERS)
        self.model_versions = self._bounded("model_version", MODEL_VERSIONS)
        self.raw_roles = self._bounded("raw", RAW_ROLES)
        self.topics = self._bounded("topic", TOPICS)
        self.policies = self._bounded("policy", POLICIES)

    @property
    def specs(self) -> tuple[MetricSpec, ...]:
        """All declared metrics in order of declaration."""
        return tuple(self._declarations.specs)

    def _bounded(self, label: str, limit: int) -> BoundedLabel:
        return BoundedLabel(limit, self.labels_folded_total.labels(label=label).inc)
