"""What the shell calls: once a batch, a record or a report, never once a span."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from monitor.model import DeadLetter, Incident, Verdict
from monitor.telemetry.labels import OTHER
from monitor.telemetry.metrics import DRIFT_KEYS, Metrics
from monitor.trace.reduce import POLICY_DECOMPOSABLE


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
        self._counted: dict[tuple[int, str], int] = {}  # fold counters as last seen
        self._decisions = _StateGauge(self.drift_decision, DRIFT_KEYS)
        self._gates = _StateGauge(self.cardinality_gate, DRIFT_KEYS)
        # (service, scorer) as sent -> what to call to take its series off
        self._shown: dict[tuple[str, str], dict[tuple[str, ...], Callable[[], None]]] = {}
        self._verdicts: dict[tuple[str, str], Counter] = {}  # children, found without labels()
        self._scalars_suppressed: dict[tuple[str, str], Counter] = {}
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
        key = (verdict.service, verdict.closed_by)
        child = self._verdicts.get(key)
        if child is None:
            child = self.verdicts_total.labels(
                self.services.fold(verdict.service), verdict.closed_by
            )
            if (
                len(self._verdicts) < 10_000
            ):  # names of services are the senders': the cache is bounded too
                self._verdicts[key] = child
        child.inc()
        self.forensics_total.labels(verdict.forensics.status).inc()
        for fault in verdict.forensics.faults:
            self.identity_faults_total.labels(fault.kind).inc(max(1, fault.count))
        if verdict.redelivered:
            self.redelivered_spans_total.inc(verdict.redelivered)
        if verdict.cut:
            self.cut_traces_total.labels(verdict.closed_by).inc()
        version = self.model_versions.fold(verdict.model_version)
        self.trace_spans.labels(version).observe(verdict.span_count)
        for reduction in verdict.reductions:
            scorer = self.scorers.fold(reduction.scorer)
            scalar = reduction.scalar
            if scalar is None:
                self._suppressed(scorer, POLICY_DECOMPOSABLE)
            elif scalar.alertable:
                self.scalars_total.labels(scorer).inc()
            else:
                for condition in scalar.why_not:
                    self._suppressed(scorer, condition)
            for role, of_role in reduction.roles.items():
                if of_role.max is not None and not self.trace_score.observe(
                    (scorer, role, version, "max"), of_role.max
                ):
                    self._score_keys_folded.inc()
                    self.trace_score.spill((OTHER, role, OTHER, "max"), of_role.max)

    def _suppressed(self, scorer: str, condition: str) -> None:
        child = self._scalars_suppressed.get((scorer, condition))
        if child is None:
            child = self._scalars_suppressed[scorer, condition] = (
                self.scalars_suppressed_total.labels(scorer, condition)
            )
        child.inc()

    def observe_incident(self, incident: Incident) -> None:
        if incident.revision > 1:
            self.incident_revisions_total.inc()
            return
        # Exemplars leave the process only in the OpenMetrics format; there they lead to the trace.
        exemplar = {"trace_id": incident.trace_id} if incident.trace_id else None
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
        life was counted by the process that folded it.
        """
        for event, count in counters.items():
            before = self._counted.get((partition, event))
            self._counted[partition, event] = count
            if before is not None and count > before:
                self.fold_events_total.labels(event).inc(count - before)

    # --- drift --------------------------------------------------------------------------------------

    def observe_drift(
        self,
        *,
        service: str,
        scorer: str,
        role: str,
        reference: str,
        current: str,
        decision: str,
        d: float | None,
        log_e: float | None,
        log_threshold: float | None,
    ) -> None:
        """A drift report: four series a comparison, the decision's label replaced when it changes."""
        self.drift_reports_total.labels("drift", decision).inc()
        key = (
            self.services.fold(service),
            self.scorers.fold(scorer),
            role,
            self.model_versions.fold(reference),
            self.model_versions.fold(current),
        )
        if not self._decisions.set(key, decision):
            self._drift_folded.inc()
            return
        self._remember(service, scorer, ("drift", *key), lambda: self._forget_comparison(key))
        _set(self.drift_distance, key, d)
        _set(self.drift_log_e, key, log_e)
        _set(self.drift_log_threshold, key, log_threshold)

    def observe_mix(
        self,
        *,
        service: str,
        scorer: str,
        reference: str,
        current: str,
        decision: str,
        composition_share: float | None,
        log_e: Mapping[str, float | None],
    ) -> None:
        """A mix report; ``log_e`` by what may have changed: ``length`` and ``roles``."""
        self.drift_reports_total.labels("mix", decision).inc()
        key = (
            self.services.fold(service),
            self.scorers.fold(scorer),
            self.model_versions.fold(reference),
            self.model_versions.fold(current),
        )
        if len(self._shown) >= DRIFT_KEYS and (service, scorer) not in self._shown:
            self._drift_folded.inc()
            return
        _set(self.composition_share, key, composition_share)
        self._remember(service, scorer, ("mix", *key), lambda: self._forget_mix(key, tuple(log_e)))
        for what, value in log_e.items():
            _set(self.mix_log_e, (*key, what), value)

    def observe_gate(self, service: str, scorer: str, state: str) -> None:
        key = (self.services.fold(service), self.scorers.fold(scorer))
        if not self._gates.set(key, state):
            self._drift_folded.inc()
            return
        self._remember(service, scorer, ("gate", *key), lambda: self._gates.forget(key))

    def forget_drift(self, which: Callable[[str, str], bool]) -> None:
        """Take off the series of every (service, scorer) that ``which`` picks: its partition went elsewhere.

        Two workers that both show a decision would keep an alert firing that one of them has cleared.
        """
        for pair in [pair for pair in self._shown if which(*pair)]:
            for take_off in self._shown.pop(pair).values():
                take_off()

    def _remember(
        self, service: str, scorer: str, series: tuple[str, ...], take_off: Callable[[], None]
    ) -> None:
        self._shown.setdefault((service, scorer), {})[series] = take_off

    def _forget_comparison(self, key: tuple[str, ...]) -> None:
        self._decisions.forget(key)
        for gauge in (self.drift_distance, self.drift_log_e, self.drift_log_threshold):
            _remove(gauge, key)

    def _forget_mix(self, key: tuple[str, ...], what: tuple[str, ...]) -> None:
        _remove(self.composition_share, key)
        for name in what:
            _remove(self.mix_log_e, (*key, name))

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
            for key in [key for key in self._counted if key[0] == partition]:
                del self._counted[key]

    def declare_inputs(self, topics: Iterable[str]) -> None:
        """Show 0 for every configured input: one that never spoke must alert as silent, too."""
        for topic in topics:
            self.input_records_total.labels(self.topics.fold(topic))

    def beat(self, stage: str) -> None:
        """A loop went round."""
        self.heartbeat_timestamp_seconds.labels(stage).set(self.now())


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
