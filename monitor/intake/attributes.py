"""What attributes say, remembered by their bytes: most of a span's attributes were on a span before it.

Shared by the OTLP encodings; each subclass knows how to read the bytes of one attribute.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from monitor.intake.anyvalue import hashed, of_key_value
from monitor.intake.bounds import Bounds
from monitor.intake.found import REPEATS, Hit, Lookup
from monitor.intake.loose import check_depth
from monitor.intake.wire import canonical

_REMEMBERED: Final = 256  # bytes of an attribute that is worth remembering: longer ones are content
_KEY_FIELD, _VALUE_FIELD = 0x0A, 0x12  # tags of a KeyValue
_STRING, _BOOL, _INT = 0x0A, 0x10, 0x18  # tags of an AnyValue
_ONE_BYTE: Final = 2  # bytes of an AnyValue whose number has one byte
_LONG: Final = 128  # numbers below have one byte

Hits = list[tuple[Hit, Any]]


class Said(NamedTuple):
    """Of one attribute."""

    hashed: bytes
    hit: Hit | None  # where it belongs; None: nobody reads it
    way: int  # of the hit
    value: Any


def hits(said: Iterable[Said]) -> Hits:
    """What the conventions read."""
    return [(hit, value) for _, hit, _, value in said if hit is not None]


class Attributes(dict[bytes, Said]):
    """Attribute bytes -> what they say, for those that come again and again; bounded."""

    def __init__(self, lookup: Lookup, bounds: Bounds) -> None:
        super().__init__()
        self._lookup = lookup
        self._cache = bounds.cache
        self._nesting = bounds.nesting

    def __missing__(self, packed: bytes) -> Said:
        said = self.read(packed)
        if len(packed) <= _REMEMBERED:
            if len(self) >= self._cache:
                self.clear()
            self[packed] = said
        return said

    def read(self, packed: bytes) -> Said:
        """Raises Unusable."""
        raise NotImplementedError

    def key_value(self, packed: bytes) -> tuple[str, Any]:
        """Raises Unusable."""
        raise NotImplementedError

    def _said(self, key: str, value: Any) -> Said:
        """Raises Unusable."""
        if value.__class__ is list or value.__class__ is dict:
            check_depth(value, self._nesting)
        hit = self._lookup.hit(key)
        if hit is None:
            return Said(hashed(key, value), None, REPEATS, None)
        return Said(hashed(key, value), hit, hit.way, value)


class ProtoAttributes(Attributes):
    """Bytes are a protobuf KeyValue."""

    def __init__(self, lookup: Lookup, bounds: Bounds) -> None:
        super().__init__(lookup, bounds)
        self._hits: dict[bytes, Hit | None] = {}

    def read(self, packed: bytes) -> Said:
        """One that nobody reads is not parsed, as long as it is plain ASCII: then no string in it can be
        broken."""
        plain = canonical(packed)
        size = plain[1] if len(plain) > 1 and plain[0] == _KEY_FIELD else _LONG
        if size < _LONG:
            key = plain[2 : 2 + size]
            hit = self._hits[key] if key in self._hits else self._learn(key)
            if hit is None and plain.isascii() and _is_plain(plain, 2 + size):
                return Said(plain, None, REPEATS, None)
        key_text, value = of_key_value(packed)
        return self._said(key_text, value)

    def key_value(self, packed: bytes) -> tuple[str, Any]:
        return of_key_value(packed)

    def _learn(self, key: bytes) -> Hit | None:
        hit = self._lookup.hit(key.decode("utf-8", "replace"))
        if len(self._hits) >= self._cache:
            self._hits.clear()
        self._hits[key] = hit
        return hit


def _is_plain(packed: bytes, at: int) -> bool:
    """Whether a KeyValue with its value's field at ``at`` is spelled as `anyvalue.hashed` would, and no string
    in it can be broken: known without parsing it. Where it looks odd it is left to the parser."""
    try:
        if packed[at] != _VALUE_FIELD or not packed[:at].isascii():
            return False
        size, start = _varint(packed, at + 1)
        if len(packed) != start + size:
            return False
        kind = packed[start]
        if kind == _STRING:
            size, start = _varint(packed, start + 1)
            return len(packed) == start + size and packed[start:].isascii()
        if kind == _INT:
            return packed[-1] < _LONG and (packed[-1] > 0 or size == _ONE_BYTE)
        return kind == _BOOL and size == _ONE_BYTE and packed[-1] <= 1
    except IndexError:
        return False


def _varint(packed: bytes, at: int) -> tuple[int, int]:
    """A length of at most three bytes, and where it ends. Raises IndexError."""
    size = packed[at]
    if size < _LONG:
        return size, at + 1
    second = packed[at + 1]
    if second < _LONG:
        return size & 127 | second << 7, at + 2
    return size & 127 | (second & 127) << 7 | packed[at + 2] << 14, at + 3
