"""Attribute values: OTLP's AnyValue as a Python value, and back as the one spelling that is hashed.

A span is the same whether it came as protobuf or as JSON, and whoever wrote it. So what is hashed of an
attribute is protobuf in one spelling: key before value, in nested lists too, each value in the smallest form,
one NaN, and no negative zero (JSON readers lose its sign).
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from monitor.intake import reasons, wire
from monitor.intake.loose import Unusable

DOUBLE: Final = struct.Struct("<d")
_NAN: Final = DOUBLE.pack(math.nan)
_VARINTS: Final = tuple(bytes((n,)) for n in range(128))
_INT64: Final = range(-(2**63), 2**63)


def of_key_value(packed: bytes) -> tuple[str, Any]:
    """A protobuf KeyValue as Python values; None where it holds nothing. Raises Unusable."""
    try:
        pair = wire.KeyValue.FromString(packed)
    except DecodeError as error:
        raise Unusable(reasons.NOT_PROTOBUF, "attribute is no OTLP key-value protobuf") from error
    try:
        return pair.key.decode(), _python(AnyValue.FromString(pair.value))
    except (DecodeError, UnicodeDecodeError) as error:
        # The runtime gives up at 100 nested messages, 49 arrays; it says so in words only.
        if "MaxDepth" in str(error):
            raise Unusable(reasons.TOO_DEEP, "an attribute is nested too deep") from error
        raise Unusable(reasons.NOT_UTF8, "an attribute holds a string that is not UTF-8") from error


def _python(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [_python(each) for each in value.array_value.values]
    if which == "kvlist_value":
        return {each.key: _python(each.value) for each in value.kvlist_value.values}
    return getattr(value, which)


def hashed(key: str, value: Any) -> bytes:
    """The one spelling of an attribute. Raises Unusable for an integer past 64 bits, ValueError for text that
    has no UTF-8. Recursion is as deep as the value, which its reader has bounded."""
    return (_field(b"\x0a", key.encode()) if key else b"") + _field(b"\x12", _spelled(value))


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content


def _spelled(value: Any) -> bytes:
    match value:
        case str():
            return _field(b"\x0a", value.encode())
        case bool():
            return b"\x10\x01" if value else b"\x10\x00"
        case int():
            if value not in _INT64:
                raise Unusable(reasons.WRONG_TYPE, "an integer has more than 64 bits")
            return b"\x18" + varint(value & (2**64 - 1))
        case float():
            # + 0.0: minus zero becomes zero.
            return b"\x21" + (_NAN if value != value else DOUBLE.pack(value + 0.0))
        case list():
            return _field(b"\x2a", b"".join([_field(b"\x0a", _spelled(each)) for each in value]))
        case dict():
            pairs = [_field(b"\x0a", hashed(key, each)) for key, each in value.items()]
            return _field(b"\x32", b"".join(pairs))
        case bytes():
            return _field(b"\x3a", value)
        case _:
            return b""


def varint(number: int) -> bytes:
    """A number of at most 64 bits, not negative, as protobuf writes it."""
    if number < 128:
        return _VARINTS[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
