"""Reading JSON that the typed decoder refused, to say why and to save what can be saved."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from monitor.intake import reasons

# What a reader of JSON may raise on hostile text.
DECODER_ERRORS: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class Unusable(Exception):
    """A whole record, or one span of it, is refused."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def check_depth(value: object, limit: int) -> None:
    """Raises Unusable if lists and dicts are nested deeper than ``limit``; without recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        if not level:
            return
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item)
            if isinstance(inner, dict | list)
        ]
    if not level:
        return
    raise Unusable(reasons.TOO_DEEP, f"nested deeper than {limit}")


def read_loosely(value: bytes, nesting: int) -> dict[str, Any]:
    """``value`` as an object; NaN and infinities, which are no JSON, become floats. Raises Unusable."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unusable(reasons.NOT_UTF8, f"byte {error.start} is not UTF-8") from error
    try:
        loaded = json.loads(text)
    except RecursionError as error:
        raise Unusable(reasons.TOO_DEEP, f"nested deeper than {nesting}") from error
    except json.JSONDecodeError as error:
        raise Unusable(reasons.NOT_JSON, f"{error.msg} at character {error.pos}") from error
    except ValueError as error:  # an integer of thousands of digits
        raise Unusable(reasons.WRONG_TYPE, "a number has too many digits") from error
    if not isinstance(loaded, dict):
        raise Unusable(reasons.WRONG_TYPE, f"expected an object, got {type(loaded).__name__}")
    check_depth(loaded, nesting)
    try:
        msgspec.json.encode(loaded)
    except UnicodeEncodeError as error:
        raise Unusable(reasons.NOT_UTF8, "a string holds half a surrogate pair") from error
    return loaded
