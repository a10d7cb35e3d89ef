"""OTLP's JSON envelopes, of traces and of logs: cut into items that stay bytes, or are read in one piece.

Field order is free and unknown fields are no fault. A message that the typed reader refuses is read again,
loosely, so that one broken item costs itself alone: one bad string, a bare NaN (which is no JSON, and common),
an id that is a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from monitor.intake import reasons
from monitor.intake.loose import DECODER_ERRORS, Unusable

_DIGITS: Final = 40  # more than any number of 64 bits has


class Envelope(NamedTuple):
    """Names of a signal's fields, from the outside in."""

    resources: str
    scopes: str
    items: str


TRACES: Final = Envelope("resourceSpans", "scopeSpans", "spans")
LOGS: Final = Envelope("resourceLogs", "scopeLogs", "logRecords")


class _Resource(msgspec.Struct, gc=False):
    attributes: list[Raw] | None = None


_resource: Final = msgspec.json.Decoder(_Resource, strict=False).decode
_object: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_list: Final = msgspec.json.Decoder(list[Raw] | None).decode


def attributes_of(resource: bytes) -> Iterable[bytes]:
    """A resource's attributes as bytes; none where it is broken."""
    try:
        return list(map(bytes, _resource(resource or b"{}").attributes or ()))
    except DECODER_ERRORS:
        return ()


# Resource, scope and bytes of an item.
Sliced = tuple[bytes, bytes, bytes]


class Slicer:
    """Cuts messages of one signal into items, still JSON."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    def slices(self, value: bytes) -> list[Sliced]:
        """Raises Unusable for a message that is no envelope of this signal."""
        names = self._envelope
        try:
            return [
                (bytes(resource.get("resource", b"")), bytes(scope.get("scope", b"")), bytes(item))
                for resource in map(
                    _object, _list(_object(value).get(names.resources, b"null")) or ()
                )
                for scope in map(_object, _list(resource.get(names.scopes, b"null")) or ())
                for item in _list(scope.get(names.items, b"null")) or ()
            ]
        except DECODER_ERRORS:
            return self._loosely(value)

    def _loosely(self, value: bytes) -> list[Sliced]:
        """What is no UTF-8 comes back as it was, in its item; bare NaN and infinities become strings, as
        OTLP writes them."""
        try:
            text = value.decode("utf-8", "surrogateescape")
            loaded = json.loads(text, parse_constant=str, parse_int=_int_or_text)
        except RecursionError as error:
            raise Unusable(reasons.TOO_DEEP, "message is nested too deep") from error
        except json.JSONDecodeError as error:
            raise Unusable(reasons.NOT_JSON, f"{error.msg} at character {error.pos}") from error
        names = self._envelope
        return [
            (_packed(resource.get("resource")), _packed(scope.get("scope")), _packed(item))
            for resource in _objects([loaded], names.resources)
            for scope in _objects([resource], names.scopes)
            for item in _items(scope, names.items)
        ]

    def message_of(self, resource: bytes, scope: bytes, item: bytes) -> bytes:
        """The smallest message that holds an item with its resource."""
        resources, scopes, items = (name.encode() for name in self._envelope)
        return b'{"%b":[{"resource":%b,"%b":[{"scope":%b,"%b":[%b]}]}]}' % (
            resources,
            resource or b"{}",
            scopes,
            scope or b"{}",
            items,
            item,
        )


def _int_or_text(digits: str) -> int | str:
    """Python refuses to read thousands of digits; as text they are refused where they stand."""
    return int(digits) if len(digits) <= _DIGITS else digits


def _objects(holders: Iterable[Any], name: str) -> Iterable[dict[str, Any]]:
    """The objects in the list ``name`` of each holder. Raises Unusable where there is something else."""
    for holder in holders:
        if not isinstance(holder, dict):
            raise Unusable(reasons.WRONG_TYPE, f"expected an object, got {type(holder).__name__}")
        for each in _items(holder, name):
            if not isinstance(each, dict):
                raise Unusable(
                    reasons.WRONG_TYPE, f"{name} holds a {type(each).__name__}, no object"
                )
            yield each


def _items(holder: dict[str, Any], name: str) -> list[Any]:
    items = holder.get(name)
    if not isinstance(items, list | None):
        raise Unusable(reasons.WRONG_TYPE, f"{name} is of type {type(items).__name__}, no list")
    return items or []


def _packed(loaded: object) -> bytes:
    if loaded is None:
        return b""
    text = json.dumps(loaded, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair, escaped: it has no bytes of its own
        return json.dumps(loaded, separators=(",", ":")).encode()
