"""Derive a record again from the log, and say where it differs: what `monitor explain` rests on.

Trace-local: the fragments of one life, its settings, and its verdicts, which say up to which fragment it had come at
each revision and which gates were in force. Dates are the log's, of records that are not read here: they are not
compared. Spans that came past a limit are counted in the verdict, but the life did not keep them; pages that they
alone opened cannot be derived again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import msgspec

from monitor.codec import canonical_json, decode_fold_record
from monitor.model import Fragment, Incident, Span, Verdict
from monitor.trace.conclude import conclude
from monitor.trace.judge import PAST_LIMIT, Judgement, judge_life
from monitor.trace.life import Life
from monitor.trace.output import Outbox
from monitor.trace.paging import Pager
from monitor.trace.pieces import items_weight, pieces
from monitor.trace.records import LISTED_SPANS
from monitor.trace.residue import keep_past, residue_of
from monitor.trace.rules import Rules

Explained = Verdict | Incident

# Of the log's time, or of how often something was said before, which other records of the partition decide.
_NOT_COMPARED: Final = frozenset({"digest", "opened_at_ms", "closed_at_ms"})


class Difference(msgspec.Struct, frozen=True):
    """``path``: of the field, e.g. ``evidence.2.name``. None: the field is not there."""

    path: str
    recorded: Any
    derived: Any


class LoggedFragment(msgspec.Struct, frozen=True):
    offset: int
    raw: bytes


class Relived:
    """A life as the log shows it, as far as it was followed.

    records  what it published, in order
    """

    def __init__(self, life: Life, partition: int) -> None:
        self.life = life
        self.partition = partition
        self.records: list[Explained] = []
        self._gates: dict[str, str] = {}
        self._late: deque[tuple[int, bytes, Fragment]] = deque()

    @property
    def judged(self) -> Judgement:
        """The life judged whole, as far as it was followed."""
        return judge_life(self.life, _AnyService(self._gates))

    def take(self, fragments: Iterable[LoggedFragment]) -> None:
        """Keep the fragments and look at their scores. A life that is full closes within a fragment; what is left
        of that one comes late."""
        for logged in fragments:
            fragment = cast("Fragment", decode_fold_record(logged.raw))
            room = self.life.rules.max_spans - self.life.count
            if self._late or len(fragment.spans) + len(fragment.faults) >= room:
                for raw, piece, _ in pieces(logged.raw, fragment):
                    self._late.append((logged.offset, raw, piece))
                self._take_late()
            else:
                self._keep(logged.offset, logged.raw, fragment)

    def _take_late(self) -> None:
        limit = self.life.rules.max_spans
        while self._late and not (self.life.open and self.life.count >= limit):
            offset, raw, piece = self._late.popleft()
            if piece.scores or self.life.count < limit:
                self._keep(offset, raw, piece)
            else:
                self._look(offset, piece, kept=False)
                for span in piece.spans:
                    keep_past(self.life, span)

    def _keep(self, offset: int, raw: bytes, fragment: Fragment) -> None:
        self.life.keep(offset, raw, fragment, items_weight(raw, fragment))
        self._look(offset, fragment, kept=True)

    def _look(self, offset: int, fragment: Fragment, *, kept: bool) -> None:
        out = Outbox(self.partition)
        Pager(out, self.life, offset, 0).look(fragment, kept=kept)
        self.records += [r for r in out.records if isinstance(r, Incident)]

    def conclude(self, moment: _Moment) -> None:
        """Judge the life as at this moment."""
        life = self.life
        closing = life.open
        life.number = 0
        self._gates = dict(moment.gate)
        verdict = moment.verdict
        if verdict is not None:
            life.closed_by = verdict.closed_by
            life.closed_at_ms = verdict.closed_at_ms
            life.cut = verdict.cut
            life.unkept = sum(f.count for f in verdict.forensics.faults if f.kind == PAST_LIMIT)
        done = conclude(self.partition, life, _AnyService(self._gates), 0, closing=closing)
        life.pages = done.pages
        life.content = None
        life.revision += done.published
        self.records += done.records
        self._take_late()


class _AnyService(dict[tuple[str, str], str]):
    """Gates by scorer: a record names those of its own service, whichever that is."""

    def __init__(self, gates: dict[str, str]) -> None:
        super().__init__()
        self._by_scorer = gates

    def get(self, key: tuple[str, str], default: Any = None) -> Any:
        return self._by_scorer.get(key[1], default)


class _Moment(msgspec.Struct):
    """At which the life was judged whole. ``verdict`` None: it had none to publish."""

    listed: tuple[int, ...]
    gate: dict[str, str]
    verdict: Verdict | None = None

    def order(self) -> tuple[int, int]:
        """A life's fragments only grow, and its revisions count."""
        return len(self.listed), 0 if self.verdict is None else self.verdict.revision

    def holds(self, offset: int) -> bool:
        """Whether the life had kept this fragment then."""
        if len(self.listed) < LISTED_SPANS:
            return offset in self.listed
        last = max(self.listed) if self.verdict is None else self.verdict.provenance.causing_offset
        return offset <= last


def _moments(records: Iterable[Explained]) -> list[_Moment]:
    """One a verdict, and one where incidents alone were published."""
    judged = [r for r in records if isinstance(r, Verdict) or r.provenance.fragment_digests]
    verdicts = {record.revision: record for record in judged if isinstance(record, Verdict)}
    moments = [
        _Moment(v.provenance.fragment_offsets, v.provenance.gate, v) for v in verdicts.values()
    ]
    told = {moment.listed for moment in moments}
    for record in judged:
        listed = record.provenance.fragment_offsets
        if listed not in told:
            told.add(listed)
            moments.append(_Moment(listed, record.provenance.gate))
    return sorted(moments, key=_Moment.order)


def relive(
    fragments: Sequence[LoggedFragment],
    records: Sequence[Explained],
    rules: Rules,
    residue: Sequence[Span] = (),
) -> Relived:
    """Follow a life as far as the log and its records go.

    fragments  of its trace, in order of the log
    records    at least one: all that is known to have been published of this life
    rules      in force at the life's birth
    residue    what the life took over of the cut one that it continues
    """
    first = records[0]
    assert first.trace_id is not None, first
    birth, partition = first.provenance.life, first.provenance.partition
    life = Life(first.trace_id, birth, 0, rules, 0)
    life.residue = tuple(residue)
    for record in records:
        if isinstance(record, Verdict) and record.continues is not None:
            life.continues = record.continues
            life.cut = True
    relived = Relived(life, partition)
    left = [fragment for fragment in fragments if fragment.offset >= birth]
    for moment in _moments(records):
        relived.take(f for f in left if moment.holds(f.offset))
        left = [f for f in left if not moment.holds(f.offset)]
        relived.conclude(moment)
    relived.take(left)
    return relived


def residue_left(relived: Relived) -> tuple[Span, ...]:
    """What a cut life that was followed to its end left for the one that continues it."""
    return residue_of(relived.life, 0).spans


def derived_again(record: Explained, relived: Relived) -> Explained | None:
    """The record as the log gives it: the same incident at the same revision, else its last; None: it gives none."""
    if isinstance(record, Verdict):
        found: list[Explained] = [
            r for r in relived.records if isinstance(r, Verdict) and r.revision == record.revision
        ]
    else:
        mine = [
            r
            for r in relived.records
            if isinstance(r, Incident) and r.incident_id == record.incident_id
        ]
        found = [r for r in mine if r.revision == record.revision] or list(mine)
    return found[-1] if found else None


def differences(record: Explained, derived: Explained) -> list[Difference]:
    """Field by field, in the order of the record."""
    return list(_differences("", msgspec.to_builtins(record), msgspec.to_builtins(derived)))


def _differences(path: str, recorded: Any, derived: Any) -> Iterable[Difference]:
    if isinstance(recorded, dict) and isinstance(derived, dict):
        for key in recorded | derived:
            if key not in _NOT_COMPARED:
                yield from _differences(f"{path}{key}.", recorded.get(key), derived.get(key))
    elif isinstance(recorded, list | tuple) and isinstance(derived, list | tuple):
        for place in range(max(len(recorded), len(derived))):
            one = recorded[place] if place < len(recorded) else None
            other = derived[place] if place < len(derived) else None
            yield from _differences(f"{path}{place}.", one, other)
    elif recorded != derived:
        yield Difference(path.removesuffix("."), recorded, derived)


def changed_fragments(record: Explained, derived: Explained) -> list[int]:
    """Offsets of fragments that are not as they were when the incident was judged whole."""
    then, now = record.provenance, derived.provenance
    digests = dict(zip(now.fragment_offsets, now.fragment_digests, strict=False))
    listed = zip(then.fragment_offsets, then.fragment_digests, strict=False)
    return [offset for offset, digest in listed if digests.get(offset) != digest]


def seal_holds(incident: Incident) -> bool:
    """Whether the incident's digest is that of what it says."""
    bare = canonical_json(msgspec.structs.replace(incident, digest=""))
    return hashlib.sha256(bare).hexdigest() == incident.digest
