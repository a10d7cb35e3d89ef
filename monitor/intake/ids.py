"""Ids: lower-case hex of 16 (trace) or 8 (span) bytes, not all zeros; anything else is named, not repaired."""

from __future__ import annotations

import binascii
import re
from typing import Final, Literal

from monitor.intake import reasons

TRACE_BYTES: Final = 16
SPAN_BYTES: Final = 8
_ZEROS: Final = frozenset({b"\0" * TRACE_BYTES, b"\0" * SPAN_BYTES})
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

IdFault = tuple[Literal["missing_id", "malformed_id"], str]


def hex_id(raw: str, size: int) -> str | None:
    """``raw`` as lower-case hex of ``size`` bytes; None if it is not that, or all zeros.

    >>> hex_id("00F067AA0BA902B7", SPAN_BYTES)
    '00f067aa0ba902b7'
    """
    try:
        octets = bytes.fromhex(raw)
    except ValueError:
        return None
    # fromhex skips white space between octets: the length of the text gives that away.
    if len(octets) != size or len(raw) != 2 * size or octets in _ZEROS:
        return None
    return octets.hex()


def diagnose(field: str, raw: object, size: int) -> IdFault:
    """Why ``raw`` is no id of ``size`` bytes. The detail describes its shape and never repeats it."""
    need = f"{2 * size} hex digits are needed"
    if raw is None or raw == "" or raw == b"":
        return reasons.MISSING_ID, f"{field} is absent or empty; {need}"
    if isinstance(raw, bytes):
        if not any(raw):
            return reasons.MISSING_ID, f"{field} is all zeros; {need}"
        return reasons.MALFORMED_ID, f"{field} has {len(raw)} bytes; {size} are needed"
    if not isinstance(raw, str):
        return reasons.MALFORMED_ID, f"{field} is of type {type(raw).__name__}; {need}"
    if not raw.strip("0"):
        return reasons.MISSING_ID, f"{field} is all zeros; {need}"
    if _UUID.fullmatch(raw):
        return reasons.MALFORMED_ID, f"{field} looks like a UUID with hyphens; {need}"
    if _is_base64(raw, size):
        return reasons.MALFORMED_ID, f"{field} looks like base64 of {size} bytes; {need}"
    if any(c not in "0123456789abcdefABCDEF" for c in raw):
        return reasons.MALFORMED_ID, f"{field} of {len(raw)} characters is not hex; {need}"
    return reasons.MALFORMED_ID, f"{field} has {len(raw)} hex digits; {need}"


def _is_base64(raw: str, size: int) -> bool:
    if len(raw) != 4 * ((size + 2) // 3):
        return False
    try:
        return len(binascii.a2b_base64(raw.encode("ascii"), strict_mode=True)) == size
    except (ValueError, UnicodeEncodeError):
        return False
