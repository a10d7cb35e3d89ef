"""docs/drift-proof.md: what the drift evidence promises, simulated. ``python -m benchmarks.drift_proof [--runs N]``.

Each scenario is many independent runs of a reference and a current version that is looked at every 100 traces.
Sums at every look are made at once; variances, evidence, phi and the tail are the product's own functions, and
tests hold the looks equal to the product's comparison. Seeds are fixed: the same sizes give the same page.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from monitor.drift.bins import CUTS, HALF, SCALE, J
from monitor.drift.evidence import (
    Floats,
    Phis,
    difference_variance,
    log_evidence,
    mixture_weights,
    variance,
)
from monitor.drift.phi import learn
from monitor.drift.settings import DriftSettings
from monitor.drift.sums import Ints
from monitor.drift.tail import log_tail_evidence

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "drift-proof.md"
EVERY: Final = 100  # traces between two looks
D0: Final = np.array([0.0, 0.02, 0.05])
_Z: Final = np.linspace(-6.0, 6.0, 4001)
_G: Final = 1.0 - stats.beta.isf(stats.norm.cdf(_Z), 8, 2)


@dataclass(frozen=True, slots=True)
class Traces:
    """Y [T, 35] of each trace at scale 720720, and its stratum [T]."""

    y: Ints
    stratum: Ints


def shift_of(d: float) -> float:
    """Shift of the normal score at which the KS distance is d."""
    return 2.0 * float(stats.norm.ppf((1.0 + d) / 2.0))


def score(z: Floats) -> Floats:
    """G = Beta(8, 2) of safety, as danger."""
    return np.asarray(np.interp(z, _Z, _G))


def traces(rng: np.random.Generator, n: Ints, mean: Floats, stratum: Ints, icc: float) -> Traces:
    """Traces of n [T] spans each, of normal scores about mean [T] with correlation icc within a trace."""
    z = np.repeat(mean + np.sqrt(icc) * rng.standard_normal(len(n)), n)
    z += np.sqrt(1.0 - icc) * rng.standard_normal(len(z))
    return summed(score(z), n, stratum)


def summed(scores: Floats, n: Ints, stratum: Ints) -> Traces:
    """Scores [sum n], trace after trace, as the method's Y."""
    cut = np.searchsorted(np.array(CUTS), scores, side="left")
    owner = np.repeat(np.arange(len(n)), n)
    counts = np.bincount(owner * (J + 1) + cut, minlength=len(n) * (J + 1))
    c = counts.reshape(len(n), J + 1)[:, :J].cumsum(axis=1)
    return Traces((2 * SCALE * c + n[:, None]) // (2 * n[:, None]), stratum)


def at_looks(side: Traces, strata: int, every: int) -> tuple[Ints, Ints, Ints]:
    """Cumulative traces [L, S], S1 and S2 [L, S, 35] after every ``every`` traces."""
    looks = len(side.y) // every
    used = looks * every
    key = (np.arange(used) // every) * strata + side.stratum[:used]
    m = np.bincount(key, minlength=looks * strata).reshape(looks, strata).cumsum(axis=0)
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    y = side.y[:used][order]
    found = []
    for values in (y, (y * y + HALF) // SCALE):
        table = np.zeros((looks * strata, J), dtype=np.int64)
        table[key[order][first]] = np.add.reduceat(values, first, axis=0)
        found.append(table.reshape(looks, strata, J).cumsum(axis=0))
    return m, found[0], found[1]


def evidence(
    ref: Traces, cur: Traces, strata: int, phis: Phis | None = None, min_stratum: int = 20
) -> tuple[Floats, Floats]:
    """log E by role and by counts at every look [3, L], for d0 = 0, .02 and .05; -inf: not supported."""
    s = DriftSettings()
    phis = phis or Phis()
    m_r, s1_r, s2_r = (a[-1:] for a in at_looks(ref, strata, len(ref.y)))
    m_c, s1_c, s2_c = at_looks(cur, strata, EVERY)
    f_ref = s1_r.sum(axis=(0, 1)) / (SCALE * len(ref.y))
    log_pi = mixture_weights(f_ref)
    r = tuple(a.sum(axis=1, keepdims=True) for a in (m_r, s1_r, s2_r))
    c = tuple(a.sum(axis=1, keepdims=True) for a in (m_c, s1_c, s2_c))
    by_role, _ = _log_e(r[0], r[1], r[2], c[0], c[1], c[2], phis, log_pi, 1, s.tau)
    if strata == 1:
        return by_role, by_role
    by_counts, supported = _log_e(
        m_r, s1_r, s2_r, m_c, s1_c, s2_c, phis, log_pi, min_stratum, s.tau
    )
    by_counts[:, np.logical_not(supported)] = -np.inf
    return by_role, by_counts


def _log_e(
    m_r: Ints,
    s1_r: Ints,
    s2_r: Ints,
    m_c: Ints,
    s1_c: Ints,
    s2_c: Ints,
    phis: Phis,
    log_pi: Floats,
    least: int,
    tau: float,
) -> tuple[Floats, NDArray[np.bool_]]:
    shape = s1_c.shape
    used = (m_r >= least) & (m_c >= least)
    safe_r, safe_c = np.broadcast_to(np.maximum(m_r, 1), m_c.shape), np.maximum(m_c, 1)
    s1_r, s2_r = np.broadcast_to(s1_r, shape), np.broadcast_to(s2_r, shape)

    def of(m: Ints, s1: Ints, s2: Ints) -> tuple[Floats, Floats]:
        mean, v = variance(m.reshape(-1), s1.reshape(-1, J), s2.reshape(-1, J))
        return mean.reshape(shape), v.reshape(shape)

    f_r, v_r = of(safe_r, s1_r, s2_r)
    f_c, v_c = of(safe_c, s1_c, s2_c)
    _, v = of(safe_r + safe_c, s1_r + s1_c, s2_r + s2_c)
    var = difference_variance(v_r, v_c, v, safe_r[..., None] * 1.0, safe_c[..., None] * 1.0, phis)
    h = np.where(used, safe_r * safe_c / (safe_r + safe_c), 0.0)
    w = h / np.maximum(h.sum(axis=1, keepdims=True), 1e-300)
    both = s1_r + s1_c
    same = (both == 0) | (both == SCALE * (safe_r + safe_c)[..., None]) | ~used[..., None]
    delta = np.einsum("ls,lsj->lj", w, f_c - f_r)
    total = np.einsum("ls,lsj->lj", w * w, var)
    total[total == 0.0] = 1.0
    log_e = log_evidence(delta, total, same.all(axis=1), log_pi, D0, tau)
    enough = (2 * (m_r * used).sum(axis=1) >= m_r.sum(axis=1)) & (
        2 * (m_c * used).sum(axis=1) >= m_c.sum(axis=1)
    )
    return log_e, enough


def first_over(log_e: Floats, needed: float) -> int | None:
    """Traces at the first look at which log E [L] reached log(needed)."""
    over = np.flatnonzero(log_e >= np.log(needed))
    return None if not len(over) else int(over[0] + 1) * EVERY


# --- scenarios: a run gives, a question, the traces at which it was answered yes ---------------------------

Run = Callable[[np.random.Generator], int | None]


def plain(
    *, d: float = 0.0, d0: int = 0, needed: float = 20.0, ref: int = 2000, cur: int = 20_000,
    spans: int = 6, icc: float = 0.5, start: int = 0, digits: int | None = None, pareto: bool = False,
) -> Run:  # fmt: skip
    """One role, one stratum, phi off; a shift of KS distance d from trace ``start`` on."""

    def run(rng: np.random.Generator) -> int | None:
        def side(t: int, mean: Floats) -> Traces:
            n = np.full(t, spans)
            if pareto:
                n = np.minimum(5000, 1 + rng.pareto(1.2, t).astype(np.int64))
            z = np.repeat(mean + np.sqrt(icc) * rng.standard_normal(t), n)
            z += np.sqrt(1.0 - icc) * rng.standard_normal(len(z))
            x = score(z)
            return summed(x if digits is None else np.round(x, digits), n, np.zeros(t, np.int64))

        moved = np.where(np.arange(cur) >= start, shift_of(d), 0.0)
        by_role, _ = evidence(side(ref, np.zeros(ref)), side(cur, moved), 1)
        return first_over(by_role[d0], needed)

    return run


def counted(kind: str, d0: int, d: float = 0.0) -> Run:
    """Counts change and behaviour does not (unless d): E = min(role, counts) >= 20 within 5,000 traces."""

    def run(rng: np.random.Generator) -> int | None:
        def side(t: int, factor: float, longer: float) -> Traces:
            hard = rng.standard_normal(t)
            base = np.exp(1.6 + 0.7 * hard + longer)
            own = np.maximum(1, (base * factor).astype(np.int64))
            other = np.maximum(1, base.astype(np.int64))  # the other roles' spans
            total = own + other
            mean = {
                "independent": np.zeros(t),
                "difficulty": 0.5 * hard,
                "length": 0.4 * (np.log(total) - 2.5),
                "longer": 0.4 * (np.log(total) - 2.5),
            }[kind]
            lengths, owns = np.log2(total).astype(np.int64), np.log2(own).astype(np.int64)
            stratum = np.minimum(lengths, 11) * 12 + np.minimum(owns, 11)
            return traces(
                rng, own, mean + (shift_of(d) if factor != 1 or longer else 0), stratum, 0.5
            )

        factor, longer = (1.0, 0.7) if kind == "longer" else (3.0, 0.0)
        by_role, by_counts = evidence(side(2000, 1.0, 0.0), side(5000, factor, longer), 144)
        return first_over(np.minimum(by_role[d0], by_counts[d0]), 20.0)

    return run


def hourly(sd: float, traffic: float, d0: int = 0, d: float = 0.0, ref: int = 2000) -> Run:
    """White hourly effects, 50 reference traces an hour, phi learnt from the reference."""

    def run(rng: np.random.Generator) -> int | None:
        def side(t: int, an_hour: int, mean: float) -> Traces:
            effect = np.repeat(sd * rng.standard_normal(-(-t // an_hour)), an_hour)[:t]
            return traces(rng, np.full(t, 6), mean + effect, np.zeros(t, np.int64), 0.5)

        before = side(ref, 50, 0.0)
        s1 = before.y.reshape(-1, 50, J).sum(axis=1) / SCALE
        m, v = variance(
            np.array([ref]),
            before.y.sum(axis=0, keepdims=True),
            ((before.y * before.y + HALF) // SCALE).sum(axis=0, keepdims=True),
        )
        phi = learn(s1, np.full((len(s1), 1), 50.0), m, v[0])
        assert phi is not None
        now = side(20_000, int(50 * traffic), shift_of(d))
        by_role, _ = evidence(before, now, 1, phi.sides(50.0 * traffic))
        return first_over(by_role[d0], 20.0)

    return run


def tail(ref: int, needed: float) -> Run:
    """Exceedance .2 % to 1 % of traces, one stratum, phi 1, within 5,000 traces."""

    def run(rng: np.random.Generator) -> int | None:
        k_ref = rng.binomial(ref, 0.002)
        k = (rng.random(5000) < 0.01).reshape(-1, EVERY).sum(axis=1).cumsum()
        one = np.ones(1)
        values = [
            log_tail_evidence(one * ref, one * k_ref, one * (i + 1) * EVERY, one * x, 1.0)
            for i, x in enumerate(k)
        ]
        return first_over(np.array(values), needed)

    return run


@dataclass(frozen=True, slots=True)
class Row:
    """``most`` or ``least``: bar on the share of runs; ``median``: bar on the traces until found."""

    name: str
    run: Run
    most: float | None = None
    least: float | None = None
    median: int | None = None
    short: bool = False  # in the short version too


KINDS: Final = {
    "independent": ("planner x3, scores independent of counts", 0.02),
    "difficulty": ("hidden difficulty drives length and score, planner x3", 0.02),
    "longer": ("longer traces arrive, score depends on length", None),
    "length": ("planner x3, score depends on length", 0.02),
}


def rows() -> list[Row]:
    found = [
        Row("no change", plain(), most=0.05, short=True),
        Row("no change, ICC .3", plain(icc=0.3), most=0.05),
        Row("no change, ICC .7", plain(icc=0.7), most=0.05, short=True),
        Row("no change, 2 decimals", plain(digits=2), most=0.05),
        Row(
            "no change, lengths Pareto to 5,000",
            plain(pareto=True, cur=5000),
            most=0.05,
            short=True,
        ),
        Row("no change, reference 200", plain(ref=200), most=0.05),
        Row("no change, reference 20,000", plain(ref=20_000), most=0.05),
    ]
    for kind, (name, bar) in KINDS.items():
        found.append(Row(f"{name}, d0 = 0", counted(kind, 0), most=bar))
        found.append(Row(f"{name}, d0 = .02", counted(kind, 1), most=0.05, short=kind != "length"))
        found.append(Row(f"{name}, d0 = .05", counted(kind, 2), most=0.05))
    for sd in (0.1, 0.2):
        for traffic in (1.0, 10.0, 0.1):
            name = f"hourly effects sd {sd}, white, traffic x{traffic:g}"
            short = (sd, traffic) == (0.2, 10.0)
            found.append(Row(name, hourly(sd, traffic), most=0.02, short=short))
    for d, least, most_traces in ((0.04, 0.9, 1600), (0.08, 0.99, 400), (0.16, 0.99, 200), (0.25, 0.99, 200)):  # fmt: skip
        short = d in (0.08, 0.16)
        found.append(
            Row(f"D = {d}, phi off", plain(d=d), least=least, median=most_traces, short=short)
        )
    for d, least, limit in ((0.04, 0.5, None), (0.08, 0.97, 800), (0.16, 0.99, 300), (0.25, 0.99, 200)):  # fmt: skip
        found.append(Row(f"D = {d}, phi learnt", hourly(0.0, 1.0, d=d), least=least, median=limit))
    page = partial(plain, d0=2, needed=1000.0)
    found += [
        Row("page: D = .04", page(d=0.04), most=0.0, short=True),
        Row("page: D = .08", page(d=0.08), least=0.10, most=0.25),
        Row("page: D = .16", page(d=0.16), least=0.99, median=500, short=True),
        Row("page: D = .25", page(d=0.25), least=0.99, median=300),
        Row("change of D = .16 at trace 5,000", plain(d=0.16, start=5000), least=0.99),
        Row("tail .2 % to 1 %, E >= 20", tail(2000, 20.0), least=0.85, short=True),
        Row("tail .2 % to 1 %, reference 20,000, E >= 1,000", tail(20_000, 1000.0), least=0.95),
    ]
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    row: Row
    hits: int
    runs: int
    median: float | None  # over all runs; None: fewer than half were found

    @property
    def limits(self) -> tuple[float, float]:
        """Two-sided 95 % (Clopper and Pearson)."""
        k, n = self.hits, self.runs
        low = float(stats.beta.ppf(0.025, k, n - k + 1)) if k else 0.0
        return low, float(stats.beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0

    @property
    def verdict(self) -> str:
        """Of a share only its whole interval on one side of the bar decides: ``met`` or ``no``."""
        low, high = self.limits
        row, share = self.row, self.hits / self.runs
        if not _barred(row):
            return "stated"
        most = 1.0 if row.most is None else row.most
        least = 0.0 if row.least is None else row.least
        late = row.median is not None and (self.median is None or self.median > row.median)
        if late or low > most or high < least:
            return "no"
        if high <= most and low >= least:
            return "met"
        return "not refuted" if least <= share <= most else "undecided"


def _barred(row: Row) -> bool:
    return any(bar is not None for bar in (row.most, row.least, row.median))


def simulate(row: Row, runs: int) -> Outcome:
    """``runs`` runs of a scenario; its seeds hang on its name alone, so that rows may come and go."""
    return _outcome(row, _answers(row, runs))


def _answers(row: Row, runs: int) -> list[int | None]:
    name = zlib.crc32(row.name.encode())
    return [row.run(np.random.default_rng([name, i])) for i in range(runs)]


def _answers_of(name: str, runs: int) -> list[int | None]:
    """The same in a process of its own, which a row's function cannot be sent to."""
    return _answers(next(row for row in rows() if row.name == name), runs)


def _outcome(row: Row, found: list[int | None]) -> Outcome:
    when = sorted(np.inf if t is None else float(t) for t in found)
    median = when[(len(found) - 1) // 2]
    hits = sum(t is not None for t in found)
    return Outcome(row, hits, len(found), None if np.isinf(median) else median)


def page(outcomes: list[Outcome], runs: int) -> str:
    lines = [
        "# What the drift evidence shows in simulation",
        "",
        f'Written by `make prove-drift ARGS="--runs {runs}"`: {runs} runs a scenario, seeds fixed. Scores are 1 - Beta(8, 2), 6 spans',
        "a trace, correlation .5 within a trace, a reference of 2,000 traces, a look every 100 traces up to 20,000 (5,000 where",
        "counts change and in the tail), alarm at E >= 20 with d0 = 0, unless the row says otherwise; `page` is d0 = .05 and E >= 1,000.",
        "`met`: the whole 95 % interval is on the right side of the bar; `no`: all of it is on the wrong one, or the median is too",
        "late; `not refuted`: the share is on the right side, the interval is not: more runs would tell; `undecided`: the share is on",
        "the wrong side, the interval not; `stated`: no bar.",
        "",
        "| scenario | alarmed or found | 95 % | bar | median traces | bar | |",
        "|---|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        low, high = o.limits
        r = o.row
        bars = [f"<= {r.most:.0%}"] if r.most is not None else []
        bars += [f">= {r.least:.0%}"] if r.least is not None else []
        median = "-" if o.median is None else f"{o.median:,.0f}"
        limit = "" if r.median is None else f"<= {r.median:,}"
        lines.append(
            f"| {r.name} | {o.hits / o.runs:.1%} | {low:.1%} - {high:.1%} | {', '.join(bars)} | {median} | {limit} | {o.verdict} |"
        )
    lines += [
        "",
        "Not simulated here: hours that hang together (AR), the role mix, ramps, real scores with another mix of tasks, and one version",
        "against its own past. Only where counts change are there strata; the other rows compare by role alone.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40, help="runs a scenario")
    parser.add_argument("--short", action="store_true", help="a few scenarios, no page written")
    given = parser.parse_args()
    wanted = [row for row in rows() if row.short or not given.short]
    outcomes = []
    with ProcessPoolExecutor() as pool:
        answers = pool.map(_answers_of, [row.name for row in wanted], [given.runs] * len(wanted))
        for row, found in zip(wanted, answers, strict=True):
            o = _outcome(row, found)
            outcomes.append(o)
            print(f"{o.verdict:11} {o.hits:5}/{o.runs} median {o.median} {row.name}", flush=True)
    if not given.short:
        PAGE.write_text(page(outcomes, given.runs), encoding="utf-8")
    sys.exit(any(o.verdict == "no" for o in outcomes))


if __name__ == "__main__":
    main()
