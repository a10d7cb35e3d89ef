"""What the shell calls: once a batch, a record or a report, never once a span."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from monitor.drift.report import DriftReport, GateState, MixEvidence, MixReport
from monitor.model import DeadLetter, Incident, Verdict
from monitor.telemetry.known import INPUT_REASONS, SEVERITIES
from monitor.telemetry.labels import OTHER, clean
from monitor.telemetry.metrics import DRIFT_KEYS, Metrics
from monitor.trace.reduce import POLICY_DECOMPOSABLE

M = TypeVar("M", Counter, Histogram)

_EXEMPLAR: Final = 64  # characters; prometheus_client raises where name and value pass 128
_MIXES: Final = ("length", "roles")  # what a mix report has evidence about


class Telemetry(Metrics):
    """Every metric, on a registry of its own, and what moves them.

    One thread writes (the event loop); rendering in another thread only reads. ``now`` is the wall
    clock in seconds since 1970, given so that tests need none.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        super().__init__(registry if registry is not None else CollectorRegistry())
        self.now = now
        self.started_timestamp_seconds.set(now())
        self._counted: dict[int, dict[str, int]] = {}  # by partition: fold counters as last seen
        self._decisions = _StateGauge(self.drift_decision, DRIFT_KEYS)
        self._gates = _StateGauge(self.cardinality_gate, DRIFT_KEYS)
        self._mixes: set[tuple[str, ...]] = set()
        # (service, scorer) as sent -> what to call to take its series off
        self._shown: dict[tuple[str, str], dict[tuple[str, ...], Callable[[], None]]] = {}
        # What every verdict moves.
        self._verdicts = _Children(self.verdicts_total)
        self._forensics = _Children(self.forensics_total)
        self._trace_spans = _Children(self.trace_spans)
        self._scored = _Children(self.scored_spans_total)
        self._unscored = _Children(self.unscored_spans_total)
        self._suppressed = _Children(self.scalars_suppressed_total)
        self._score_keys_folded = self.labels_folded_total.labels(label="trace_score")
        self._drift_folded = self.labels_folded_total.labels(label="drift_key")

    # --- records of the fold ----------------------------------------------------------------------

    def observe_outputs(self, records: Iterable[object]) -> None:
        """Count a fold's published records; call it after their transaction has committed."""
        for record in records:
            if isinstance(record, Verdict):
                self.observe_verdict(record)
            elif isinstance(record, Incident):
                self.observe_incident(record)
            elif isinstance(record, DeadLetter):
                self.observe_dead_letter(record)

    def observe_verdict(self, verdict: Verdict) -> None:
        """A trace counts once, at its first closing; later revisions are counted as such."""
        if verdict.revision > 1:
            self.verdict_revisions_total.inc()
            return
        service = self.services.fold(verdict.service)
        self._verdicts(service, verdict.closed_by).inc()
        self._forensics(verdict.forensics.status).inc()
        for fault in verdict.forensics.faults:
            self.identity_faults_total.labels(fault.kind).inc(max(1, fault.count))
        if verdict.redelivered:
            self.redelivered_spans_total.inc(verdict.redelivered)
        if verdict.cut:
            self.cut_traces_total.labels(verdict.closed_by).inc()
        version = self.model_versions.fold(verdict.model_version)
        self._trace_spans(version).observe(verdict.span_count)
        if not verdict.reductions:
            self.unscored_traces_total.labels(service).inc()
        for reduction in verdict.reductions:
            scorer = self.scorers.fold(reduction.scorer)
            self._scored(scorer).inc(reduction.scored_count)
            self._unscored(scorer).inc(reduction.span_count - reduction.scored_count)
            scalar = reduction.scalar
            if scalar is None:
                self._suppressed(scorer, POLICY_DECOMPOSABLE).inc()
            elif scalar.alertable:
                self.scalars_total.labels(scorer).inc()
            else:
                for condition in scalar.why_not:
                    self._suppressed(scorer, condition).inc()
            for role, of_role in reduction.roles.items():
                if of_role.max is not None and not self.trace_score.observe(
                    (scorer, role, version, "max"), of_role.max
                ):
                    self._score_keys_folded.inc()
                    self.trace_score.spill((OTHER, role, OTHER, "max"), of_role.max)

    def observe_incident(self, incident: Incident) -> None:
        if incident.revision > 1:
            self.incident_revisions_total.inc()
            return
        # Exemplars leave the process only in the OpenMetrics format; there they lead to the trace.
        trace_id = incident.trace_id
        exemplar = {"trace_id": trace_id} if trace_id and len(trace_id) <= _EXEMPLAR else None
        self.incidents_total.labels(
            self.services.fold(incident.service), incident.reason, incident.severity
        ).inc(1, exemplar)
        if incident.policy is not None and incident.reason == "policy":
            self.policy_incidents_total.labels(
                self.policies.fold(incident.policy), incident.severity
            ).inc()

    def observe_dead_letter(self, letter: DeadLetter) -> None:
        self.dead_letters_total.labels(letter.reason, self.topics.fold(letter.source.topic)).inc()

    def observe_unknown_roles(self, counts: Mapping[str, int]) -> None:
        """Raw role values that no mapping knows, with how many spans had each."""
        for raw, count in counts.items():
            self.unknown_roles_total.labels(self.raw_roles.fold(raw)).inc(count)

    def observe_fold_counters(self, partition: int, counters: Mapping[str, int]) -> None:
        """Add what a fold's own counters grew by since they were last seen.

        The first sight of a partition sets the mark only: what a restored fold counted in an earlier
        life was counted by the process that folded it. An event that comes up later counts from 0.
        """
        seen = self._counted.get(partition)
        self._counted[partition] = dict(counters)
        if seen is None:
            return
        for event, count in counters.items():
            new = count - seen.get(event, 0)
            if new > 0:
                self.fold_events_total.labels(event).inc(new)

    # --- drift --------------------------------------------------------------------------------------

    def observe_report(self, report: DriftReport | MixReport) -> None:
        """A report of the drift agent, after it has been sent.

        What does not fit the bounds is counted and not shown: one gauge for several comparisons would jump
        from one's value to another's.
        """
        if isinstance(report, DriftReport):
            self._observe_drift(report)
        else:
            self._observe_mix(report)

    def _observe_drift(self, report: DriftReport) -> None:
        """Four series a comparison (one more for a ticket); the decision's label is replaced when it changes."""
        self.drift_reports_total.labels("drift", report.decision).inc()
        key = (
            self.services.fold(report.service),
            self.scorers.fold(report.scorer),
            clean(report.scorer_version),
            report.role,
            report.comparison,
            self.model_versions.fold(report.reference),
            self.model_versions.fold(report.current),
        )
        if OTHER in key or not self._decisions.set(key, report.decision):
            self._drift_folded.inc()
            return
        self._remember(report, ("drift", *key), lambda: self._forget_comparison(key))
        _set(self.drift_distance, key, report.d)
        _set(self.drift_log_e, key, report.log_e)
        _set(self.drift_log_threshold, key, report.threshold)
        _set(self.drift_ticket, key, 1.0 if report.ticket else None)

    def _observe_mix(self, report: MixReport) -> None:
        self.drift_reports_total.labels("mix", report.gate).inc()
        key = (
            self.services.fold(report.service),
            self.scorers.fold(report.scorer),
            report.comparison,
            self.model_versions.fold(report.reference),
            self.model_versions.fold(report.current),
        )
        if OTHER in key or (key not in self._mixes and len(self._mixes) >= DRIFT_KEYS):
            self._drift_folded.inc()
            return
        self._mixes.add(key)
        self._remember(report, ("mix", *key), lambda: self._forget_mix(key))
        composition = report.composition
        _set(self.composition_share, key, None if composition is None else composition.share)
        for what in _MIXES:
            evidence: MixEvidence | None = getattr(report, what)
            _set(self.mix_log_e, (*key, what), None if evidence is None else evidence.log_e)

    def observe_gate(self, gate: GateState) -> None:
        key = (self.services.fold(gate.service), self.scorers.fold(gate.scorer))
        if OTHER in key or not self._gates.set(key, gate.state):
            self._drift_folded.inc()
            return
        self._remember(gate, ("gate", *key), lambda: self._gates.forget(key))

    def forget_drift(self, which: Callable[[str, str], bool]) -> None:
        """Take off the series of every (service, scorer) that ``which`` picks: its partition went elsewhere.

        Two workers that both show a decision would keep an alert firing that one of them has cleared.
        """
        for pair in [pair for pair in self._shown if which(*pair)]:
            for take_off in self._shown.pop(pair).values():
                take_off()

    def _remember(
        self,
        of: DriftReport | MixReport | GateState,
        series: tuple[str, ...],
        take_off: Callable[[], None],
    ) -> None:
        self._shown.setdefault((of.service, of.scorer), {})[series] = take_off

    def _forget_comparison(self, key: tuple[str, ...]) -> None:
        self._decisions.forget(key)
        for gauge in (
            self.drift_distance,
            self.drift_log_e,
            self.drift_log_threshold,
            self.drift_ticket,
        ):
            _remove(gauge, key)

    def _forget_mix(self, key: tuple[str, ...]) -> None:
        self._mixes.discard(key)
        _remove(self.composition_share, key)
        for what in _MIXES:
            _remove(self.mix_log_e, (*key, what))

    # --- lag

    def observe_lag(
        self, stage: str, topic: str, partition: int, *, records: int, position_ms: int | None
    ) -> None:
        """``records`` between position and end; ``position_ms``: Kafka timestamp of the last record processed.

        The next record is at least as old as that one (within a leader's clock), so the lag in seconds is
        never told too small; 0 where nothing waits. None (nothing processed yet): the seconds stay as they are.
        """
        place = (stage, topic, str(partition))
        self.consumer_lag_records.labels(*place).set(records)
        if records == 0:
            self.consumer_lag_seconds.labels(*place).set(0)
        elif position_ms is not None:
            self.consumer_lag_seconds.labels(*place).set(max(0.0, self.now() - position_ms / 1000))

    # --- partitions that come and go ----------------------------------------------------------------

    def forget_partition(self, stage: str, topic: str, partition: int) -> None:
        """Take the series of a partition that this worker no longer owns off ``/metrics``."""
        place = (stage, topic, str(partition))
        for gauge in (
            self.consumer_lag_records,
            self.consumer_lag_seconds,
            self.refused_partitions,
        ):
            _remove(gauge, place)
        if stage == "assemble":
            for gauge in (
                self.open_lives,
                self.closed_lives,
                self.open_bytes,
                self.closed_bytes,
                self.snapshot_bytes,
                self.tick_hold_seconds,
                self.settings_outranked,
            ):
                _remove(gauge, (str(partition),))
            self._counted.pop(partition, None)

    def declare_inputs(self, topics: Collection[str]) -> None:
        """Show 0 for every configured input: one that never spoke must alert as silent, too."""
        for topic in topics:
            self.input_records_total.labels(self.topics.fold(topic))
            self.input_bytes_total.labels(self.topics.fold(topic))
        self.declare_dead_letters(topics, INPUT_REASONS)

    def declare_dead_letters(self, topics: Iterable[str], reasons: Collection[str]) -> None:
        """Show 0 for every reason for which something of these topics may be refused."""
        for topic in topics:
            for reason in reasons:
                self.dead_letters_total.labels(reason, self.topics.fold(topic))

    def declare_policies(self, names: Iterable[str]) -> None:
        """Show 0 for every policy of our settings (those in force may be another worker's: they count from nothing)."""
        for name in names:
            for severity in SEVERITIES:
                self.policy_incidents_total.labels(self.policies.fold(name), severity)

    def beat(self, stage: str) -> None:
        """A loop went round."""
        self.heartbeat_timestamp_seconds.labels(stage).set(self.now())


class _Children(Generic[M]):
    """A metric's children by label values, found without the work of ``labels()``; as bounded as those are."""

    def __init__(self, metric: M) -> None:
        self._metric: M = metric
        self._children: dict[tuple[str, ...], M] = {}

    def __call__(self, *labels: str) -> M:
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._metric.labels(*labels)
        return child


class _StateGauge:
    """A gauge of value 1 whose last label is a state: one series a key, replaced when the state changes."""

    def __init__(self, gauge: Gauge, limit: int) -> None:
        self._gauge, self._limit = gauge, limit
        self._state: dict[tuple[str, ...], str] = {}

    def set(self, key: tuple[str, ...], state: str) -> bool:
        """False, and nothing shown, where the key is new and the limit is reached."""
        before = self._state.get(key)
        if before is None and len(self._state) >= self._limit:
            return False
        if before is not None and before != state:
            _remove(self._gauge, (*key, before))
        self._state[key] = state
        self._gauge.labels(*key, state).set(1)
        return True

    def forget(self, key: tuple[str, ...]) -> None:
        before = self._state.pop(key, None)
        if before is not None:
            _remove(self._gauge, (*key, before))


def _set(gauge: Gauge, key: tuple[str, ...], value: float | None) -> None:
    """No value, no series: a gauge that stays at an old value would tell a lie."""
    if value is None:
        _remove(gauge, key)
    else:
        gauge.labels(*key).set(value)


def _remove(gauge: Gauge, key: tuple[str, ...]) -> None:
    try:
        gauge.remove(*key)
    except KeyError:  # older prometheus_client raises for a series that was never there
        return
