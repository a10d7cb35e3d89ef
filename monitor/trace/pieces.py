"""The size of what a fragment holds, and a fragment taken apart item by item.

Sizes count encoded items without the fragment round them, so that a fragment cut in two weighs the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from monitor.codec import encode_fold_record
from monitor.model import Fragment


class _RawFragment(msgspec.Struct, frozen=True, array_like=True, tag=1):
    trace_id: str
    spans: tuple[msgspec.Raw, ...] = ()
    scores: tuple[msgspec.Raw, ...] = ()
    faults: tuple[msgspec.Raw, ...] = ()


_DECODER: Final = msgspec.msgpack.Decoder(_RawFragment)


def items_size(raw: bytes, fragment: Fragment) -> int:
    """Encoded bytes of the fragment's items: all of it less the msgpack headers round them."""
    around = 5 + len(fragment.trace_id)  # array of five, tag, three arrays of under 16 items
    if len(fragment.trace_id) >= 32:
        around += 2
    else:
        around += 1
    for items in (fragment.spans, fragment.scores, fragment.faults):
        if len(items) >= 16:
            around += 2 if len(items) < 65536 else 4
    return len(raw) - around


def pieces(raw: bytes, fragment: Fragment) -> Iterator[tuple[bytes, Fragment, int]]:
    """(value, fragment, size) of each item alone, in order: spans, scores, faults."""
    sizes = _DECODER.decode(raw)
    trace_id = fragment.trace_id
    for span, encoded in zip(fragment.spans, sizes.spans, strict=True):
        piece = Fragment(trace_id, (span,))
        yield encode_fold_record(piece), piece, len(bytes(encoded))
    for score, encoded in zip(fragment.scores, sizes.scores, strict=True):
        piece = Fragment(trace_id, (), (score,))
        yield encode_fold_record(piece), piece, len(bytes(encoded))
    for fault, encoded in zip(fragment.faults, sizes.faults, strict=True):
        piece = Fragment(trace_id, (), (), (fault,))
        yield encode_fold_record(piece), piece, len(bytes(encoded))
