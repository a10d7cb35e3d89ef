"""Match composition policies against the spans of one trace.

Most traces are done with after one look: no score in them is high enough for any policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from monitor.model import Span, SpanFault
from monitor.policy.causal import TraceView, parts
from monitor.policy.rise import ThresholdTable, match_rise, rises_in_any_order
from monitor.policy.rules import Finding, Policy, Step
from monitor.policy.scene import NO_HIGHER, Fitting, Highest, Scene
from monitor.policy.steps import match_steps

__all__ = ["Matcher", "match", "strongest_in_any_order"]


class Matcher:
    """Policies ready for use, to be made once for many traces."""

    __slots__ = ("_floor", "_floors", "_policies", "_thresholds")

    def __init__(self, policies: Sequence[Policy], thresholds: ThresholdTable) -> None:
        self._policies = policies
        self._thresholds = thresholds
        self._floors = [_floor(policy, thresholds) for policy in policies]
        self._floor = min(self._floors, default=2.0)

    def match(
        self, trace: TraceView, *, cut: bool, highest: Highest = NO_HIGHER
    ) -> tuple[Finding, ...]:
        """See the function `match`."""
        if trace.status == "rejected":
            return ()
        floor = self._floor
        for span in trace.spans:
            for score in span.scores:
                if score.value >= floor:
                    return self._match(trace, cut=cut, highest=highest)
        if floor <= 0.0 or any(s.value >= floor for more in highest.values() for s in more):
            return self._match(trace, cut=cut, highest=highest)
        return ()

    def _match(self, trace: TraceView, *, cut: bool, highest: Highest) -> tuple[Finding, ...]:
        fitting = Fitting(trace.spans, highest)
        possible = [
            policy
            for policy, floor in zip(self._policies, self._floors, strict=True)
            if _possible(policy, fitting, floor)
        ]
        if not possible:
            return ()
        scene = Scene(parts(trace), fitting, cut=cut)
        found = (
            match_steps(policy, scene)
            if policy.rise is None
            else match_rise(policy, policy.rise, scene, self._thresholds)
            for policy in possible
        )
        return tuple(finding for finding in found if finding is not None)

    def strongest_in_any_order(
        self, spans: Sequence[Span], faults: Sequence[SpanFault] = (), highest: Highest = NO_HIGHER
    ) -> Policy | None:
        """See the function `strongest_in_any_order`."""
        return strongest_in_any_order(
            spans, self._policies, self._thresholds, faults=faults, highest=highest
        )


def match(
    trace: TraceView,
    policies: Sequence[Policy],
    thresholds: ThresholdTable,
    *,
    cut: bool,
    highest: Highest = NO_HIGHER,
) -> tuple[Finding, ...]:
    """Findings in the order of ``policies``, at most one each; none where identity is rejected.

    trace    `monitor.trace.identity.IdentityReport`
    cut      spans of this trace are missing: tags and order alone then prove nothing
    highest  span_id -> the highest score of each scorer version, of the spans whose scores in force are not
             their highest: what a span once scored is not taken back by a lower score

    While a trace is open its root, and the user's request with it, may not have come: what is found then and
    marked ``undecidable`` may turn out to be nothing. What is not marked stays true whatever comes, but for a
    second root: then a value that only one of the roots names is no longer the user's for sure.
    """
    return Matcher(policies, thresholds).match(trace, cut=cut, highest=highest)


def strongest_in_any_order(
    spans: Sequence[Span],
    policies: Sequence[Policy],
    thresholds: ThresholdTable | None = None,
    *,
    faults: Sequence[SpanFault] = (),
    highest: Highest = NO_HIGHER,
) -> Policy | None:
    """The gravest policy whose steps, or the turns of whose rise, all occur in whatever order; the first of
    equals.

    For a trace whose identity is rejected: nothing can be said of order or flow then, and breaking an id
    must never be cheaper than being caught.

    thresholds  what the turns of a rise are measured by; None: by nothing but the rise's height
    faults      spans without a usable id. Their tags are not known, so each may be any one step of its role
    highest     as for `match`
    """
    rank = ("critical", "warning", "info").index
    fitting = Fitting(spans, highest)

    def all_here(policy: Policy) -> bool:
        if policy.rise is not None:
            return rises_in_any_order(
                policy.rise, spans, thresholds, highest=highest, faults=faults
            )
        return bool(policy.steps) and _steps_here(policy.steps, fitting, faults)

    here = [policy for policy in policies if all_here(policy)]
    return min(here, key=lambda policy: rank(policy.severity), default=None)


def _steps_here(steps: Sequence[Step], fitting: Fitting, faults: Sequence[SpanFault]) -> bool:
    """Whether each step has a span, or else a fault that may be it: as many of these as steps without a span."""
    absent = [step for step in steps if not fitting.of(step)]
    if len(absent) > len(faults):
        return False
    may_be = [{n for n, f in enumerate(faults) if step.may_be(f)} for step in absent]
    return all(may_be) and len(set().union(*may_be)) >= len(absent)


def _floor(policy: Policy, thresholds: ThresholdTable) -> float:
    """The highest score that the policy needs some span to have."""
    if policy.rise is not None:
        return max(policy.rise.height, policy.rise.reach * thresholds.lowest)
    return max((step.min_score for step in policy.steps), default=2.0)


def _possible(policy: Policy, fitting: Fitting, floor: float) -> bool:
    """Whether each step has a span; of a rise, whether its roles have a score as high as ``floor``."""
    rise = policy.rise
    if rise is not None:
        higher = fitting.highest
        return any(
            score.value >= floor
            for span in fitting.spans
            if span.role in rise.roles
            for score in (*span.scores, *higher.get(span.span_id, ()))
        )
    return all(fitting.of(step) for step in policy.steps)
