"""What attributes say, remembered by their bytes: most of a span's attributes were on a span before it.

Shared by the OTLP encodings; each subclass knows how to read the bytes of one attribute.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from monitor.intake import reasons
from monitor.intake.anyvalue import DOUBLE, hashed, of_key_value
from monitor.intake.bounds import Bounds
from monitor.intake.found import REPEATS, Hit, Lookup
from monitor.intake.loose import Unusable, check_depth
from monitor.intake.wire import canonical

_REMEMBERED: Final = 256  # bytes of an attribute that is worth remembering: longer ones are content
_KEY_FIELD, _VALUE_FIELD = 0x0A, 0x12  # tags of a KeyValue
_STRING, _INT, _DOUBLE = 0x0A, 0x18, 0x21  # tags of an AnyValue
_ONE_BYTE: Final = 2  # bytes of an AnyValue whose integer has one byte
_INT_BYTES: Final = 10  # of one that is not negative
_DOUBLE_BYTES: Final = 9
_SHORT_INT: Final = 3  # of an integer below 16,384: its number has two bytes
_LONG: Final = 128  # numbers below have one byte

Hits = list[tuple[Hit, Any]]


# Of one attribute: what is hashed, where it belongs (None: nobody reads it), the hit's way, value.
Said = tuple[bytes, Hit | None, int, Any]


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
        # A double is a measurement: it does not come again.
        if len(packed) <= _REMEMBERED and said[3].__class__ is not float:
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
            return hashed(key, value), None, REPEATS, None
        return hashed(key, value), hit, hit.way, value


class ProtoAttributes(Attributes):
    """Bytes are a protobuf KeyValue."""

    def __init__(self, lookup: Lookup, bounds: Bounds) -> None:
        super().__init__(lookup, bounds)
        self._hits: dict[bytes, Hit | None] = {}

    def __missing__(self, packed: bytes) -> Said:
        """As `read`, without a call for the common attribute: below 128 bytes every length has one byte."""
        if len(packed) < _LONG:
            try:
                plain = packed
                if packed[0] == _VALUE_FIELD:  # the Collector's order
                    end = packed[1] + 2
                    plain = packed[end:] + packed[:end]
                at = plain[1] + 2
                key = plain[2:at]
                size = plain[at + 1]
                if (
                    plain[0] == _KEY_FIELD
                    and plain[at] == _VALUE_FIELD
                    and len(plain) == at + size + 2
                    and key.isascii()
                    and key
                ):
                    known = self._hits
                    kind = plain[at + 2]
                    value: Any = None
                    if kind == _STRING and plain[at + 3] == size - 2:
                        value = plain[at + 4 :].decode()
                    elif kind == _DOUBLE and size == _DOUBLE_BYTES:
                        value = DOUBLE.unpack_from(plain, at + 3)[0]
                        if value != value or not value:  # NaN, or perhaps negative zero
                            value = None
                    elif kind == _INT and 0 < plain[-1] < _LONG:
                        first = plain[at + 3]
                        if size == _ONE_BYTE:
                            value = first
                        elif size == _SHORT_INT and first >= _LONG:
                            value = first & 127 | plain[-1] << 7
                    if value is not None:
                        hit = known[key] if key in known else self._hit(key)
                        said: Said = (
                            (plain, None, REPEATS, None)
                            if hit is None
                            else (plain, hit, hit.way, value)
                        )
                        if kind != _DOUBLE:  # those do not come again
                            if len(self) >= self._cache:
                                self.clear()
                            self[packed] = said
                        return said
            except (IndexError, UnicodeDecodeError):
                pass
        return super().__missing__(packed)

    def read(self, packed: bytes) -> Said:
        """What `anyvalue` makes of it, at a quarter of the cost for the common attribute: ASCII key, text or
        number, the lengths adding up. What looks odd is left to the parser."""
        plain = canonical(packed)
        try:
            size = plain[1]
            at = 2 + size
            if plain[0] == _KEY_FIELD and 0 < size < _LONG and plain[at] == _VALUE_FIELD:
                size, start = _varint(plain, at + 1)
                kind = plain[start]
                if len(plain) != start + size:
                    pass
                elif kind == _STRING:
                    size, start = _varint(plain, start + 1)
                    if len(plain) == start + size and plain[:at].isascii():
                        return self._text(plain, plain[2:at], start)
                elif kind == _INT and size <= _INT_BYTES and plain[:at].isascii():
                    number, end = _number(plain, start + 1)
                    if end == len(plain) and (plain[-1] or size == _ONE_BYTE):
                        hit = self._hit(plain[2:at])
                        if hit is None:
                            return plain, None, REPEATS, None
                        return plain, hit, hit.way, number
                elif kind == _DOUBLE and size == _DOUBLE_BYTES and plain[:at].isascii():
                    held = DOUBLE.unpack_from(plain, start + 1)[0]
                    if held == held and (held or not plain[-1]):  # no NaN, no negative zero
                        hit = self._hit(plain[2:at])
                        if hit is None:
                            return plain, None, REPEATS, None
                        return plain, hit, hit.way, held
        except IndexError:
            pass
        return self._said(*of_key_value(packed))

    def _text(self, plain: bytes, key: bytes, start: int) -> Said:
        hit = self._hit(key)
        try:
            text = plain[start:].decode()
        except UnicodeDecodeError as error:
            detail = "an attribute holds a string that is not UTF-8"
            raise Unusable(reasons.NOT_UTF8, detail) from error
        if hit is None:
            return plain, None, REPEATS, None
        return plain, hit, hit.way, text

    def key_value(self, packed: bytes) -> tuple[str, Any]:
        return of_key_value(packed)

    def _hit(self, key: bytes) -> Hit | None:
        """Of an ASCII key."""
        known = self._hits
        if key in known:
            return known[key]
        hit = self._lookup.hit(key.decode("ascii"))
        if len(known) >= self._cache:
            known.clear()
        known[key] = hit
        return hit


def _varint(packed: bytes, at: int) -> tuple[int, int]:
    """A length of at most three bytes, and where it ends. Raises IndexError."""
    size = packed[at]
    if size < _LONG:
        return size, at + 1
    second = packed[at + 1]
    if second < _LONG:
        return size & 127 | second << 7, at + 2
    return size & 127 | (second & 127) << 7 | packed[at + 2] << 14, at + 3


def _number(packed: bytes, at: int) -> tuple[int, int]:
    """An int64 in two's complement of at most nine bytes, which has no sign, and where it ends. Raises
    IndexError."""
    number = shift = 0
    while packed[at] >= _LONG:
        number |= (packed[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return number | packed[at] << shift, at + 1
