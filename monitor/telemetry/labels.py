"""Labels from the outside world: bounded in number and length, whatever agents call themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

OTHER: Final = "other"
_LENGTH: Final = 128  # characters; a legend or an alert shows no more, and a scrape stays small


def clean(value: str) -> str:
    """A label value that every renderer takes: no control characters, no lone surrogates, no length.

    A longer one keeps its beginning and gets a hash of the whole, so that two stay two. The empty
    string becomes ``unknown``: Prometheus takes an empty label for a missing one.
    """
    if value.isascii() and value.isprintable() and 0 < len(value) <= _LENGTH:
        return value
    text = "".join(c if c.isprintable() else " " for c in value.encode("utf-8", "replace").decode())
    text = text.strip() or "unknown"
    if len(text) <= _LENGTH:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{text[: _LENGTH - 9]}~{digest}"


class BoundedLabel:
    """The first ``limit`` values of a label stand for themselves, every later one is ``other``.

    ``folded`` is called once for each value that was folded (each time it comes): the counter that
    says how much a dashboard does not show.
    """

    def __init__(self, limit: int, folded: Callable[[], None]) -> None:
        self._limit = limit
        self._folded = folded
        self._known: dict[str, str] = {}

    def fold(self, value: str) -> str:
        known = self._known.get(value)
        if known is not None:
            return known
        if len(self._known) >= self._limit:
            self._folded()
            return OTHER
        shown = clean(value)
        self._known[value] = shown
        return shown

    def __len__(self) -> int:
        return len(self._known)
