"""Everything intake is told."""

from __future__ import annotations

from typing import Final

import msgspec

from monitor.intake.bounds import Bounds
from monitor.intake.conventions import Row
from monitor.intake.scores import ScorerScale
from monitor.intake.tags import TagRule

# A shorter key could be tried out; blake2b takes at most 64 bytes.
TOKEN_KEY_BYTES: Final = (16, 64)


class IntakeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Raises ValueError for a token key that is too short or too long.

    ``token_key`` keys content hashes and flow tokens: the same for every worker, else nothing matches.
    ``scorers`` by scorer name. ``conventions`` come before the built-in rows, ``tag_rules`` beside the
    built-in rules; ``tool_tags`` gives a tool its tags by exact name. ``keep``: attribute (or
    ``service.name``) -> accepted values; a span that misses one of them is ignored, and counted.
    """

    token_key: bytes
    bounds: Bounds = Bounds()
    scorers: dict[str, ScorerScale] = {}
    conventions: tuple[Row, ...] = ()
    tag_rules: tuple[TagRule, ...] = ()
    tool_tags: dict[str, tuple[str, ...]] = {}
    keep: dict[str, frozenset[str]] = {}

    def __post_init__(self) -> None:
        low, high = TOKEN_KEY_BYTES
        if not low <= len(self.token_key) <= high:
            raise ValueError(
                f"token key has {len(self.token_key)} bytes, must have {low} to {high}"
            )


def is_accepted(value: object, accepted: frozenset[str]) -> bool:
    """Whether a keep rule takes an attribute's value; what is no text is compared as it is printed."""
    match value:
        case str():
            return value in accepted
        case bool():
            return str(value).lower() in accepted
        case int() | float():
            return str(value) in accepted
        case _:
            return False
