"""A rising run of sub-threshold scores along a conversation, then compliance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from monitor.model import MEMBER, Span
from monitor.policy.rules import Finding, Policy, Rise
from monitor.policy.scene import LISTED_SPANS, Scene, lowered

# (span, its score by the scorer in question; None: not judged by it)
_Turn = tuple[Span, float | None]


class ThresholdTable(Protocol):
    """`monitor.trace.thresholds.Thresholds`."""

    @property
    def lowest(self) -> float: ...
    def value(self, service: str, scorer: str, role: str) -> float: ...


def match_rise(
    policy: Policy, rise: Rise, scene: Scene, thresholds: ThresholdTable
) -> Finding | None:
    """The first run in causal order that the policy's ``rise`` describes.

    A conversation runs within one part of the trace: across a gap its order is not known. Where spans are
    missing (cut) the run may not be one, and the finding is undecidable.
    """
    wanted = {*rise.roles, *rise.then_roles}
    for part in scene.parts:
        turns = [span for span in part.spans if span.kind == MEMBER and span.role in wanted]
        for scorer in sorted({score.scorer for span in turns for score in span.scores}):
            run = _run(_judged(turns, scorer), rise, scorer, thresholds)
            if run:
                undecidable = scene.cut
                return Finding(
                    policy.name,
                    policy.policy_class,
                    lowered(policy.severity) if undecidable else policy.severity,
                    tuple(span.span_id for span in run[-LISTED_SPANS:]),
                    run[-1].span_id,
                    by_flow=False,
                    undecidable=undecidable,
                    why=f"scores of {scorer} rise over {len(run)} spans, each below its threshold, up to "
                    f"span {run[-1].span_id}"
                    + (", with spans missing (cut)" if undecidable else ""),
                )
    return None


def _judged(turns: Iterable[Span], scorer: str) -> list[_Turn]:
    return [
        (span, max((s.value for s in span.scores if s.scorer == scorer), default=None))
        for span in turns
    ]


def _run(turns: Sequence[_Turn], rise: Rise, scorer: str, thresholds: ThresholdTable) -> list[Span]:
    """Spans of the first rising run that ends in compliance, or none."""
    run: list[tuple[Span, float]] = []
    for span, value in turns:
        risen = _risen(run, rise, scorer, thresholds)
        if (
            value is not None
            and span.role in rise.roles
            and value < thresholds.value(span.service, scorer, span.role)
        ):
            if run and value <= run[-1][1]:
                if risen and span.role in rise.then_roles and value >= rise.then_share * run[-1][1]:
                    return [*(turn for turn, _ in run), span]
                run = []
            run.append((span, value))
            if span.role in rise.then_roles and _risen(run, rise, scorer, thresholds):
                return [turn for turn, _ in run]
        elif (
            risen
            and span.role in rise.then_roles
            and (value is None or value >= rise.then_share * run[-1][1])
        ):
            return [*(turn for turn, _ in run), span]
        elif value is not None and span.role in rise.roles:
            run = []  # at its threshold it pages by itself; what follows is another run
    return []


def _risen(
    run: Sequence[tuple[Span, float]], rise: Rise, scorer: str, thresholds: ThresholdTable
) -> bool:
    if len(run) < rise.length:
        return False
    last, top = run[-1]
    return top - run[0][1] >= rise.height and top >= rise.reach * thresholds.value(
        last.service, scorer, last.role
    )
