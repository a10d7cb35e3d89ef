"""What the fold adds up: one closed trace's contribution, and sums of them between two flushes.

A ``TracePart`` is what a closed trace contributes: the sorted bins of its scores by (service, scorer, scorer
version, role, model version), and, once, its length and role mix under the verdict's own service and model
version. It is small, storable, and enough to take the contribution out again: a retraction is ``add`` of the
stored part with sign -1 in the same window. Everything summed is an integer, so any order of any additions
and retractions gives bit-equal sums, and a flush (sorted, zeros left out) gives bit-equal records.

A trace that was cut (``Verdict.cut``) or whose forensics are rejected has no part: the fold decides.

Formulas (n scored spans of one trace in a group, c_k of them up to bin k, SCALE = 720720):
``Y_k = (2 SCALE c_k + n) // (2n)``, bin k gets ``Y_k - Y_(k-1)``; at cut j the square is
``(Y_j^2 + SCALE/2) // SCALE``, kept as its differences from cut to cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import msgspec

from monitor.drift.bins import CUT_OF_BIN, HALF, SCALE, J
from monitor.drift.messages import (
    UNSCORED,
    BaselineControl,
    DriftMessage,
    MixEntry,
    ScoreDelta,
    ScoreEntry,
    decode_message,
    delta_key,
    encode_message,
)
from monitor.drift.part import GroupPart, TracePart, trace_part
from monitor.model import ROLES

__all__ = [
    "UNSCORED",
    "BaselineControl",
    "DeltaAccumulator",
    "DriftMessage",
    "GroupPart",
    "MixEntry",
    "ScoreDelta",
    "ScoreEntry",
    "TracePart",
    "decode_message",
    "delta_key",
    "encode_message",
    "trace_part",
]

_ENCODER: Final = msgspec.msgpack.Encoder()

# Strata and mix rows that are held until the next flush. A trace of a service of its own takes two, 1.7 kB. 200
# services under 3 scorers, in ten strata each and two versions, have 12,000.
MAX_HELD: Final = 20_000

_ScoreKey = tuple[str, str, int, str, str, str, int, int]
_MixKey = tuple[str, str, int, str, int]


class _ScoreSums:
    __slots__ = ("counts", "spans", "spans2", "squares", "tails", "traces", "unscored", "weights")

    def __init__(self) -> None:
        self.traces = self.spans = self.spans2 = self.unscored = 0
        self.tails: dict[float, list[int]] = {}
        self.weights: defaultdict[int, int] = defaultdict(int)
        self.counts: defaultdict[int, int] = defaultdict(int)
        self.squares: defaultdict[int, int] = defaultdict(int)  # J: beyond the last cut, of no use


class _MixSums:
    __slots__ = ("incidents", "shares", "squares", "sum_n", "sum_n2", "traces")

    def __init__(self) -> None:
        self.traces = self.incidents = self.sum_n = self.sum_n2 = 0
        self.shares = [0] * len(ROLES)
        self.squares = [0] * len(ROLES)


class DeltaAccumulator:
    """Sums of trace parts since the last flush. False while nothing was added since then."""

    __slots__ = ("_mix", "_scores")

    def __init__(self) -> None:
        self._scores: dict[_ScoreKey, _ScoreSums] = {}
        self._mix: dict[_MixKey, _MixSums] = {}

    def __bool__(self) -> bool:
        return bool(self._scores or self._mix)

    def __len__(self) -> int:
        """Strata and mix rows that are not zero: what it takes in memory, and the same after ``from_state``."""
        return len(self._scores) + len(self._mix)

    @property
    def full(self) -> bool:
        """Time to flush, whatever the clock says: names that senders make up must not fill the memory."""
        return len(self) >= MAX_HELD

    def add(self, window: int, part: TracePart, sign: int) -> None:
        """Add (sign 1) or take out (sign -1) one trace's contribution in its window."""
        length = part.spans.bit_length() - 1
        scores = self._scores
        cut_of = CUT_OF_BIN
        names = part.names
        for group in part.groups:
            bins = memoryview(group.bins).cast("H")
            n = len(bins)
            key = (
                names[group.service],
                names[group.scorer],
                window,
                names[group.scorer_version],
                names[group.model_version],
                names[group.role],
                length,
                n.bit_length() - 1,
            )
            sums = scores.get(key)
            if sums is None:
                sums = scores[key] = _ScoreSums()
            if not n:
                sums.unscored += sign
                if not (sums.unscored or sums.traces):
                    self._drop_zero(key)
                continue
            sums.traces += sign
            sums.spans += sign * n
            sums.spans2 += sign * n * n
            tail = sums.tails.get(group.threshold)
            if tail is None:
                tail = sums.tails[group.threshold] = [0, 0]
            tail[0] += sign
            if group.exceeded:
                tail[1] += sign
            steps = (_PLUS if sign == 1 else _MINUS)[n] if n < _FEW else _steps(n, sign)
            weights, counts, squares = sums.weights, sums.counts, sums.squares
            for b, (w, c, q) in zip(bins, steps):  # noqa: B905 - the hot loop; one step a bin by construction
                weights[b] += w
                counts[b] += c
                squares[cut_of[b]] += q
            if not (sums.traces or sums.unscored):
                self._drop_zero(key)
        if part.scorers:
            self._add_mix(window, part, length, sign)

    def _drop_zero(self, key: _ScoreKey) -> None:
        """Forget sums that cancelled out; ones of as many traces added as taken back need not have."""
        if _score_entry(key, self._scores[key]) is None:
            del self._scores[key]

    def _drop_zero_mix(self, key: _MixKey) -> None:
        if _mix_entry(key, self._mix[key]) is None:
            del self._mix[key]

    def _add_mix(self, window: int, part: TracePart, length: int, sign: int) -> None:
        n = part.spans
        shares = []
        before = up_to = 0
        for count in part.role_counts:
            up_to += count
            reached = (2 * SCALE * up_to + n) // (2 * n)
            shares.append(reached - before)
            before = reached
        for scorer in part.scorers:
            key = (part.service, scorer, window, part.model_version, length)
            sums = self._mix.get(key)
            if sums is None:
                sums = self._mix[key] = _MixSums()
            sums.traces += sign
            sums.incidents += sign * part.incident
            sums.sum_n += sign * n
            sums.sum_n2 += sign * n * n
            for r, share in enumerate(shares):
                if share:
                    sums.shares[r] += sign * share
                    sums.squares[r] += sign * ((share * share + HALF) // SCALE)
            if not sums.traces:
                self._drop_zero_mix(key)

    def flush(self, limit: int = 256_000) -> list[ScoreDelta]:
        """All sums as records in the order of (service, scorer), none over ``limit`` bytes; then empty.

        A single entry is at most about 30 kB, so any limit over that holds.
        """
        deltas = [piece for whole in self.state() for piece in _split(whole, limit)]
        self._scores.clear()
        self._mix.clear()
        return deltas

    def state(self) -> list[ScoreDelta]:
        """The sums as one delta a (service, scorer), whatever its size: what a snapshot stores."""
        entries: dict[tuple[str, str], list[ScoreEntry]] = {}
        mixes: dict[tuple[str, str], list[MixEntry]] = {}
        for key in sorted(self._scores):
            entry = _score_entry(key, self._scores[key])
            if entry is not None:
                entries.setdefault(key[:2], []).append(entry)
        for mix_key in sorted(self._mix):
            mix = _mix_entry(mix_key, self._mix[mix_key])
            if mix is not None:
                mixes.setdefault(mix_key[:2], []).append(mix)
        return [
            ScoreDelta(*key, tuple(entries.get(key, ())), tuple(mixes.get(key, ())))
            for key in sorted(entries.keys() | mixes.keys())
        ]

    @classmethod
    def from_state(cls, state: Iterable[ScoreDelta]) -> DeltaAccumulator:
        """The accumulator whose ``state()`` that was."""
        new = cls()
        for delta in state:
            new.merge(delta)
        return new

    def merge(self, delta: ScoreDelta) -> None:
        """Add the sums of a delta."""
        for e in delta.entries:
            key = (
                delta.service,
                delta.scorer,
                e.window,
                e.scorer_version,
                e.model_version,
                e.role,
                e.length,
                e.own,
            )
            sums = self._scores.setdefault(key, _ScoreSums())
            sums.traces += e.traces
            sums.spans += e.spans
            sums.spans2 += e.spans2
            sums.unscored += e.unscored
            for threshold, traces, exceed in e.tails:
                tail = sums.tails.setdefault(threshold, [0, 0])
                tail[0] += traces
                tail[1] += exceed
            for b, w, c in zip(e.bins, e.weights, e.counts, strict=True):
                sums.weights[b] += w
                sums.counts[b] += c
            for j, q in zip(e.cuts, e.squares, strict=True):
                sums.squares[j] += q
            if not (sums.traces or sums.unscored):
                self._drop_zero(key)
        for m in delta.mix:
            mix_key = (delta.service, delta.scorer, m.window, m.model_version, m.length)
            mix = self._mix.setdefault(mix_key, _MixSums())
            mix.traces += m.traces
            mix.incidents += m.incidents
            mix.sum_n += m.sum_n
            mix.sum_n2 += m.sum_n2
            mix.shares = [a + b for a, b in zip(mix.shares, m.shares, strict=True)]
            mix.squares = [a + b for a, b in zip(mix.squares, m.squares, strict=True)]
            if not mix.traces:
                self._drop_zero_mix(mix_key)


def _steps(n: int, sign: int) -> tuple[tuple[int, int, int], ...]:
    """For the i-th of n sorted spans: the steps of weight, count and square that it makes.

    Steps of equal bins add up to the formula's Y_k - Y_(k-1), so ties need no care.
    """
    reached = [(2 * SCALE * c + n) // (2 * n) for c in range(n + 1)]
    square = [(y * y + HALF) // SCALE for y in reached]
    return tuple(
        (sign * (reached[i + 1] - reached[i]), sign, sign * (square[i + 1] - square[i]))
        for i in range(n)
    )


# Spans per trace and role are nearly always few; longer ones are worked out each time.
_FEW: Final = 128
_PLUS: Final = ((), *(_steps(n, 1) for n in range(1, _FEW)))
_MINUS: Final = ((), *(_steps(n, -1) for n in range(1, _FEW)))


def _score_entry(key: _ScoreKey, sums: _ScoreSums) -> ScoreEntry | None:
    """None where additions and retractions cancelled out."""
    bins = tuple(sorted(b for b, c in sums.counts.items() if c or sums.weights[b]))
    cuts = tuple(sorted(j for j, q in sums.squares.items() if q and j < J))
    tails = tuple(
        (t, sums.tails[t][0], sums.tails[t][1]) for t in sorted(sums.tails) if any(sums.tails[t])
    )
    if not (bins or cuts or tails or sums.traces or sums.spans or sums.spans2 or sums.unscored):
        return None
    return ScoreEntry(
        *key[2:],
        traces=sums.traces,
        spans=sums.spans,
        spans2=sums.spans2,
        unscored=sums.unscored,
        tails=tails,
        bins=bins,
        weights=tuple(sums.weights[b] for b in bins),
        counts=tuple(sums.counts[b] for b in bins),
        cuts=cuts,
        squares=tuple(sums.squares[j] for j in cuts),
    )


def _mix_entry(key: _MixKey, sums: _MixSums) -> MixEntry | None:
    heads = (sums.traces, sums.incidents, sums.sum_n, sums.sum_n2)
    if not (any(heads) or any(sums.shares) or any(sums.squares)):
        return None
    return MixEntry(
        *key[2:],
        traces=sums.traces,
        incidents=sums.incidents,
        sum_n=sums.sum_n,
        sum_n2=sums.sum_n2,
        shares=tuple(sums.shares),
        squares=tuple(sums.squares),
    )


def _split(whole: ScoreDelta, limit: int) -> list[ScoreDelta]:
    """Pieces of at most ``limit`` encoded bytes, filled in order."""
    head = (
        len(_ENCODER.encode(ScoreDelta(whole.service, whole.scorer))) + 16
    )  # + longer array headers
    pieces: list[ScoreDelta] = []
    entries: list[ScoreEntry] = []
    mix: list[MixEntry] = []
    size = head

    def cut() -> None:
        nonlocal size
        if entries or mix:
            pieces.append(ScoreDelta(whole.service, whole.scorer, tuple(entries), tuple(mix)))
            entries.clear()
            mix.clear()
            size = head

    for entry in whole.entries:
        needed = len(_ENCODER.encode(entry))
        if size + needed > limit:
            cut()
        size += needed
        entries.append(entry)
    for part in whole.mix:
        needed = len(_ENCODER.encode(part))
        if size + needed > limit:
            cut()
        size += needed
        mix.append(part)
    cut()
    return pieces
