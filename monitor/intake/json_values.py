"""OTLP's JSON for attributes: what protobuf's JSON mapping allows, as the same Python values that protobuf gives.

int64 as strings or numbers, doubles as numbers, strings or `"NaN"`, bytes as base64, `null` for what is not
there. An attribute is read from its own bytes; only one that the typed reader refuses is read again, loosely.
"""

from __future__ import annotations

import binascii
import math
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from monitor.intake import reasons
from monitor.intake.anyvalue import DOUBLE, varint
from monitor.intake.attributes import Attributes, Said
from monitor.intake.bounds import Bounds
from monitor.intake.found import REPEATS, Hit, Lookup
from monitor.intake.loose import DECODER_ERRORS, Unusable, check_depth, read_loosely

_SHORT: Final = 120  # bytes of a string whose lengths, its own and its value's, have one byte
LEVELS: Final = 3  # of JSON a nested list or map: arrayValue, values, the value
_NO_RAW: Final = Raw()


class _Value(msgspec.Struct, rename="camel", gc=False):
    string_value: str | UnsetType = UNSET
    int_value: int | UnsetType = UNSET
    double_value: float | UnsetType = UNSET
    bool_value: bool | UnsetType = UNSET
    array_value: Raw = _NO_RAW
    kvlist_value: Raw = _NO_RAW
    bytes_value: str | UnsetType = UNSET


class _KeyValue(msgspec.Struct, gc=False):
    key: str = ""
    value: _Value | None = None


class JsonAttributes(Attributes):
    """Bytes are a JSON key-value."""

    # Not strict: numbers as strings.
    _decode = staticmethod(msgspec.json.Decoder(_KeyValue, strict=False).decode)

    def __init__(self, lookup: Lookup, bounds: Bounds) -> None:
        super().__init__(lookup, bounds)
        self._keys: dict[str, tuple[bytes, Hit | None]] = {}

    def read(self, packed: bytes) -> Said:
        """What `anyvalue` makes of it, at half the cost for the common attribute: a short text or a number."""
        try:
            pair = self._decode(packed)
        except DECODER_ERRORS:
            return self._said(*self._loosely(packed))
        held = pair.value
        if held is not None:
            key = pair.key
            prefix, hit = self._keys.get(key) or self._learn(key)
            text = held.string_value
            if text is not UNSET:
                encoded = text.encode()
                size = len(encoded)
                if size <= _SHORT:
                    plain = b"%b\x12%c\x0a%c%b" % (prefix, size + 2, size, encoded)
                    return (
                        (plain, None, REPEATS, None) if hit is None else (plain, hit, hit.way, text)
                    )
            number = held.int_value
            if number is not UNSET and 0 <= number < 2**63:
                encoded = varint(number)
                plain = b"%b\x12%c\x18%b" % (prefix, len(encoded) + 1, encoded)
                return (
                    (plain, None, REPEATS, None) if hit is None else (plain, hit, hit.way, number)
                )
            double = held.double_value
            if double is not UNSET and double == double:
                plain = b"%b\x12\x09\x21%b" % (prefix, DOUBLE.pack(double + 0.0))
                return (
                    (plain, None, REPEATS, None) if hit is None else (plain, hit, hit.way, double)
                )
        return self._said(*self._value(pair, packed))

    def _learn(self, key: str) -> tuple[bytes, Hit | None]:
        """How a key is spelled, and where it belongs."""
        encoded = key.encode()
        known = b"\x0a" + varint(len(encoded)) + encoded if key else b"", self._lookup.hit(key)
        if len(key) <= _SHORT:
            if len(self._keys) >= self._cache:
                self._keys.clear()
            self._keys[key] = known
        return known

    def key_value(self, packed: bytes) -> tuple[str, Any]:
        try:
            pair = self._decode(packed)
        except DECODER_ERRORS:
            return self._loosely(packed)
        return self._value(pair, packed)

    def _value(self, pair: _KeyValue, packed: bytes) -> tuple[str, Any]:
        value = pair.value
        if value is None:
            return pair.key, None
        if value.string_value is not UNSET:
            return pair.key, value.string_value
        if value.int_value is not UNSET:
            return pair.key, value.int_value
        if value.double_value is not UNSET:
            return pair.key, value.double_value
        if value.bool_value is not UNSET:
            return pair.key, value.bool_value
        return self._loosely(packed)

    def _loosely(self, packed: bytes) -> tuple[str, Any]:
        # An attribute, its value, and what a list in a list takes.
        loaded = read_loosely(packed, LEVELS * self._nesting + LEVELS)
        key = loaded.get("key")
        if not isinstance(key, str | None):
            raise Unusable(reasons.WRONG_TYPE, "the key of an attribute is no string")
        value = value_of(loaded.get("value"))
        check_depth(value, self._nesting)
        return key or "", value


def value_of(loaded: object) -> Any:
    """An AnyValue in untyped JSON as a Python value; None where it holds nothing. Raises Unusable. Recursion is
    as deep as the value, which its reader has bounded."""
    if loaded is None:
        return None
    if not isinstance(loaded, dict):
        raise _wrong("value", loaded)
    for kind, read in _READERS.items():
        held = loaded.get(kind)
        if held is not None:
            return read(held)
    return None


def _wrong(field: str, held: object) -> Unusable:
    return Unusable(
        reasons.WRONG_TYPE, f"{field} of an attribute is of type {type(held).__name__}, or no such"
    )


def _text(held: object) -> str:
    if not isinstance(held, str):
        raise _wrong("stringValue", held)
    return held


def _bool(held: object) -> bool:
    if not isinstance(held, bool):
        raise _wrong("boolValue", held)
    return held


def whole_number(held: object) -> int | None:
    """An integer of protobuf's JSON mapping: a number or its text; None if it is none."""
    if isinstance(held, bool):
        return None
    if isinstance(held, float):
        return int(held) if math.isfinite(held) and held == int(held) else None
    if isinstance(held, str):
        digits = held.removeprefix("-")
        # 20 digits hold every number of 64 bits.
        return int(held) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None
    return held if isinstance(held, int) else None


def _int(held: object) -> int:
    number = whole_number(held)
    if number is None:
        raise _wrong("intValue", held)
    return number


def _double(held: object) -> float:
    if isinstance(held, bool) or not isinstance(held, int | float | str):
        raise _wrong("doubleValue", held)
    try:
        return float(held)
    except ValueError as error:
        raise _wrong("doubleValue", held) from error
    except OverflowError:  # an integer past every float
        return -math.inf if str(held).startswith("-") else math.inf


def _bytes(held: object) -> bytes:
    if not isinstance(held, str):
        raise _wrong("bytesValue", held)
    try:
        standard = held.replace("-", "+").replace("_", "/").rstrip("=")
        return binascii.a2b_base64(standard + "=" * (-len(standard) % 4), strict_mode=True)
    except (ValueError, UnicodeEncodeError) as error:
        raise Unusable(reasons.WRONG_TYPE, "bytesValue of an attribute is no base64") from error


def _values(held: object) -> list[Any]:
    values = (held.get("values") if isinstance(held, dict) else held) or []
    if not isinstance(held, dict) or not isinstance(values, list):
        raise _wrong("arrayValue", values)
    return [value_of(each) for each in values]


def _pairs(held: object) -> dict[str, Any]:
    values = (held.get("values") if isinstance(held, dict) else held) or []
    if not isinstance(held, dict) or not isinstance(values, list):
        raise _wrong("kvlistValue", values)
    pairs = {}
    for each in values:
        key = each.get("key", "") if isinstance(each, dict) else None
        if not isinstance(key, str):
            raise _wrong("kvlistValue", each)
        pairs[key] = value_of(each.get("value"))
    return pairs


_READERS: Final = {
    "stringValue": _text,
    "boolValue": _bool,
    "intValue": _int,
    "doubleValue": _double,
    "arrayValue": _values,
    "kvlistValue": _pairs,
    "bytesValue": _bytes,
}
