"""Tables of exact integer sums: merging is adding, in any order, with bit-equal results.

``Keyed`` is a sorted tuple of keys beside an int64 matrix, one row a key; a row that is zero throughout does
not exist. ``Sums`` holds everything that is known of some traces: one row a stratum, thresholds' tails, the
length and role mix, and the sparse bins. All are immutable by convention: ``merge`` makes new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from monitor.drift.bins import BINS, CUT_OF_BIN, J
from monitor.drift.messages import ScoreDelta
from monitor.model import ROLES

Ints = NDArray[np.int64]
StratumKey = tuple[str, str, str, int, int]  # scorer version, model version, role, length, own
TailKey = tuple[StratumKey, float]
MixKey = tuple[str, int]  # model version, length
K = TypeVar("K")

# Columns of a stratum's row. Weights and squares by cut are differences from cut to cut; weights have one
# more column, for bins beyond the last cut, so that a row's weights still sum to 720720 a trace.
TRACES, SPANS, SPANS2, UNSCORED_TRACES = range(4)
_W: Final = 4
_Q: Final = _W + J + 1
WIDTH: Final = _Q + J
# Columns of a mix row
MIX_TRACES, MIX_INCIDENTS, MIX_N, MIX_N2 = range(4)
MIX_SHARES: Final = 4
MIX_SQUARES: Final = MIX_SHARES + len(ROLES)
MIX_WIDTH: Final = MIX_SQUARES + len(ROLES)

_CUT_OF_BIN: Final = np.array(CUT_OF_BIN, dtype=np.intp)


class Keyed(Generic[K]):
    """Rows of int64 under sorted keys."""

    __slots__ = ("data", "keys")

    def __init__(self, keys: tuple[K, ...], data: Ints) -> None:
        self.keys = keys
        self.data = data

    @classmethod
    def empty(cls, width: int) -> Keyed[K]:
        return cls((), np.zeros((0, width), dtype=np.int64))

    @classmethod
    def of(cls, rows: dict[K, Ints], width: int) -> Keyed[K]:
        keys: tuple[K, ...] = tuple(sorted(rows))  # type: ignore[type-var]
        if not keys:
            return cls.empty(width)
        return cls(keys, np.stack([rows[k] for k in keys]))

    def select(self, rows: Sequence[int]) -> Keyed[K]:
        return Keyed(tuple(self.keys[r] for r in rows), self.data[list(rows)])


def _union(tables: Sequence[Keyed[Any]]) -> tuple[Keyed[Any], list[NDArray[np.intp]]]:
    """Sum under all keys, and where each table's rows went (rows of zeros are still there)."""
    keys = tuple(sorted(set().union(*(t.keys for t in tables))))
    at = {k: i for i, k in enumerate(keys)}
    data = np.zeros((len(keys), tables[0].data.shape[1]), dtype=np.int64)
    places = []
    for table in tables:
        place = np.fromiter((at[k] for k in table.keys), dtype=np.intp, count=len(table.keys))
        data[place] += table.data
        places.append(place)
    return Keyed(keys, data), places


def _without_zeros(table: Keyed[Any]) -> Keyed[Any]:
    live = table.data.any(axis=1)
    if live.all():
        return table
    return table.select([int(i) for i in np.flatnonzero(live)])


class Bins:
    """Sparse bins of all rows of a ``Sums``: ``at`` = row * 1002 + bin, ascending."""

    __slots__ = ("at", "counts", "weights")

    def __init__(self, at: Ints, weights: Ints, counts: Ints) -> None:
        self.at = at
        self.weights = weights
        self.counts = counts

    @classmethod
    def empty(cls) -> Bins:
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, nothing)


class Sums:
    """Everything summed of some traces of one (service, scorer). ``bins`` is None where they were dropped."""

    __slots__ = ("bins", "mix", "rows", "tails")

    def __init__(
        self, rows: Keyed[StratumKey], tails: Keyed[TailKey], mix: Keyed[MixKey], bins: Bins | None
    ) -> None:
        self.rows = rows
        self.tails = tails
        self.mix = mix
        self.bins = bins

    @classmethod
    def empty(cls) -> Sums:
        return cls(Keyed.empty(WIDTH), Keyed.empty(2), Keyed.empty(MIX_WIDTH), Bins.empty())

    def __bool__(self) -> bool:
        return bool(self.rows.keys or self.mix.keys or self.tails.keys)

    def without_bins(self) -> Sums:
        return Sums(self.rows, self.tails, self.mix, None)

    def of_version(self, scorer_version: str, model_version: str) -> Sums:
        """Strata of one (scorer version, model version); no mix."""
        rows = [
            i
            for i, k in enumerate(self.rows.keys)
            if k[0] == scorer_version and k[1] == model_version
        ]
        tails = [
            i
            for i, (k, _) in enumerate(self.tails.keys)
            if k[0] == scorer_version and k[1] == model_version
        ]
        return Sums(
            self.rows.select(rows),
            self.tails.select(tails),
            Keyed.empty(MIX_WIDTH),
            self._bins_of(rows),
        )

    def of_mix(self, model_version: str) -> Sums:
        """Length and role mix of one verdict model version; no strata."""
        mix = self.mix.select([i for i, k in enumerate(self.mix.keys) if k[0] == model_version])
        return Sums(Keyed.empty(WIDTH), Keyed.empty(2), mix, Bins.empty())

    def keep(
        self, row: Callable[[StratumKey], bool], mix: Callable[[MixKey], bool]
    ) -> tuple[Sums, int]:
        """Without the strata and the rows of the mix of which that is false, and how many those are."""
        rows = [i for i, k in enumerate(self.rows.keys) if row(k)]
        mixes = [i for i, k in enumerate(self.mix.keys) if mix(k)]
        left_out = len(self.rows.keys) + len(self.mix.keys) - len(rows) - len(mixes)
        if not left_out:
            return self, 0
        tails = [i for i, (k, _) in enumerate(self.tails.keys) if row(k)]
        kept = Sums(
            self.rows.select(rows),
            self.tails.select(tails),
            self.mix.select(mixes),
            self._bins_of(rows),
        )
        return kept, left_out

    def _bins_of(self, rows: Sequence[int]) -> Bins | None:
        if self.bins is None:
            return None
        new_row = np.full(len(self.rows.keys), -1, dtype=np.int64)
        new_row[list(rows)] = np.arange(len(rows))
        row, where = np.divmod(self.bins.at, BINS)
        keep = new_row[row] >= 0
        return Bins(
            new_row[row[keep]] * BINS + where[keep], self.bins.weights[keep], self.bins.counts[keep]
        )


def merge(tables: Sequence[Sums], *, bins: bool = True) -> Sums:
    """The sum of some. ``bins=False`` (or any without bins) gives one without bins."""
    if not tables:
        return Sums.empty()
    rows, places = _union([t.rows for t in tables])
    tails, _ = _union([t.tails for t in tables])
    mix, _ = _union([t.mix for t in tables])
    summed = _merge_bins(tables, places) if bins else None
    live = np.asarray(rows.data.any(axis=1))
    if not live.all():
        if summed is not None:
            live[summed.at // BINS] = True
        kept = [int(i) for i in np.flatnonzero(live)]
        whole = Sums(rows, tails, mix, summed)
        rows, summed = rows.select(kept), whole._bins_of(kept)
    return Sums(rows, _without_zeros(tails), _without_zeros(mix), summed)


def _merge_bins(tables: Sequence[Sums], places: Sequence[NDArray[np.intp]]) -> Bins | None:
    ats, weights, counts = [], [], []
    for table, place in zip(tables, places, strict=True):
        if table.bins is None:
            return None
        if len(table.bins.at):
            row, where = np.divmod(table.bins.at, BINS)
            ats.append(place[row] * BINS + where)
            weights.append(table.bins.weights)
            counts.append(table.bins.counts)
    if not ats:
        return Bins.empty()
    at = np.concatenate(ats)
    order = np.argsort(at, kind="stable")
    at = at[order]
    first = np.flatnonzero(np.concatenate(([True], at[1:] != at[:-1])))
    w = np.add.reduceat(np.concatenate(weights)[order], first)
    c = np.add.reduceat(np.concatenate(counts)[order], first)
    at = at[first]
    keep = (w != 0) | (c != 0)
    return Bins(at[keep], w[keep], c[keep])


def sums_by_window(delta: ScoreDelta) -> dict[int, Sums]:
    """A delta's sums, apart by window, in ascending order of window."""
    entries: dict[int, list[Any]] = {}
    mixes: dict[int, list[Any]] = {}
    for e in delta.entries:
        entries.setdefault(e.window, []).append(e)
    for m in delta.mix:
        mixes.setdefault(m.window, []).append(m)
    return {
        w: merge(
            [_sums_of(e, ()) for e in _without_repeats(entries.get(w, []))]
            + [_sums_of((), mixes.get(w, ()))]
        )
        for w in sorted(entries.keys() | mixes.keys())
    }


def _without_repeats(entries: list[Any]) -> list[list[Any]]:
    """One list, unless some stratum comes twice (our own flushes never do that): then one list each."""
    keys = {(e.scorer_version, e.model_version, e.role, e.length, e.own) for e in entries}
    return [entries] if len(keys) == len(entries) else [[e] for e in entries]


def _sums_of(entries: Sequence[Any], mixes: Sequence[Any]) -> Sums:
    rows: dict[StratumKey, Ints] = {}
    tails: dict[TailKey, Ints] = {}
    sparse: dict[StratumKey, tuple[Ints, Ints, Ints]] = {}
    for e in entries:
        key = (e.scorer_version, e.model_version, e.role, e.length, e.own)
        row = np.zeros(WIDTH, dtype=np.int64)
        row[:_W] = (e.traces, e.spans, e.spans2, e.unscored)
        bins = np.array(e.bins, dtype=np.int64)
        weights = np.array(e.weights, dtype=np.int64)
        np.add.at(row, _W + _CUT_OF_BIN[bins], weights)
        row[_Q + np.array(e.cuts, dtype=np.intp)] = e.squares
        rows[key] = row
        sparse[key] = (bins, weights, np.array(e.counts, dtype=np.int64))
        for threshold, traces, exceed in e.tails:
            tails[key, threshold] = np.array((traces, exceed), dtype=np.int64)
    table: Keyed[StratumKey] = Keyed.of(rows, WIDTH)
    if table.keys:
        parts = [sparse[k] for k in table.keys]
        at = np.concatenate([p[0] + i * BINS for i, p in enumerate(parts)])
        flat = Bins(
            at, np.concatenate([p[1] for p in parts]), np.concatenate([p[2] for p in parts])
        )
    else:
        flat = Bins.empty()
    mix: dict[MixKey, Ints] = {}
    for m in mixes:
        head = (m.traces, m.incidents, m.sum_n, m.sum_n2)
        mix[m.model_version, m.length] = np.array((*head, *m.shares, *m.squares), dtype=np.int64)
    return Sums(table, Keyed.of(tails, 2), Keyed.of(mix, MIX_WIDTH), flat)


def cumulative(rows: Ints) -> tuple[Ints, Ints]:
    """S1 and S2 at the cuts [S, 35] from rows of strata [S, WIDTH]."""
    return rows[:, _W : _W + J].cumsum(axis=1), rows[:, _Q:].cumsum(axis=1)


class RoleSums:
    """One role of one version, ready to be compared: cumulative at the cuts, by stratum (length, own).

    traces [S], s1 [S, 35] and s2 [S, 35] int64; ``unscored`` traces of all strata.
    """

    __slots__ = (
        "_bins",
        "_where",
        "s1",
        "s2",
        "spans",
        "strata",
        "tails",
        "total",
        "traces",
        "unscored",
    )

    def __init__(self, sums: Sums, role: str) -> None:
        """``sums`` of one version."""
        mine = [i for i, k in enumerate(sums.rows.keys) if k[2] == role]
        scored = [i for i in mine if sums.rows.data[i, TRACES] > 0]
        data = sums.rows.data[scored]
        self.strata: list[tuple[int, int]] = [sums.rows.keys[i][3:] for i in scored]
        self.traces: Ints = data[:, TRACES]
        self.spans = int(data[:, SPANS].sum())
        self.unscored = int(sums.rows.data[mine, UNSCORED_TRACES].sum())
        self.s1, self.s2 = cumulative(data)
        self.tails: dict[float, dict[tuple[int, int], tuple[int, int]]] = {}
        for (key, threshold), (traces, exceed) in zip(
            sums.tails.keys, sums.tails.data, strict=True
        ):
            if key[2] == role:
                self.tails.setdefault(threshold, {})[key[3:]] = (int(traces), int(exceed))
        self.total = int(self.traces.sum())  # traces with a score in this role
        self._bins = sums._bins_of(scored)
        self._where: tuple[Ints, Ints] | None = None

    def weight_bins(self, factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Dense [1002]: sum over strata of factor * weights. The bins must be there."""
        row, where, bins = self._need()
        return _add_up(where, factors[row] * bins.weights, BINS)

    def count_bins(self) -> NDArray[np.float64]:
        """Dense [1002]: raw span counts of the role (exact up to 2^53)."""
        _, where, bins = self._need()
        return _add_up(where, bins.counts, BINS)

    def stratum_counts(self) -> NDArray[np.float64]:
        """Dense [S, 1002]: raw span counts by stratum."""
        _, _, bins = self._need()
        return _add_up(bins.at, bins.counts, len(self.strata) * BINS).reshape(
            len(self.strata), BINS
        )

    def _need(self) -> tuple[Ints, Ints, Bins]:
        """(row, bin) of every sparse entry, and the entries."""
        if self._bins is None:
            raise ValueError(
                "these sums hold no bins: take totals and open windows, not folded ones"
            )
        if self._where is None:
            self._where = np.divmod(self._bins.at, BINS)
        return *self._where, self._bins


def _add_up(where: Ints, values: NDArray[Any], length: int) -> NDArray[np.float64]:
    summed: NDArray[np.float64] = np.bincount(where, weights=values, minlength=length).astype(
        np.float64
    )
    return summed
