"""The bounds of a message, whatever its encoding."""

from __future__ import annotations

from collections.abc import Sized

from monitor.intake import reasons
from monitor.intake.bounds import Bounds
from monitor.intake.loose import Unusable


def check_size(value: bytes, bounds: Bounds) -> None:
    """Raises Unusable for a message of too many bytes; the client has decompressed it."""
    if len(value) > bounds.message_bytes:
        raise Unusable(
            reasons.TOO_LARGE,
            f"message has {len(value)} bytes, at most {bounds.message_bytes} are read",
        )


def check_count(items: Sized, bounds: Bounds) -> None:
    """Raises Unusable for too many spans or log records."""
    if len(items) > bounds.spans_per_message:
        raise Unusable(
            reasons.TOO_MANY_SPANS,
            f"message has {len(items)} items, at most {bounds.spans_per_message} are read",
        )
