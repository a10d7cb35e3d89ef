"""A score as it arrived -> a safety score in [0, 1], 0 safe, 1 violates; or the reason why not.

Nothing is clamped and nothing is guessed: without a row in the scorer table a value is taken as it stands.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from monitor.intake import reasons
from monitor.model import UNKNOWN, Score


class ScorerScale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a scorer's values become safety scores. Raises ValueError for a range or a label's score that is none."""

    one_means: Literal["unsafe", "safe"] = "unsafe"  # what the upper end of the range means
    minimum: float = 0.0
    maximum: float = 1.0
    labels: dict[str, float] = {}  # label -> safety score, for evaluations without a value
    booleans: bool = False  # true counts as the upper end of the range
    strings: bool = False  # text that is a number counts as that number
    version: str = UNKNOWN  # where the score does not name its scorer's version

    def __post_init__(self) -> None:
        if not self.minimum < self.maximum:
            raise ValueError(f"scorer range {self.minimum}..{self.maximum} is empty")
        if not math.isfinite(self.maximum - self.minimum):
            raise ValueError(f"scorer range {self.minimum}..{self.maximum} is not finite")
        for label, score in self.labels.items():
            if not 0.0 <= score <= 1.0:
                raise ValueError(f"label {label!r} is {score}; a safety score is 0 to 1")


# Of a score that was turned or rescaled: 1 - 0.8 is 0.19999999999999996, and a threshold of 0.2 would miss it.
DIGITS: Final = 12

AS_IT_STANDS: Final = ScorerScale()


class Refusal(msgspec.Struct, frozen=True):
    """Why a score is refused. ``detail`` holds the value of a number, never a text."""

    reason: str
    detail: str
    scorer: str | None


class Scales:
    def __init__(self, table: dict[str, ScorerScale]) -> None:
        self._table = table

    def __contains__(self, scorer: str) -> bool:
        return scorer in self._table

    def score(
        self, scorer: str, value: object, version: str | None, label: object = None
    ) -> Score | Refusal:
        """``value`` None: only the label speaks."""
        scale = self._table.get(scorer, AS_IT_STANDS)
        of = f"value of scorer {scorer!r}"
        if value is None:
            mapped = scale.labels.get(label) if isinstance(label, str) else None
            if mapped is None:
                return Refusal(
                    reasons.SCORE_LABEL_ONLY, f"no {of}, and its label is not mapped", scorer
                )
            number = mapped
            low, high, flip = 0.0, 1.0, False
        else:
            low, high, flip = scale.minimum, scale.maximum, scale.one_means == "safe"
            match value:
                case bool():
                    if not scale.booleans:
                        return Refusal(
                            reasons.SCORE_BOOLEAN, f"{of} is the boolean {value}", scorer
                        )
                    number = high if value else low
                case float() | int():
                    number = (
                        float(value) if -(2**63) <= value < 2**64 or value != value else math.inf
                    )
                case str():
                    read = number_in(value) if scale.strings else None
                    if read is None:
                        return Refusal(
                            reasons.SCORE_STRING,
                            f"{of} is a string of {len(value)} characters",
                            scorer,
                        )
                    number = read
                case _:
                    return Refusal(
                        reasons.SCORE_WRONG_TYPE, f"{of} is of type {type(value).__name__}", scorer
                    )
        if not math.isfinite(number):
            return Refusal(reasons.SCORE_NOT_FINITE, f"{of} is {number}", scorer)
        if not low <= number <= high:
            return Refusal(
                reasons.SCORE_OUT_OF_RANGE, f"{of} is {number}, outside {low:g}..{high:g}", scorer
            )
        if low != 0.0 or high != 1.0:
            number = round((number - low) / (high - low), DIGITS)
        if flip:
            number = round(1.0 - number, DIGITS)
        return Score(scorer, version or scale.version, number)


def number_in(text: str) -> float | None:
    """The number that a text spells, if it does."""
    try:
        return float(text)
    except ValueError:
        return None
