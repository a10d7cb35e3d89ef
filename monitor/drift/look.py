"""One look at one (service, scorer): every live version against its reference, role by role; then the mix.

A look is caused by a record alone (a first delta of a higher window, every 20th delta, a changed baseline), so
the same log and settings give the same reports. A report goes out when what it says has changed, and at the
first look in a new window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.drift.classical import classical
from monitor.drift.decision import (
    Figures,
    Verdict,
    benjamini_hochberg,
    best_radius,
    coverage,
    coverage_moved,
    decide,
    figures,
    traces_needed,
)
from monitor.drift.evidence import Floats, compare_counts, compare_role, mixture_weights, variance
from monitor.drift.ledger import Pair, Reference, RolePhis
from monitor.drift.look_mix import look_at_mix
from monitor.drift.report import DriftReport, GateState, Output, Sizes, report_id
from monitor.drift.series import by_role
from monitor.drift.settings import DriftSettings
from monitor.drift.state import State, nbar
from monitor.drift.sums import RoleSums
from monitor.drift.tail import Tail, log_tail_evidence, tail_strata, totals

ROLES_SHARING = 5.0  # alpha of a family is split evenly over the five roles


@dataclass(slots=True)
class _Found:
    """One role of one pair as this look finds it."""

    pair: Pair
    pinned: bool
    ref: RoleSums
    cur: RoleSums
    phis: RolePhis | None
    nbar: float
    verdict: Verdict
    figures: Figures | None = None
    log_needed: float | None = None
    tail: Tail | None = None
    ticket: bool = False


class Look:
    def __init__(
        self,
        state: State,
        service: str,
        scorer: str,
        offset: int,
        new_window: bool,
        settings: DriftSettings,
    ) -> None:
        self.outputs: list[Output] = []
        self.gates: list[GateState] = []
        self._state = state
        self._ledger = state.ledger
        self._service = service
        self._scorer = scorer
        self._offset = offset
        self._new_window = new_window
        self._settings = settings
        self._roles: dict[tuple[str, str], dict[str, RoleSums]] = {}

    def run(self) -> None:
        self._choose_references()
        found = [f for reference in self._ledger.references for f in self._against(reference)]
        self._open_tickets(found)
        for each in found:
            self._report(each)
        mix, gate = look_at_mix(
            self._state, self._service, self._scorer, self._offset, self._new_window, self._settings
        )
        self.outputs += mix
        self.gates += gate

    # --- who is held against whom ---------------------------------------------------------------------

    def _live(self, last: int) -> bool:
        return last > self._ledger.highest - self._settings.dormant_windows

    def _choose_references(self) -> None:
        """The first version with enough traces, where nothing was pinned."""
        ledger = self._ledger
        for sv in sorted({v.scorer_version for v in ledger.versions if v.scorer_version}):
            if ledger.reference(sv) is not None:
                continue
            enough = [
                v
                for v in ledger.versions
                if v.scorer_version == sv
                and max((r.total for r in self._roles_of(sv, v.model_version).values()), default=0)
                >= self._settings.min_reference
            ]
            first = min(enough, key=lambda v: (v.first, v.model_version), default=None)
            if first is not None:
                ledger.references.append(Reference(sv, first.model_version))

    def _roles_of(self, sv: str, mv: str) -> dict[str, RoleSums]:
        if (sv, mv) not in self._roles:
            sums, _ = self._state.sums(sv, mv)
            roles = sorted({k[2] for k in sums.rows.keys})
            self._roles[sv, mv] = {role: RoleSums(sums, role) for role in roles}
        return self._roles[sv, mv]

    def _against(self, reference: Reference) -> list[_Found]:
        sv = reference.scorer_version
        found = []
        for version in self._ledger.versions:
            if version.scorer_version != sv or version.model_version == reference.model_version:
                continue
            if not self._live(version.last):
                for pair in self._ledger.pairs:
                    if (pair.scorer_version, pair.current) == (sv, version.model_version):
                        pair.drifted = pair.tail_drifted = False
                continue
            for role, cur in self._roles_of(sv, version.model_version).items():
                pair = self._pair(sv, role, reference.model_version, version.model_version)
                found.append(self._look_at(pair, reference, cur))
        return found

    def _pair(self, sv: str, role: str, reference: str, current: str) -> Pair:
        for pair in self._ledger.pairs:
            if (pair.scorer_version, pair.role, pair.reference, pair.current) == (
                sv,
                role,
                reference,
                current,
            ):
                return pair
        pair = Pair(sv, role, reference, current)
        self._ledger.pairs.append(pair)
        same_role = [p for p in self._ledger.pairs if p.role == role]
        if len(same_role) > self._settings.max_pairs:
            last = {(v.scorer_version, v.model_version): v.last for v in self._ledger.versions}
            others = [p for p in same_role if p is not pair]
            closing = min(
                others, key=lambda p: (last.get((p.scorer_version, p.current), -1), p.n, p.current)
            )
            self._ledger.pairs.remove(closing)
        return pair

    # --- one role of one pair -------------------------------------------------------------------------

    def _look_at(self, pair: Pair, reference: Reference, cur: RoleSums) -> _Found:
        s = self._settings
        sums, _ = self._state.sums(pair.scorer_version, pair.reference)
        ref = self._roles_of(pair.scorer_version, pair.reference).get(pair.role) or RoleSums(
            sums, pair.role
        )
        early = self._too_early(pair, ref, cur)
        phis = self._phis(pair)
        _, traffic = self._state.sums(pair.scorer_version, pair.current)
        found = _Found(
            pair, reference.pinned, ref, cur, phis, nbar(traffic, pair.role), early or _NOTHING
        )
        if early is not None:
            return found
        log_pi = self._number(pair, ref)
        alpha = s.alpha_behaviour / (ROLES_SHARING * pair.n * (pair.n + 1))
        found.log_needed = -float(np.log(alpha))
        found.tail = self._tail(pair, found)
        by_role_phi = None if phis is None else phis.by_role
        by_counts_phi = None if phis is None else phis.by_counts
        if by_role_phi is None or by_counts_phi is None:
            found.verdict = Verdict(
                "not_comparable",
                "phi_unknown",
                f"{pair.reference} has fewer than {s.phi_min} complete windows with this role, so how much scores "
                "wander from window to window is unknown; cure: wait, or pin a version with a longer past",
            )
        else:
            sides = by_role_phi.sides(found.nbar)
            role = compare_role(ref, cur, sides)
            counts = compare_counts(ref, cur, by_counts_phi.sides(found.nbar), s.min_stratum)
            found.figures = figures(role, counts, log_pi, s)
            if coverage_moved(ref, cur, sides, s):
                found.verdict = Verdict(
                    "not_comparable",
                    "coverage_changed",
                    f"the scored share of the role's traces moved from {coverage(ref):.2f} to {coverage(cur):.2f}; "
                    "cure: score both versions alike, then pin the first that is",
                )
            else:
                best = best_radius(ref, sides, s)
                found.verdict = decide(found.figures, found.log_needed, best, s)
        if found.verdict.decision == "drift":
            pair.drifted = True
        elif pair.drifted:
            found.verdict = Verdict(
                "drift",
                "latched",
                f"crossed before and stays until pinned or promoted; now: {found.verdict.why}",
            )
        return found

    def _too_early(self, pair: Pair, ref: RoleSums, cur: RoleSums) -> Verdict | None:
        """Sizes below which the evidence is not valid; None where both are reached."""
        s = self._settings
        if pair.n:
            return None if ref.total > 0 and cur.total > 0 else _GONE
        if ref.total < s.min_reference:
            version = self._ledger.version(pair.scorer_version, pair.reference)
            alive = version is not None and self._live(version.last)
            why = (
                f"the reference has {ref.total} traces with this role, {s.min_reference} are needed"
            )
            if alive:
                return Verdict("not_yet", "reference_growing", why)
            cure = "; it gets no more: pin a version that has them"
            return Verdict("not_comparable", "reference_too_small", why + cure)
        if cur.total < s.min_current:
            return Verdict(
                "not_yet",
                "current_growing",
                f"{cur.total} traces with this role, {s.min_current} are needed",
            )
        return None

    def _number(self, pair: Pair, ref: RoleSums) -> Floats:
        """The pair's number in its role and its mixture weights, both fixed for life when it first counts."""
        if not pair.n:
            numbers = self._ledger.numbers
            pair.n = numbers[pair.role] = numbers.get(pair.role, 0) + 1
            traces, s1 = np.array([ref.total]), ref.s1.sum(axis=0, keepdims=True)
            m, _ = variance(traces, s1, ref.s2.sum(axis=0, keepdims=True))
            pair.log_pi = tuple(mixture_weights(m[0]).tolist())
        return np.array(pair.log_pi)

    def _phis(self, pair: Pair) -> RolePhis | None:
        """phi of the reference's role: learnt anew at a new window, if the reference has changed since."""
        sv, mv = pair.scorer_version, pair.reference
        total = self._state.total(sv, mv)
        if total is None:
            return None
        threshold = self._threshold(sv, pair.role)
        known = [p for p in self._ledger.phis if (p.scorer_version, p.model_version) == (sv, mv)]
        mine = next((p for p in known if p.role == pair.role), None)
        if mine is not None and (
            not self._new_window or (mine.fence == total.fence and mine.tail_threshold == threshold)
        ):
            return mine
        windows = self._state.first_windows(sv, mv, self._settings.phi_windows)
        fresh = []
        for role, series in sorted(by_role(self._state.window_sums(windows), sv, mv).items()):
            by_role_phi, by_counts_phi = series.phis()
            t = self._threshold(sv, role)
            tail = None if t is None else series.tail_phi(t)
            fresh.append(RolePhis(sv, mv, role, total.fence, by_role_phi, by_counts_phi, tail, t))
        self._ledger.phis = [p for p in self._ledger.phis if p not in known] + fresh
        return next((p for p in fresh if p.role == pair.role), None)

    def _threshold(self, sv: str, role: str) -> float | None:
        return next(
            (t.value for t in self._ledger.thresholds if (t.scorer_version, t.role) == (sv, role)),
            None,
        )

    def _tail(self, pair: Pair, found: _Found) -> Tail | None:
        s = self._settings
        threshold = self._threshold(pair.scorer_version, pair.role)
        if threshold is None:
            return None
        m_ref, k_ref = totals(found.ref, threshold)
        m_cur, k_cur = totals(found.cur, threshold)
        phi = (
            None
            if found.phis is None or found.phis.tail_threshold != threshold
            else found.phis.tail
        )
        strata = tail_strata(found.ref, found.cur, threshold, s.min_stratum)
        log_needed = -float(np.log(s.alpha_tail / (ROLES_SHARING * pair.n * (pair.n + 1))))
        log_e = None
        decision = "not_comparable"
        shown = m_ref > 0 and k_cur > 0 and k_cur * m_ref >= 2 * k_ref * m_cur
        if phi is not None and strata is not None:
            log_e = log_tail_evidence(*strata, phi.larger(found.nbar))
            decision = "not_yet"
            if shown and log_e >= log_needed:
                pair.tail_drifted = True
        if pair.tail_drifted:
            decision = "drift"
        return Tail(
            incident_threshold=threshold,
            exceed=(k_ref, k_cur),
            traces=(m_ref, m_cur),
            log_e=log_e,
            threshold=log_needed,
            phi=None if phi is None else phi.value,
            shown=shown,
            decision=decision,
        )

    # --- what is said of it ---------------------------------------------------------------------------

    def _open_tickets(self, found: list[_Found]) -> None:
        """e-BH over this look's pairs, at d0 = .02: the k largest E with E >= m / (q k)."""
        known = [
            (f.figures.log_e[1], f)
            for f in found
            if f.figures is not None and f.figures.log_e is not None
        ]
        for each in benjamini_hochberg(
            [log_e for log_e, _ in known], len(known), self._settings.fdr_q
        ):
            known[each][1].ticket = True

    def _report(self, found: _Found) -> None:
        pair, verdict = found.pair, found.verdict
        tail = "" if found.tail is None else found.tail.decision
        says = f"{verdict.decision}|{verdict.reason}|{found.ticket}|{tail}"
        if says == pair.said and not self._new_window:
            return
        pair.said = says
        phis, f, s = found.phis, found.figures, self._settings
        by_role_phi = None if phis is None else phis.by_role
        more = None
        if verdict.reason == "current_growing":
            more = (s.min_current - found.cur.total, "comparable")
        elif (
            verdict.decision == "not_yet"
            and f is not None
            and found.log_needed is not None
            and by_role_phi is not None
        ):
            sides = by_role_phi.sides(found.nbar)
            log_pi = np.array(pair.log_pi)
            more = traces_needed(found.ref, found.cur, sides, f, log_pi, found.log_needed, s)
        shares = coverage(found.ref), coverage(found.cur)
        counts = None if f is None else f.counts
        log_e = None if f is None else f.log_e
        self.outputs.append(
            DriftReport(
                report_id=report_id(
                    "drift",
                    self._service,
                    self._scorer,
                    pair.scorer_version,
                    pair.role,
                    pair.current,
                    self._offset,
                ),
                service=self._service,
                scorer=self._scorer,
                scorer_version=pair.scorer_version,
                role=pair.role,
                reference=pair.reference,
                current=pair.current,
                decision=verdict.decision,
                reason=verdict.reason,
                why=verdict.why,
                traces=Sizes(found.ref.total, found.cur.total),
                spans=Sizes(found.ref.spans, found.cur.spans),
                d=None if f is None else f.role.d,
                w1=None if f is None else f.role.w1,
                d_counts=None if counts is None else counts.d,
                w1_counts=None if counts is None else counts.w1,
                log_e=None if log_e is None else log_e[0],
                log_e_role=None if f is None else f.log_e_role[0],
                log_e_counts=None if f is None or f.log_e_counts is None else f.log_e_counts[0],
                log_e_ticket=None if log_e is None else log_e[1],
                ticket=found.ticket,
                threshold=found.log_needed,
                alpha=None if found.log_needed is None else float(np.exp(-found.log_needed)),
                radius=None if f is None else f.radius,
                radius_counts=None if f is None else f.radius_counts,
                counts_supported=f is not None and f.log_e_counts is not None,
                strata=0 if counts is None else counts.strata,
                phi=None if by_role_phi is None else by_role_phi.value,
                phi_counts=None if phis is None or phis.by_counts is None else phis.by_counts.value,
                phi_windows=0 if by_role_phi is None else by_role_phi.windows,
                phi_provisional=by_role_phi is None or by_role_phi.windows < s.phi_firm,
                coverage=None if shares[0] is None or shares[1] is None else (shares[0], shares[1]),
                more_traces=None if more is None else more[0],
                toward=None if more is None else more[1],
                tail=found.tail,
                classical=classical(found.ref, found.cur),
                pinned=found.pinned,
                window=self._ledger.highest,
                window_ms=self._settings.window_ms,
                source_offset=self._offset,
            )
        )


_NOTHING = Verdict("not_yet", "more_traces_needed", "")
_GONE = Verdict("not_yet", "retracted", "every trace of a side was taken back")
