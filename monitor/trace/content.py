"""What came of a life, decoded: its items in order of arrival, and which scores of its spans are in force."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

import msgspec

from monitor.codec import decode_fold_record
from monitor.model import MEMBER, MEMBER_IF_SCORED, Fragment, Score, Span, SpanFault, SpanScore
from monitor.trace.identity import span_content
from monitor.trace.scorers import SCORER_LIMIT

COPIES_LIMIT: Final = 32  # a reused id has two or three; more are made up


class Content:
    """The decoded items of a life in arrival order.

    spans   every copy of every span
    scores  those that came apart from their span, each with the number of spans that were here before it

    Once joined:

    unplaced  of these the ones whose id several different spans bear: nothing says which one is meant
    replaced  scores that a later one by the same scorer version of the same unit has taken the place of
    """

    __slots__ = ("_by_id", "_indexed", "faults", "replaced", "scores", "spans", "unplaced")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.scores: list[tuple[int, SpanScore]] = []
        self.faults: list[SpanFault] = []
        self.unplaced: list[SpanScore] = []
        self.replaced = 0
        self._by_id: dict[str, _Copies] = {}
        self._indexed = 0

    def add(self, fragment: Fragment) -> None:
        self.spans += fragment.spans
        if fragment.scores:
            before = len(self.spans)
            self.scores += [(before, score) for score in fragment.scores]
        self.faults += fragment.faults

    def _index(self) -> None:
        """Take in the spans that have come since the last time."""
        for span in self.spans[self._indexed :]:
            known = self._by_id.get(span.span_id)
            if known is None:
                known = self._by_id[span.span_id] = _Copies(span)
            known.add(span)
        self._indexed = len(self.spans)

    def copies(self, span_id: str) -> Sequence[Span]:
        """Of the span of that id one copy of each service and role that can be scored, in order of arrival; at most
        COPIES_LIMIT, and one of every role in any case."""
        self._index()
        known = self._by_id.get(span_id)
        return () if known is None else known.scorable

    def bears(self, span_id: str) -> bool:
        """Whether any span, of whatever kind, has this id."""
        self._index()
        return span_id in self._by_id

    def ambiguous(self, span_id: str) -> bool:
        """Whether several spans bear this id that are not the same one, delivered again."""
        self._index()
        known = self._by_id.get(span_id)
        return known is not None and known.differ

    def joined(self) -> list[Span]:
        """The spans with the scores in force: the last that a scorer version gave of each unit of a span.

        A span that meant nothing, or doubled another, until it was scored is a member from then on.
        """
        spans = self.spans
        if not self.scores:
            for span in spans:
                if len(span.scores) > 1:
                    break
            else:
                return spans
        apart: dict[str, list[tuple[int, SpanScore]]] = {}
        unplaced: dict[tuple[str, str, str, str], SpanScore] = {}
        for before, late in self.scores:
            if not self.ambiguous(late.span_id):
                apart.setdefault(late.span_id, []).append((before, late))
                continue
            score = late.score
            key = (late.span_id, score.scorer, score.version, score.judged)
            if key not in unplaced or score.value > unplaced[key].score.value:
                unplaced[key] = late
        self.unplaced = list(unplaced.values())
        self.replaced = 0
        joined = []
        for place, span in enumerate(spans):
            # Of copies that were delivered again the first is kept: the scores are joined to that one.
            late_scores = apart.pop(span.span_id, ())
            scored = _in_force(span, place, late_scores)
            if scored is not span:
                self.replaced += len(span.scores) + len(late_scores) - len(scored.scores)
            joined.append(scored)
        return joined

    def highest(self) -> dict[str, tuple[Score, ...]]:
        """span_id -> the highest score of each scorer version, of the spans that were scored apart. A policy
        looks at these beside the scores in force: a later, lower score takes nothing back."""
        apart: dict[str, list[Score]] = {}
        for _, late in self.scores:
            apart.setdefault(late.span_id, []).append(late.score)
        if not apart:
            return {}
        for span in self.spans:
            if span.scores and span.span_id in apart:
                apart[span.span_id] += span.scores
        found: dict[str, tuple[Score, ...]] = {}
        for span_id, scores in apart.items():
            if len(scores) == 1 and self.bears(span_id) and not self.ambiguous(span_id):
                continue  # the only one is in force
            best: dict[tuple[str, str], Score] = {}
            for score in scores:
                known = best.get((score.scorer, score.version))
                if known is None or score.value > known.value:
                    best[score.scorer, score.version] = score
            ranked = sorted(best.values(), key=lambda score: -score.value)
            found[span_id] = tuple(ranked[:SCORER_LIMIT])
        return found

    @classmethod
    def of(cls, fragments: Iterable[bytes]) -> Content:
        """Raises UndecodableRecord; never does for fragments that the fold took in."""
        content = cls()
        for raw in fragments:
            content.add(cast("Fragment", decode_fold_record(raw)))
        return content


class _Copies:
    """Of one span id: what a score of it may be held against, and whether all copies are the same span."""

    __slots__ = ("_content", "differ", "scorable")

    def __init__(self, first: Span) -> None:
        self._content = span_content(first)
        self.differ = False
        self.scorable: list[Span] = []

    def add(self, span: Span) -> None:
        self.differ = self.differ or span_content(span) != self._content
        if span.kind not in MEMBER_IF_SCORED:
            return
        known = {(copy.service, copy.role) for copy in self.scorable}
        if (span.service, span.role) in known:
            return
        if len(known) < COPIES_LIMIT or all(role != span.role for _, role in known):
            self.scorable.append(span)


def _in_force(span: Span, place: int, apart: Sequence[tuple[int, SpanScore]]) -> Span:
    """The span with one score a scorer version and unit of it: the last given. ``apart``: those that came on their own,
    each with the number of spans before it; ``place``: how many came before the span."""
    if not apart and len(span.scores) <= 1:
        return span
    scores = {_key(late.score): late.score for before, late in apart if before <= place}
    own: dict[tuple[str, str, str], Score] = {}
    for score in span.scores:
        # Of several that one scorer version gave at once nothing says which is meant: the highest.
        known = own.get(_key(score))
        if known is None or score.value > known.value:
            own[_key(score)] = score
    scores.update(own)
    scores.update({_key(late.score): late.score for before, late in apart if before > place})
    kind = MEMBER if apart and span.kind in MEMBER_IF_SCORED else span.kind
    return msgspec.structs.replace(span, scores=tuple(scores.values()), kind=kind)


def _key(score: Score) -> tuple[str, str, str]:
    return (score.scorer, score.version, score.judged)
