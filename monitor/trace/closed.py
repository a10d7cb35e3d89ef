"""Entries of the closed log: at each closing and each revision, what a life has become and what came since."""

from __future__ import annotations

from typing import Final

import msgspec

from monitor.errors import UndecodableRecord
from monitor.trace.life import LifeState


class ClosedEntry(msgspec.Struct, frozen=True, array_like=True):
    """One closing or revision, published or not.

    number       of this closing or revision in its partition: the life whose last number is lowest goes first
    revision     of the last verdict published, 0 where none was
    deadline_vt  when the life leaves memory
    fragments    (offset, value) of those that no earlier entry of this life holds
    """

    trace_id: str
    life: int
    number: int
    revision: int
    deadline_vt: int
    state: LifeState
    fragments: tuple[tuple[int, bytes], ...]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(ClosedEntry)


def encode_closed(entry: ClosedEntry) -> bytes:
    return _ENCODER.encode(entry)


def decode_closed(payload: bytes) -> ClosedEntry:
    """Raises UndecodableRecord."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableRecord(
            f"entry of {len(payload)} bytes is no entry of the closed log: {error}"
        ) from error
