"""The mix part of a look: length and role mix, incident rates, the composition split, the cardinality gate."""

from __future__ import annotations

import numpy as np

from monitor.drift.composition import kitagawa
from monitor.drift.ledger import Ledger, MixPair, Reference
from monitor.drift.mix import MixPhis, MixSums, mix_evidence
from monitor.drift.phi import mean_traffic
from monitor.drift.report import (
    Composition,
    GateName,
    GateState,
    IncidentRates,
    MixEvidence,
    MixReport,
    Output,
    Sizes,
    report_id,
)
from monitor.drift.settings import DriftSettings
from monitor.drift.state import State, nbar
from monitor.model import ROLES

KINDS_SHARING = 2.0  # alpha of the mix is split over length and role mix


def look_at_mix(
    state: State, service: str, scorer: str, offset: int, new_window: bool, settings: DriftSettings
) -> tuple[list[Output], list[GateState]]:
    look = _MixLook(state, service, scorer, offset, new_window, settings)
    return look.run()


class _MixLook:
    def __init__(
        self,
        state: State,
        service: str,
        scorer: str,
        offset: int,
        new_window: bool,
        settings: DriftSettings,
    ) -> None:
        self._state = state
        self._ledger: Ledger = state.ledger
        self._service = service
        self._scorer = scorer
        self._offset = offset
        self._new_window = new_window
        self._settings = settings

    def run(self) -> tuple[list[Output], list[GateState]]:
        """Reports whose words changed (all, in a new window), and the gate where it changed."""
        floor = self._ledger.highest - self._settings.dormant_windows
        live = [
            v.model_version
            for v in self._ledger.versions
            if not v.scorer_version and v.last > floor
        ]
        baseline = self._latest_reference()
        reference = None if baseline is None else baseline.model_version
        others = sorted(v for v in live if v != reference)
        reports = []
        if baseline is not None and reference is not None and others:
            reports = [self._versions(baseline, current) for current in others]
        elif live:
            reports = [self._past(live[0])]
        for pair in self._ledger.mix_pairs:
            if pair.current not in live:
                pair.shifted = False
        outputs: list[Output] = [report for report, is_news in reports if is_news]
        return outputs, self._gate([report for report, _ in reports])

    def _latest_reference(self) -> Reference | None:
        """The baseline of the scorer version seen last."""
        last: dict[str, int] = {}
        for v in self._ledger.versions:
            last[v.scorer_version] = max(last.get(v.scorer_version, -1), v.last)
        return max(
            self._ledger.references,
            key=lambda r: (last.get(r.scorer_version, -1), r.scorer_version),
            default=None,
        )

    def _gate(self, reports: list[MixReport]) -> list[GateState]:
        gates = [r.gate for r in reports]
        state: GateName = "unknown"
        if "shifted" in gates:
            state = "shifted"
        elif gates and all(g == "stationary" for g in gates):
            state = "stationary"
        if state == (self._ledger.gate or "unknown"):
            return []
        self._ledger.gate = state
        why = (
            "; ".join(f"{r.current} against {r.reference}: {r.why}" for r in reports[:5])
            or "no live version"
        )
        return [
            GateState(
                service=self._service,
                scorer=self._scorer,
                state=state,
                why=why,
                source_offset=self._offset,
            )
        ]

    # --- two versions ---------------------------------------------------------------------------------

    def _versions(self, baseline: Reference, current: str) -> tuple[MixReport, bool]:
        reference = baseline.model_version
        ref_sums, _ = self._state.sums("", reference)
        cur_sums, traffic = self._state.sums("", current)
        ref, cur = MixSums.of(ref_sums, reference), MixSums.of(cur_sums, current)
        windows = self._state.first_windows("", reference, self._settings.phi_windows)
        phis = MixPhis([MixSums.of(s, reference) for s in self._state.window_sums(windows)])
        pair = self._pair(reference, current)
        sv = baseline.scorer_version

        def split() -> Composition | None:
            return kitagawa(self._state.sums(sv, reference)[0], self._state.sums(sv, current)[0])

        found = self._evidence(pair, ref, cur, phis, nbar(traffic, ""))
        return self._report(pair, ref, cur, found, split() if self._is_news(pair, found) else None)

    # --- one version against its own first windows ----------------------------------------------------

    def _past(self, version: str) -> tuple[MixReport, bool]:
        s = self._settings
        total = self._state.total("", version)
        folded = [] if total is None else [w for w, _ in total.folded]
        first: list[MixSums] = []
        for at, sums in enumerate(self._state.window_sums(folded[: s.phi_windows])):
            if at >= s.past_windows and sum(w.traces for w in first) >= s.min_reference:
                break
            first.append(MixSums.of(sums, version))
        later = (*folded[len(first) :], *self._ledger.open)
        recent = [
            MixSums.of(x, version)
            for x in self._state.window_sums(list(later[-s.recent_windows :]))
        ]
        recent = [w for w in recent if w.traces > 0]
        pair = self._pair(version, version)
        recent_nbar = mean_traffic(np.array([w.traces for w in recent], dtype=np.float64))
        ref, cur = MixSums.added(first), MixSums.added(recent)
        found = self._evidence(pair, ref, cur, MixPhis(first), recent_nbar)
        return self._report(pair, ref, cur, found, None)

    # --- common ---------------------------------------------------------------------------------------

    def _pair(self, reference: str, current: str) -> MixPair:
        for pair in self._ledger.mix_pairs:
            if (pair.reference, pair.current) == (reference, current):
                return pair
        pair = MixPair(reference, current)
        self._ledger.mix_pairs.append(pair)
        if len(self._ledger.mix_pairs) > self._settings.max_pairs:
            last = {v.model_version: v.last for v in self._ledger.versions if not v.scorer_version}
            others = [p for p in self._ledger.mix_pairs if p is not pair]
            self._ledger.mix_pairs.remove(
                min(others, key=lambda p: (last.get(p.current, -1), p.n, p.current))
            )
        return pair

    def _evidence(
        self, pair: MixPair, ref: MixSums, cur: MixSums, phis: MixPhis, nbar: float
    ) -> dict[str, MixEvidence]:
        s = self._settings
        if ref.traces <= 0 or cur.traces <= 0:
            return {}
        if not pair.n and (ref.traces < s.min_reference or cur.traces < s.min_current):
            return {}
        if not pair.n:
            pair.n = self._ledger.numbers[""] = self._ledger.numbers.get("", 0) + 1
        needed = self._needed(pair)
        found = {
            "length": mix_evidence(ref, cur, "length", phis.length, nbar, needed, s),
            "roles": mix_evidence(ref, cur, "roles", phis.roles, nbar, needed, s),
            "incidents": mix_evidence(ref, cur, "incidents", phis.incidents, nbar, None, s, d0=0.0),
        }
        if "shifted" in (found["length"].decision, found["roles"].decision):
            pair.shifted = True
        return found

    def _needed(self, pair: MixPair) -> float:
        return -float(np.log(self._settings.alpha_mix / (KINDS_SHARING * pair.n * (pair.n + 1))))

    def _gate_of(self, pair: MixPair, found: dict[str, MixEvidence]) -> tuple[GateName, str]:
        if pair.shifted:
            return "shifted", "evidence"
        if not found:
            return "unknown", "traces_growing"
        both = [found["length"], found["roles"]]
        if all(e.decision == "stationary" for e in both):
            return "stationary", "equivalent"
        return "unknown", next(e.reason for e in both if e.decision != "stationary")

    def _is_news(self, pair: MixPair, found: dict[str, MixEvidence]) -> bool:
        return self._new_window or pair.said != "|".join(self._gate_of(pair, found))

    def _report(
        self,
        pair: MixPair,
        ref: MixSums,
        cur: MixSums,
        found: dict[str, MixEvidence],
        composition: Composition | None,
    ) -> tuple[MixReport, bool]:
        gate, reason = self._gate_of(pair, found)
        is_news = self._is_news(pair, found)
        pair.said = f"{gate}|{reason}"
        known = ref.traces > 0 and cur.traces > 0
        report = MixReport(
            report_id=report_id(
                "mix", self._service, self._scorer, pair.reference, pair.current, self._offset
            ),
            service=self._service,
            scorer=self._scorer,
            reference=pair.reference,
            current=pair.current,
            comparison="past" if pair.reference == pair.current else "versions",
            gate=gate,
            reason=reason,
            why=_why(gate, reason, ref, cur, found, self._settings),
            traces=Sizes(ref.traces, cur.traces),
            composition=composition,
            length=found.get("length"),
            roles=found.get("roles"),
            threshold=self._needed(pair) if pair.n else None,
            incidents=_incidents(ref, cur, found["incidents"], self._settings) if found else None,
            spans_per_trace={"reference": ref.spans_per_trace, "current": cur.spans_per_trace}
            if known
            else {},
            role_shares={
                role: (float(a), float(b))
                for role, a, b in zip(
                    ROLES, ref.moments("roles")[0], cur.moments("roles")[0], strict=True
                )
            }
            if known
            else {},
            lengths=_lengths(ref, cur),
            window=self._ledger.highest,
            window_ms=self._settings.window_ms,
            source_offset=self._offset,
        )
        return report, is_news


def _lengths(ref: MixSums, cur: MixSums) -> tuple[tuple[int, int], ...]:
    used = int(np.flatnonzero(ref.lengths | cur.lengths).max(initial=-1)) + 1
    return tuple(
        (int(a), int(b)) for a, b in zip(ref.lengths[:used], cur.lengths[:used], strict=True)
    )


def _why(
    gate: GateName,
    reason: str,
    ref: MixSums,
    cur: MixSums,
    found: dict[str, MixEvidence],
    settings: DriftSettings,
) -> str:
    if not found:
        return (
            f"{ref.traces} reference and {cur.traces} current traces; "
            f"{settings.min_reference} and {settings.min_current} are needed"
        )
    spans = f"spans a trace {ref.spans_per_trace[0]:.1f} -> {cur.spans_per_trace[0]:.1f}"
    length, roles = found["length"], found["roles"]
    if reason == "phi_unknown":
        return f"{spans}; the reference has fewer than {settings.phi_min} complete windows"
    moved = f"lengths moved by {length.d:.3f}, role shares by {roles.d:.3f}"
    if gate == "stationary":
        return f"{spans}; {moved}: no change of {settings.d_equivalent:.2f} or more"
    return f"{spans}; {moved}"


def _incidents(
    ref: MixSums, cur: MixSums, found: MixEvidence, settings: DriftSettings
) -> IncidentRates:
    a, b = ref.incidents / ref.traces, cur.incidents / cur.traces
    statement = "unknown: the reference has too few complete windows"
    if found.log_e is not None and found.radius is not None:
        if found.log_e >= -np.log(settings.alpha_equivalent):
            statement = "higher" if b > a else "lower"
        else:
            statement = f"unchanged to within {abs(b - a) + found.radius:.3f}"
    return IncidentRates(
        reference=a,
        current=b,
        incidents=Sizes(ref.incidents, cur.incidents),
        difference=b - a,
        radius=found.radius,
        log_e=found.log_e,
        statement=statement,
    )
