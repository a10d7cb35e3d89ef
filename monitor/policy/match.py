"""Match composition policies against the spans of one trace.

Most traces are done with after one look: no score in them is high enough for any policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from monitor.model import Span
from monitor.policy.causal import TraceView, parts
from monitor.policy.rise import ThresholdTable, match_rise
from monitor.policy.rules import Finding, Policy
from monitor.policy.scene import Fitting, Scene
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

    def match(self, trace: TraceView, *, cut: bool) -> tuple[Finding, ...]:
        """See the function `match`."""
        if trace.status == "rejected":
            return ()
        floor = self._floor
        for span in trace.spans:
            for score in span.scores:
                if score.value >= floor:
                    return self._match(trace, cut=cut)
        return self._match(trace, cut=cut) if floor <= 0.0 else ()

    def _match(self, trace: TraceView, *, cut: bool) -> tuple[Finding, ...]:
        spans = trace.spans
        fitting = Fitting(spans)
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


def match(
    trace: TraceView, policies: Sequence[Policy], thresholds: ThresholdTable, *, cut: bool
) -> tuple[Finding, ...]:
    """Findings in the order of ``policies``, at most one each; none where identity is rejected.

    trace  `monitor.trace.identity.IdentityReport`
    cut    spans of this trace are missing: tags and order alone then prove nothing

    While a trace is open its root, and the user's request with it, may not have come: what is found then and
    marked ``undecidable`` may turn out to be nothing. What is not marked stays true whatever comes.
    """
    return Matcher(policies, thresholds).match(trace, cut=cut)


def strongest_in_any_order(spans: Sequence[Span], policies: Sequence[Policy]) -> Policy | None:
    """The gravest policy whose steps all occur among ``spans``, in whatever order; the first of equals.

    For a trace whose identity is rejected: nothing can be said of order or flow then, and breaking an id
    must never be cheaper than being caught.
    """
    rank = ("critical", "warning", "info").index
    fitting = Fitting(spans)
    here = [policy for policy in policies if policy.steps and _possible(policy, fitting)]
    return min(here, key=lambda policy: rank(policy.severity), default=None)


def _floor(policy: Policy, thresholds: ThresholdTable) -> float:
    """The highest score that the policy needs some span to have."""
    if policy.rise is not None:
        return max(policy.rise.height, policy.rise.reach * thresholds.lowest)
    return max((step.min_score for step in policy.steps), default=2.0)


def _possible(policy: Policy, fitting: Fitting, floor: float = 0.0) -> bool:
    """Whether each step has a span; of a rise, whether its roles have a score as high as ``floor``."""
    rise = policy.rise
    if rise is not None:
        return any(
            score.value >= floor
            for span in fitting.spans
            if span.role in rise.roles
            for score in span.scores
        )
    return all(fitting.of(step) for step in policy.steps)
