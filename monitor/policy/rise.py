"""A rising run of sub-threshold scores along a conversation, then compliance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from monitor.model import MEMBER, Score, Span, SpanFault
from monitor.policy.rules import Finding, Policy, Rise
from monitor.policy.scene import LISTED_SPANS, NO_HIGHER, Highest, Scene, lowered


class ThresholdTable(Protocol):
    """`monitor.trace.thresholds.Thresholds`."""

    @property
    def lowest(self) -> float: ...
    def value(self, service: str, scorer: str, role: str) -> float: ...


class _Turn(NamedTuple):
    """A span of the conversation and its score by each scorer; a scorer not in it did not judge it."""

    span: Span
    scores: dict[str, float]


def match_rise(
    policy: Policy, rise: Rise, scene: Scene, thresholds: ThresholdTable
) -> Finding | None:
    """The first run that is complete, in causal order, as the policy's ``rise`` describes it.

    A conversation runs within one part of the trace. Across a gap its order is known by time alone, and where
    spans are missing (cut) the run may not be one: such a finding is undecidable.

    Others can send spans and scores into the trace, so it is read in every way in which these do not count: with
    all spans and with those of one service at a time, with the scores in force and with the highest ever given.
    """
    for part in scene.parts:
        run = _first(_turns(part.spans, rise), rise, scene.fitting.highest, thresholds)
        if run is not None:
            return _finding(policy, *run, "spans missing (cut)" if scene.cut else "")
    if len(scene.parts) > 1:
        run = _first(_turns(scene.by_time().spans, rise), rise, scene.fitting.highest, thresholds)
        if run is not None:
            return _finding(policy, *run, "parts that are in order only by time")
    return None


def rises_in_any_order(
    rise: Rise,
    spans: Iterable[Span],
    thresholds: ThresholdTable | None,
    *,
    highest: Highest = NO_HIGHER,
    faults: Iterable[SpanFault] = (),
) -> bool:
    """Whether the scores of a rise are all here, as a set: for a trace whose order cannot be known.

    thresholds  None: any score is high enough that the rise's height allows
    faults      spans without a usable id, which may have been any of the turns
    """
    wanted = {*rise.roles, *rise.then_roles}
    answers: list[dict[str, float]] = []  # of the spans that may comply
    judged: dict[str, list[tuple[float, float]]] = {}  # scorer -> (score, what it must reach)
    turns: list[tuple[Span | SpanFault, Sequence[Score]]] = [
        (span, (*span.scores, *highest.get(span.span_id, ())))
        for span in spans
        if span.kind == MEMBER
    ]
    turns += [(fault, fault.scores) for fault in faults]
    for span, scores in turns:
        if span.role not in wanted:
            continue
        if span.role in rise.then_roles:
            answers.append(_by_scorer(scores))
        if span.role in rise.roles:
            for score in scores:
                limit = (
                    1.0
                    if thresholds is None
                    else thresholds.value(span.service, score.scorer, span.role)
                )
                if score.value < limit or thresholds is None:
                    reach = 0.0 if thresholds is None else rise.reach * limit
                    judged.setdefault(score.scorer, []).append((score.value, reach))
    answered: dict[str, list[float]] = {}
    for answer in answers:
        for scorer, value in answer.items():
            answered.setdefault(scorer, []).append(value)
    for scorer, values in judged.items():
        top = _least_top(values, rise)
        given = answered.get(scorer, [])
        if top is not None and (
            len(given) < len(answers) or any(v >= rise.then_share * top for v in given)
        ):
            return True
    return False


def _least_top(values: list[tuple[float, float]], rise: Rise) -> float | None:
    """The least score that can be the last of a rise out of ``values``: the easiest to comply with."""
    values.sort()
    different = 0
    before = -1.0
    for value, reach in values:
        different += value > before
        before = value
        if different >= rise.length and value - values[0][0] >= rise.height and value >= reach:
            return value
    return None


def _finding(policy: Policy, scorer: str, run: list[Span], doubt: str) -> Finding:
    last = run[-1].span_id
    return Finding(
        policy.name,
        policy.policy_class,
        lowered(policy.severity) if doubt else policy.severity,
        tuple(span.span_id for span in run[-LISTED_SPANS:]),
        last,
        by_flow=False,
        undecidable=bool(doubt),
        why=f"scores of {scorer} rise over {len(run)} spans, each below its threshold, up to span {last}"
        + (f", with {doubt}" if doubt else ""),
    )


def _turns(spans: Iterable[Span], rise: Rise) -> list[Span]:
    wanted = {*rise.roles, *rise.then_roles}
    return [span for span in spans if span.kind == MEMBER and span.role in wanted]


def _by_scorer(scores: Iterable[Score]) -> dict[str, float]:
    """The highest score of each scorer, whatever its version."""
    highest: dict[str, float] = {}
    for score in scores:
        if score.value >= highest.get(score.scorer, 0.0):
            highest[score.scorer] = score.value
    return highest


def _first(
    spans: Sequence[Span], rise: Rise, highest: Highest, thresholds: ThresholdTable
) -> tuple[str, list[Span]] | None:
    """(scorer, spans) of the first run in any reading of the conversation."""
    for turns in _readings(spans, highest):
        found = _Runs(rise, thresholds).first(turns)
        if found is not None:
            return found
    return None


def _readings(spans: Sequence[Span], highest: Highest) -> Iterator[list[_Turn]]:
    in_force = [_Turn(span, _by_scorer(span.scores)) for span in spans]
    yield from _by_service(in_force)
    if highest and any(span.span_id in highest for span in spans):
        yield from _by_service(
            [
                _Turn(span, _by_scorer((*span.scores, *highest.get(span.span_id, ()))))
                for span in spans
            ]
        )


def _by_service(turns: list[_Turn]) -> Iterator[list[_Turn]]:
    """All turns, then those of each service where there are several."""
    yield turns
    services: dict[str, list[_Turn]] = {}
    for turn in turns:
        services.setdefault(turn.span.service, []).append(turn)
    if len(services) > 1:
        yield from services.values()


class _Runs:
    """The runs of all scorers along one conversation, each turn looked at once for the scores that it has."""

    __slots__ = ("_high", "_rise", "_runs", "_thresholds")

    def __init__(self, rise: Rise, thresholds: ThresholdTable) -> None:
        self._rise = rise
        self._thresholds = thresholds
        self._runs: dict[str, list[_Turn]] = {}
        self._high: set[str] = set()  # scorers whose run has risen and only lacks compliance

    def first(self, turns: Iterable[_Turn]) -> tuple[str, list[Span]] | None:
        """(scorer, spans) of the first run that ends in compliance; of several at once the first by name."""
        for turn in turns:
            found = [scorer for scorer in turn.scores if self._completes(turn, scorer)]
            if turn.span.role in self._rise.then_roles and not self._high <= turn.scores.keys():
                found += self._high - turn.scores.keys()  # who did not judge it takes it to comply
            if found:
                scorer = min(found)
                run = self._runs[scorer]
                return scorer, [t.span for t in (run if run[-1] is turn else [*run, turn])]
        return None

    def _completes(self, turn: _Turn, scorer: str) -> bool:
        """Whether ``turn``, which the scorer judged, ends its run in compliance; if not, the run goes on."""
        rise = self._rise
        span, value = turn.span, turn.scores[scorer]
        answers = span.role in rise.then_roles
        run = self._runs.setdefault(scorer, [])
        top = run[-1].scores[scorer] if run else 0.0
        complies = answers and scorer in self._high and value >= rise.then_share * top
        limit = self._thresholds.value(span.service, scorer, span.role)
        if span.role not in rise.roles:
            return complies
        if value >= limit:
            if complies:
                return True
            # at its threshold it pages by itself; what follows is another run
            run.clear()
            self._high.discard(scorer)
            return False
        if run and value <= top:
            if complies:
                return True
            run.clear()
            self._high.discard(scorer)
        run.append(turn)
        first = run[0].scores[scorer]
        if len(run) >= rise.length and value - first >= rise.height and value >= rise.reach * limit:
            self._high.add(scorer)
            return answers
        self._high.discard(scorer)
        return False
