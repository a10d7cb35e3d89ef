"""Values of the two tables, as bytes and back. Each carries its own fence: the offset it has taken in.

``windows``, key W|service|scorer|window: the sums of one window (or of a block of merged ones), all versions.
``totals``,  key T|service|scorer|scorer version|model version: sums of the version's folded windows, with bins
(scorer version "" holds the length and role mix of a verdict model version); key L|service|scorer: the ledger.
Values are zlib over msgpack: int64 tables are mostly zeros.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import MutableMapping
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np

from monitor.drift.messages import key_part
from monitor.drift.sums import MIX_WIDTH, WIDTH, Bins, Keyed, MixKey, StratumKey, Sums, TailKey
from monitor.errors import UndecodableRecord

WINDOWS: Final = "windows"
TOTALS: Final = "totals"
VALUE_VERSION: Final = 2
_LEVEL: Final = 1  # 3x faster than 6, 10 % larger on these tables


class _Encoded(msgspec.Struct, frozen=True, array_like=True):
    rows: tuple[StratumKey, ...]
    row_data: bytes
    tails: tuple[TailKey, ...]
    tail_data: bytes
    mix: tuple[MixKey, ...]
    mix_data: bytes
    bins: tuple[bytes, bytes, bytes] | None


class WindowValue(msgspec.Struct, frozen=True):
    """One window's sums. ``last``: the last window of the block (the window itself where it is none).

    ``dropped``: rows left out because the window was full. Bins are gone once they were folded into totals.
    ``idle``: strata that are known here and whose sums are zero now. A window that is full knows no further
    stratum for ever, so one that was left out is not taken back either.
    """

    fence: int
    last: int
    dropped: int
    sums: Sums
    idle: tuple[StratumKey, ...] = ()

    @property
    def strata(self) -> int:
        """Known strata."""
        return len(self.sums.rows.keys) + len(self.idle)


class TotalValue(msgspec.Struct, frozen=True):
    """Folded windows of one version. ``folded``: ascending (window, the fence that this fold has taken in).

    ``floor``: windows up to it are folded, listed or not. ``traffic``: role -> (sum n_w, sum n_w^2) over
    folded windows, n_w the role's scored traces of a window (role "": traces of the mix).
    """

    fence: int
    floor: int
    folded: tuple[tuple[int, int], ...]
    traffic: dict[str, tuple[int, int]]
    sums: Sums

    def fence_of(self, window: int) -> int | None:
        """Fence of a folded window; None where it is not folded here."""
        at = bisect_left(self.folded, (window, -1))
        if at < len(self.folded) and self.folded[at][0] == window:
            return self.folded[at][1]
        return self.fence if window <= self.floor else None


EMPTY_TOTAL: Final = TotalValue(-1, -1, (), {}, Sums.empty())


class _RawWindow(msgspec.Struct, frozen=True, array_like=True):
    version: int
    fence: int
    last: int
    dropped: int
    sums: _Encoded
    idle: tuple[StratumKey, ...]


class _RawTotal(msgspec.Struct, frozen=True, array_like=True):
    version: int
    fence: int
    floor: int
    folded: tuple[tuple[int, int], ...]
    traffic: dict[str, tuple[int, int]]
    sums: _Encoded


_ENCODER: Final = msgspec.msgpack.Encoder(order="sorted")
_WINDOW: Final = msgspec.msgpack.Decoder(_RawWindow)
_TOTAL: Final = msgspec.msgpack.Decoder(_RawTotal)


def encode_window(value: WindowValue) -> bytes:
    sums = _pack(value.sums)
    raw = _RawWindow(VALUE_VERSION, value.fence, value.last, value.dropped, sums, value.idle)
    return zlib.compress(_ENCODER.encode(raw), _LEVEL)


def decode_window(raw: bytes) -> WindowValue:
    """Raises UndecodableRecord."""
    found = _decode(_WINDOW, raw, "windows")
    return WindowValue(found.fence, found.last, found.dropped, _unpack(found.sums), found.idle)


def encode_total(value: TotalValue) -> bytes:
    raw = _RawTotal(
        VALUE_VERSION, value.fence, value.floor, value.folded, value.traffic, _pack(value.sums)
    )
    return zlib.compress(_ENCODER.encode(raw), _LEVEL)


def decode_total(raw: bytes) -> TotalValue:
    """Raises UndecodableRecord."""
    found = _decode(_TOTAL, raw, "totals")
    return TotalValue(found.fence, found.floor, found.folded, found.traffic, _unpack(found.sums))


def _decode(decoder: msgspec.msgpack.Decoder[Any], raw: bytes, table: str) -> Any:
    try:
        found = decoder.decode(zlib.decompress(raw))
    except (zlib.error, msgspec.DecodeError) as error:
        raise UndecodableRecord(
            f"a value of the drift table {table!r} does not decode: {error}"
        ) from error
    if found.version != VALUE_VERSION:
        raise UndecodableRecord(
            f"a value of the drift table {table!r} has version {found.version}, this build reads "
            f"{VALUE_VERSION}: start the build that wrote it, or remove the table's changelog and replay"
        )
    return found


def _bytes(array: np.ndarray[Any, Any]) -> bytes:
    return array.astype("<i8", copy=False).tobytes()


def _ints(raw: bytes, *shape: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.frombuffer(raw, dtype="<i8").reshape(shape).astype(np.int64, copy=False)


def _pack(sums: Sums) -> _Encoded:
    bins = sums.bins
    return _Encoded(
        sums.rows.keys,
        _bytes(sums.rows.data),
        sums.tails.keys,
        _bytes(sums.tails.data),
        sums.mix.keys,
        _bytes(sums.mix.data),
        None
        if bins is None
        else (_bytes(np.diff(bins.at, prepend=0)), _bytes(bins.weights), _bytes(bins.counts)),
    )


def _unpack(raw: _Encoded) -> Sums:
    bins = None
    if raw.bins is not None:
        at, weights, counts = (_ints(b, -1) for b in raw.bins)
        bins = Bins(at.cumsum(), weights, counts)
    return Sums(
        Keyed(raw.rows, _ints(raw.row_data, len(raw.rows), WIDTH)),
        Keyed(raw.tails, _ints(raw.tail_data, len(raw.tails), 2)),
        Keyed(raw.mix, _ints(raw.mix_data, len(raw.mix), MIX_WIDTH)),
        bins,
    )


V = TypeVar("V")


class Cached(Generic[V]):
    """A table of bytes seen as decoded values; at most ``limit`` of them are kept decoded.

    A cached value is used only while the table holds the very bytes it was decoded from, so a table that was
    restored, or taken over by another owner, is never shadowed by what was known before.
    """

    def __init__(self, table: MutableMapping[bytes, bytes], decode: Any, limit: int) -> None:
        self._table = table
        self._decode = decode
        self._limit = limit
        self._known: OrderedDict[bytes, tuple[bytes, V]] = OrderedDict()

    def get(self, key: bytes) -> V | None:
        raw = self._table.get(key)
        if raw is None:
            return None
        known = self._known.get(key)
        if known is not None and (known[0] is raw or known[0] == raw):
            self._known.move_to_end(key)
            return known[1]
        value: V = self._decode(raw)
        self.learn(key, raw, value)
        return value

    def learn(self, key: bytes, raw: bytes, value: V) -> None:
        """What the table will hold under ``key`` after a write."""
        self._known[key] = (raw, value)
        self._known.move_to_end(key)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)


def window_key(key: bytes, window: int) -> bytes:
    return b"W|" + key + b"|%d" % window


def total_key(key: bytes, scorer_version: str, model_version: str) -> bytes:
    return b"T|" + key + f"|{key_part(scorer_version)}|{key_part(model_version)}".encode()


def ledger_key(key: bytes) -> bytes:
    return b"L|" + key


def is_ledger_key(key: bytes) -> bool:
    return key.startswith(b"L|")
