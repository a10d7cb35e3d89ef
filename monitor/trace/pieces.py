"""What the items of a fragment weigh in memory, and a fragment taken apart item by item.

A weight counts the encoded items without the fragment round them, so that a fragment cut in two weighs the same,
and what an item costs beside its bytes: many small spans must not take more than the budget says.
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


# Of an item alone in its fragment: the fragment's header, bytes object, tuple and offset, two ids in the shape
# of an open tree. Measured 470 to 720 bytes above the encoded item (`python -m benchmarks.fold`, memory).
ITEM_BYTES: Final = 500

_DECODER: Final = msgspec.msgpack.Decoder(_RawFragment)


def items_weight(raw: bytes, fragment: Fragment) -> int:
    """Bytes of memory: the fragment less the msgpack headers round its items, and ITEM_BYTES an item."""
    around = 5 + len(fragment.trace_id)  # array of five, tag, three arrays of under 16 items
    if len(fragment.trace_id) >= 32:
        around += 2
    else:
        around += 1
    count = 0
    for items in (fragment.spans, fragment.scores, fragment.faults):
        if items:
            count += len(items)
            if len(items) >= 16:
                around += 2 if len(items) < 65536 else 4
    return len(raw) - around + ITEM_BYTES * count


def encoded_items(raw: bytes) -> Iterator[bytes]:
    """Encoded bytes of each item, in the order of `pieces`: the same however a fragment is cut."""
    fragment = _DECODER.decode(raw)
    for items in (fragment.spans, fragment.scores, fragment.faults):
        for item in items:
            yield bytes(item)


def pieces(raw: bytes, fragment: Fragment) -> Iterator[tuple[bytes, Fragment, int]]:
    """(value, fragment, weight) of each item alone, in order: spans, scores, faults."""
    sizes = _DECODER.decode(raw)
    trace_id = fragment.trace_id
    for span, encoded in zip(fragment.spans, sizes.spans, strict=True):
        piece = Fragment(trace_id, (span,))
        yield encode_fold_record(piece), piece, len(bytes(encoded)) + ITEM_BYTES
    for score, encoded in zip(fragment.scores, sizes.scores, strict=True):
        piece = Fragment(trace_id, (), (score,))
        yield encode_fold_record(piece), piece, len(bytes(encoded)) + ITEM_BYTES
    for fault, encoded in zip(fragment.faults, sizes.faults, strict=True):
        piece = Fragment(trace_id, (), (), (fault,))
        yield encode_fold_record(piece), piece, len(bytes(encoded)) + ITEM_BYTES
