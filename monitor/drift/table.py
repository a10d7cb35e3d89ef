"""Two versions compared from columns, without Kafka: ``compare`` in a notebook.

It goes the way of a worker: each trace becomes a part, parts become sums, sums are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from monitor.drift.classical import Classical, classical
from monitor.drift.decision import best_radius, decide, figures
from monitor.drift.delta import DeltaAccumulator
from monitor.drift.evidence import compare_counts, compare_role, mixture_weights, variance
from monitor.drift.part import trace_part
from monitor.drift.phi import Phi, mean_traffic
from monitor.drift.report import Sizes
from monitor.drift.series import by_role
from monitor.drift.settings import DriftSettings
from monitor.drift.sums import RoleSums, Sums, merge, sums_by_window
from monitor.model import Score, Span

_NAME: Final = "table"  # service, scorer and versions: one table is of one of each


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One role of two tables. Meanings and units as in ``DriftReport``; ``log_e`` natural, null: not comparable.

    ``decision`` is of the first pair of its role (log E needed: ``threshold``). ``phi``: null where no windows were
    given or there are too few; then traces are taken as independent of the hour, and ``why`` says so.
    """

    role: str
    decision: str
    reason: str
    why: str
    traces: Sizes
    spans: Sizes
    d: float | None = None
    w1: float | None = None
    d_counts: float | None = None
    w1_counts: float | None = None
    log_e: float | None = None
    log_e_ticket: float | None = None
    threshold: float | None = None
    radius: float | None = None
    phi: float | None = None
    classical: Classical | None = None


def compare(
    reference: Mapping[str, Sequence[Any]] | Any,
    current: Mapping[str, Sequence[Any]] | Any,
    *,
    trace: str = "trace_id",
    role: str = "role",
    score: str = "score",
    window: str | None = None,
    settings: DriftSettings | None = None,
) -> list[Compared]:
    """Compare two tables of spans role by role, in the order of roles.

    reference, current: anything whose ``[name]`` is a column, such as a DataFrame or a dict of lists; one row a
    span. ``score`` in [0, 1] grows with danger; NaN, None and others count as not scored. ``window``: column of
    whole numbers (hours, say), constant in a trace; what the reference's windows say of phi needs 8 of them.
    Raises ValueError where columns differ in length or a trace lies in two windows.
    """
    s = settings or DriftSettings()
    sides = [_sums(side, (trace, role, score), window) for side in (reference, current)]
    whole = [merge(list(windows.values())) for windows in sides]
    series = by_role([sides[0][w] for w in sorted(sides[0])], _NAME, _NAME)
    roles = sorted({key[2] for sums in whole for key in sums.rows.keys})
    found = []
    for each in roles:
        ref, cur = (RoleSums(sums, each) for sums in whole)
        known = series.get(each)
        phis = known.phis() if known is not None and window is not None else (None, None)
        busy = mean_traffic(np.array([float(RoleSums(w, each).total) for w in sides[1].values()]))
        found.append(_compared(each, ref, cur, phis, busy, s))
    return found


def _compared(
    role: str,
    ref: RoleSums,
    cur: RoleSums,
    phis: tuple[Phi | None, Phi | None],
    nbar: float,
    s: DriftSettings,
) -> Compared:
    traces, spans = Sizes(ref.total, cur.total), Sizes(ref.spans, cur.spans)
    if ref.total < s.min_reference or cur.total < s.min_current:
        why = f"{s.min_reference} traces with this role are needed in the reference, {s.min_current} in the other"
        return Compared(
            role=role,
            decision="not_comparable",
            reason="too_few",
            why=why,
            traces=traces,
            spans=spans,
            classical=classical(ref, cur),
        )
    calm = Phi(1.0, 0, 0.0)
    role_phis, counts_phis = ((phi or calm).sides(nbar) for phi in phis)
    s1, s2 = ref.s1.sum(axis=0, keepdims=True), ref.s2.sum(axis=0, keepdims=True)
    log_pi = mixture_weights(variance(np.array([ref.total]), s1, s2)[0][0])
    counts = compare_counts(ref, cur, counts_phis, s.min_stratum)
    f = figures(compare_role(ref, cur, role_phis), counts, log_pi, s)
    # five roles share alpha; the first pair of a role gets half of its part
    needed = -float(np.log(s.alpha_behaviour / (5.0 * 2.0)))
    verdict = decide(f, needed, best_radius(ref, role_phis, s), s)
    known = phis[0] is not None
    note = "" if known else "; without windows, so an hour's mood counts as a change"
    return Compared(
        role=role,
        decision=verdict.decision,
        reason=verdict.reason,
        why=verdict.why + note,
        traces=traces,
        spans=spans,
        d=f.role.d,
        w1=f.role.w1,
        d_counts=None if f.counts is None else f.counts.d,
        w1_counts=None if f.counts is None else f.counts.w1,
        log_e=None if f.log_e is None else f.log_e[0],
        log_e_ticket=None if f.log_e is None else f.log_e[1],
        threshold=needed,
        radius=f.radius,
        phi=None if phis[0] is None else phis[0].value,
        classical=classical(ref, cur),
    )


def _sums(table: Any, names: tuple[str, str, str], window: str | None) -> dict[int, Sums]:
    columns = [list(table[name]) for name in names]
    columns.append([0] * len(columns[0]) if window is None else list(table[window]))
    if len({len(column) for column in columns}) != 1:
        raise ValueError(f"columns differ in length: {[len(c) for c in columns]}; one row a span")
    members: dict[Any, list[Span]] = {}
    windows: dict[Any, int] = {}
    for trace_id, role, value, number in zip(*columns, strict=True):
        if windows.setdefault(trace_id, int(number)) != int(number):
            raise ValueError(f"trace {trace_id!r} lies in two windows; give each trace its first")
        spans = members.setdefault(trace_id, [])
        try:
            scores: tuple[Score, ...] = (Score(_NAME, _NAME, float(value)),)
        except (TypeError, ValueError):
            scores = ()
        name = f"{len(spans):016x}"
        spans.append(Span(name, str(role), scores, service=_NAME, model_version=_NAME))
    total = DeltaAccumulator()
    for trace_id, spans in members.items():
        part = trace_part(
            spans,
            verdict_service=_NAME,
            verdict_model_version=_NAME,
            threshold_of=lambda *_: 1.0,  # nothing here asks for exceedances
            incident=False,
        )
        total.add(windows[trace_id], part, 1)
    by_window: dict[int, list[Sums]] = {}
    for delta in total.flush():
        for number, sums in sums_by_window(delta).items():
            by_window.setdefault(number, []).append(sums)
    return {number: merge(sums) for number, sums in by_window.items()}
