"""What the attributes of one span say, by field of the conventions table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from monitor.intake.conventions import MANY, NO_ANSWER, Field, Row, Unit

_REMEMBERED: Final = (
    256  # characters of an attribute name that is worth remembering: a hostile one is longer
)
NO_RANK: Final = 1_000_000  # rank of a field that no attribute gave


class Place(NamedTuple):
    field: Field
    rank: int
    units: dict[str, Unit]


# How an attribute bears on the meaning of its span (`Hit.way`).
REPEATS: Final = 0  # its few values come again and again: their meaning is remembered
PER_SPAN: Final = 1  # an id: copied into the meaning
SCORES: Final = 2  # of a score and its target only their presence is part of the meaning
ITS_OWN: Final = 3  # content: the meaning is read anew for each span

_WAYS: Final[dict[Field, int]] = {
    **dict.fromkeys(
        (
            "role", "unit", "sign", "own_model", "model", "model_alias", "agent", "entity",
            "tool_name", "tool_type", "tags", "genai", "finish",
        ),
        REPEATS,
    ),
    **dict.fromkeys(("tool_call_id", "session"), PER_SPAN),
    **dict.fromkeys(
        (
            "score", "score_label", "annotation", "wider_score", "risk_name", "risk_value",
            "evaluation_name", "evaluation_value", "evaluation_label", "evaluation_version",
            "judged", "judged_part", "target_trace", "target_span", "target_role",
        ),
        SCORES,
    ),
}  # fmt: skip


class Hit(NamedTuple):
    """Where an attribute belongs; ``label`` is what ``*`` stands for, else the attribute's name."""

    places: tuple[Place, ...]
    label: str
    way: int


def _hit(places: tuple[Place, ...], label: str) -> Hit:
    return Hit(places, label, max(_WAYS.get(place.field, ITS_OWN) for place in places))


class Found:
    __slots__ = ("_sign", "_sign_rank", "_unit", "_unit_rank", "best", "many", "raw_unit")

    def __init__(self) -> None:
        self.best: dict[Field, tuple[int, Any]] = {}
        self.many: dict[Field, list[tuple[str, Any]]] = {}
        self.raw_unit: str | None = None  # what the span says it is and no row maps
        self._unit: Unit | None = None
        self._unit_rank = NO_RANK
        self._sign: Unit | None = None
        self._sign_rank = NO_RANK

    @property
    def unit(self) -> Unit | None:
        """What the span says it is; of a span that says nothing, what its attributes give away."""
        return self._unit or (self._sign if self.raw_unit is None else None)

    @classmethod
    def of(cls, said: Iterable[tuple[Hit, Any]]) -> Found:
        found = cls()
        for hit, value in said:
            found.add(value, hit)
        return found

    def add(self, value: Any, hit: Hit) -> None:
        for field, rank, units in hit.places:
            if field == "unit":
                self._add_unit(value, rank, units)
            elif field == "sign":
                if rank < self._sign_rank:
                    sign = units.get("*") or units.get(_word(value))
                    if sign is not None:
                        self._sign, self._sign_rank = sign, rank
            elif field in MANY:
                self.many.setdefault(field, []).append((hit.label, value))
            else:
                best = self.best.get(field)
                if best is None or rank < best[0]:
                    self.best[field] = (rank, value)

    def _add_unit(self, value: Any, rank: int, units: dict[str, Unit]) -> None:
        raw = _word(value)
        unit = units.get(raw) or units.get("*")
        if unit is None:
            if raw not in NO_ANSWER:
                self.raw_unit = self.raw_unit or raw
        elif rank < self._unit_rank:
            self._unit, self._unit_rank = unit, rank

    def get(self, field: Field) -> Any:
        best = self.best.get(field)
        return None if best is None else best[1]

    def text(self, field: Field) -> str | None:
        """The field as text, without the quotes of a JSON string; None if it is none, or empty."""
        best = self.best.get(field)
        return None if best is None else text_of(best[1])


def text_of(value: Any) -> str | None:
    """A value as text, without the quotes of a JSON string; None if it is none, or empty."""
    return (value.strip('"') or None) if isinstance(value, str) else None


def _word(value: Any) -> str:
    """A value that names a kind, without the quotes of a JSON string."""
    return value.strip('"') if isinstance(value, str) else "*"


class Lookup:
    """The conventions table compiled: attribute name -> Hit, cached, None for what nobody reads."""

    def __init__(self, rows: tuple[Row, ...], cache: int) -> None:
        places: dict[str, list[Place]] = {}
        for rank, row in enumerate(rows):
            places.setdefault(row.attribute, []).append(Place(row.field, rank, row.units))
        self._exact: dict[str, Hit | None] = {
            name: _hit(tuple(at), name)
            for name, at in places.items()
            if "*" not in name and "#" not in name
        }
        # By what stands before the first dot: most names that come share it with no pattern. Those that begin
        # with a wild card are tried for every name; all in the order of the rows.
        patterns = [
            (_head(name), (_pattern(name), tuple(at)))
            for name, at in places.items()
            if name not in self._exact
        ]
        self._any_head = [pattern for head, pattern in patterns if head is None]
        self._by_head = {
            own: [pattern for head, pattern in patterns if head in (own, None)]
            for own, _ in patterns
            if own is not None
        }
        self._cache_size = cache + len(self._exact)
        self.known: dict[str, Hit | None] = dict(self._exact)

    def hit(self, key: str) -> Hit | None:
        known = self.known
        return known[key] if key in known else self.learn(key)

    def learn(self, key: str) -> Hit | None:
        hit = None
        for pattern, places in self._by_head.get(key.partition(".")[0], self._any_head):
            match = pattern.fullmatch(key)
            if match:
                hit = _hit(places, match.group(1) if pattern.groups else key)
                break
        if len(key) > _REMEMBERED:
            return hit
        if len(self.known) >= self._cache_size:
            self.known.clear()  # in place: callers hold it
            self.known.update(self._exact)
        self.known[key] = hit
        return hit


def _head(name: str) -> str | None:
    """What stands before the first dot of a pattern; None where a wild card does."""
    head = name.partition(".")[0]
    return None if "*" in head or "#" in head else head


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(
        re.escape(name).replace(r"\*", "(.+)").replace(r"\#", "[0-9]+").replace("#", "[0-9]+")
    )
