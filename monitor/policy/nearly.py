"""What a policy that did not match a trace lacked: the one requirement without which it would have.

The matcher itself answers: the policy is matched again with one thing that it asks for taken away, one at a time.
What lacks two things is not near. Slow beside matching (some ten matches a trace): for trying policies on files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from monitor.model import Score, Span
from monitor.policy.causal import TraceView, parts
from monitor.policy.flow import NO_TOKENS, Request, arguments_of, results_of
from monitor.policy.match import match
from monitor.policy.rise import ThresholdTable
from monitor.policy.rules import Finding, Policy, Rise, Step
from monitor.policy.scene import NO_HIGHER, Fitting, Highest

Want = Literal[
    "score", "tag", "not_tag", "role", "flow", "order", "length", "height", "reach", "compliance"
]

# What may have a tag: it comes from the name or the attributes of a tool.
_TAGGED_ROLES: Final = ("tool_call", "retrieval", "unknown")
_NEXT_TO_NOTHING: Final = 1e-9  # for a share or height that is not asked for


class Near(msgspec.Struct, frozen=True):
    """One requirement that was not met while all others were.

    step      its step; empty where the policy is a rise
    span_id   the span that would be the step; None where no one span is meant
    needed    of a score or another number: what the policy asks for, and
    has       the most that the trace has of it; None for other requirements
    why       one line for people, without content
    """

    policy: str
    want: Want
    step: str
    span_id: str | None
    why: str
    needed: float | None = None
    has: float | None = None

    @property
    def shortfall(self) -> float:
        """How far a number is from what is needed, as a share of it; 1 for what is there or not."""
        return (
            1.0 if not self.needed or self.has is None else (self.needed - self.has) / self.needed
        )


def nearly(
    trace: TraceView,
    policy: Policy,
    thresholds: ThresholdTable,
    *,
    cut: bool,
    highest: Highest = NO_HIGHER,
) -> tuple[Near, ...]:
    """Each requirement that alone stands between the trace and a match of ``policy``, which does not match it.

    Arguments as for `monitor.policy.match.match`. None where identity is rejected: nothing can be matched then.
    """
    if trace.status == "rejected":
        return ()

    def found(relaxed: Policy) -> Finding | None:
        return next(iter(match(trace, [relaxed], thresholds, cut=cut, highest=highest)), None)

    if policy.rise is not None:
        return tuple(_of_rise(policy, policy.rise, found))
    near = list(_of_steps(trace, policy, found, highest))
    if not near and (order := _of_order(trace, policy, highest)):
        near.append(order)
    return tuple(near)


def _of_steps(
    trace: TraceView, policy: Policy, found: Callable[[Policy], Finding | None], highest: Highest
) -> Iterator[Near]:
    for number, step in enumerate(policy.steps):
        for want, relaxed in _relaxations(step):
            finding = found(_with(policy, number, relaxed))
            if finding is None:
                continue
            if want == "score":
                yield _short_of_score(trace, policy, number, found, highest)
                continue
            spans = [trace.by_id[i] for i in finding.span_ids if i in trace.by_id]
            if want == "flow":
                yield _no_flow(trace, policy, finding, spans)
                continue
            one = _stand_in(policy, step, relaxed, spans, highest)
            yield Near(policy.name, want, step.name, one.span_id, _lacks(want, step, one))


def _stand_in(
    policy: Policy, step: Step, relaxed: Step, spans: Sequence[Span], highest: Highest
) -> Span:
    """The span of a relaxed match that is ``step`` only because it was relaxed; best one that is no other step."""

    def fits(one: Step, span: Span) -> bool:
        return one.fits(span, highest.get(span.span_id, ()))

    here = [span for span in spans if fits(relaxed, span) and not fits(step, span)]
    return next((s for s in here if not any(fits(other, s) for other in policy.steps)), here[-1])


def _relaxations(step: Step) -> Iterator[tuple[Want, Step]]:
    replace = msgspec.structs.replace
    if step.min_score > 0.0:
        yield "score", replace(step, min_score=0.0)
    if step.tags:
        yield "tag", replace(step, tags=(), roles=step.roles or _TAGGED_ROLES)
    if step.not_tags:
        yield "not_tag", replace(step, not_tags=())
    if step.roles:
        yield "role", replace(step, roles=())
    if step.flow_from:
        yield "flow", replace(step, flow_from=(), unexplained=False, plain_words=False)


def _with(policy: Policy, number: int, step: Step) -> Policy:
    steps = (*policy.steps[:number], step, *policy.steps[number + 1 :])
    return msgspec.structs.replace(policy, steps=steps)


def _short_of_score(
    trace: TraceView,
    policy: Policy,
    number: int,
    found: Callable[[Policy], Finding | None],
    highest: Highest,
) -> Near:
    """The highest ``min_score`` of the step at which the policy matches: bisection, since less asks for less."""
    step = policy.steps[number]
    bare = msgspec.structs.replace(step, min_score=0.0)
    best: dict[float, str] = {}
    for span in trace.spans:
        more: Sequence[Score] = highest.get(span.span_id, ())
        top = max((score.value for score in (*span.scores, *more)), default=None)
        if top is not None and bare.fits(span, more):
            best.setdefault(top, span.span_id)
    values = sorted(value for value in best if value < step.min_score)
    low, high = (
        -1,
        len(values),
    )  # matches at values[low] (-1: only without any score), not at values[high]
    while high - low > 1:
        middle = (low + high) // 2
        relaxed = msgspec.structs.replace(step, min_score=values[middle])
        if values[middle] <= 0.0 or found(_with(policy, number, relaxed)) is not None:
            low = middle
        else:
            high = middle
    if low < 0:
        why = f"needs a score of {step.min_score:g}; what would be step {step.name!r} has none"
        return Near(policy.name, "score", step.name, None, why, step.min_score, None)
    span_id = best[values[low]]
    why = f"score {values[low]:g} of span {span_id}, step {step.name!r} needs {step.min_score:g}"
    return Near(policy.name, "score", step.name, span_id, why, step.min_score, values[low])


def _lacks(want: Want, step: Step, span: Span) -> str:
    tags = () if span.detail is None else span.detail.tags
    has = ", ".join(tags) or "no tag"
    match want:
        case "tag":
            return f"span {span.span_id} has {has}; step {step.name!r} needs one of {', '.join(step.tags)}"
        case "not_tag":
            return f"span {span.span_id} has {has}; step {step.name!r} must have none of {', '.join(step.not_tags)}"
        case _:
            return f"span {span.span_id} is a {span.role}; step {step.name!r} needs {', '.join(step.roles)}"


def _no_flow(trace: TraceView, policy: Policy, finding: Finding, spans: Sequence[Span]) -> Near:
    sink = trace.by_id[finding.centre]
    values = arguments_of(sink)
    came = NO_TOKENS.union(*(results_of(span) for span in spans if span is not sink)) & values
    allowed = Request(parts(trace)).settled
    last = policy.steps[-1]
    sources = ", ".join(last.flow_from)
    if came and came <= allowed:
        why = f"every value out of {sources} in the arguments of span {sink.span_id} is in the user's request"
    elif not values:
        why = f"the arguments of span {sink.span_id} hold no value that could be followed"
    else:
        why = f"no value in the arguments of span {sink.span_id} came out of {sources}"
    return Near(policy.name, "flow", last.name, sink.span_id, why)


def _of_order(trace: TraceView, policy: Policy, highest: Highest) -> Near | None:
    """All steps have a span, and these do not follow on each other. Flow, if it is asked for, is missing too then."""
    fitting = Fitting(trace.spans, highest)
    if not all(fitting.of(step) for step in policy.steps):
        return None
    names = ", ".join(step.name for step in policy.steps)
    last = policy.steps[-1]
    why = f"a span for each of {names} is there, but none in this order"
    return Near(policy.name, "order", last.name, None, why)


def _of_rise(
    policy: Policy, rise: Rise, found: Callable[[Policy], Finding | None]
) -> Iterator[Near]:
    def matches(**changed: object) -> Finding | None:
        return found(msgspec.structs.replace(policy, rise=msgspec.structs.replace(rise, **changed)))

    for length in range(rise.length - 1, 1, -1):
        if finding := matches(length=length):
            why = f"{length} scores rise up to span {finding.centre}, {rise.length} are needed"
            yield Near(policy.name, "length", "", finding.centre, why, rise.length, length)
            break
    asked: tuple[tuple[Want, str, str], ...] = (
        ("height", "height", "last score less the first"),
        ("reach", "reach", "last score as a share of its threshold"),
        ("compliance", "then_share", "score of the answer as a share of the run's last"),
    )
    for want, field, words in asked:
        if finding := matches(**{field: _NEXT_TO_NOTHING}):
            needed = getattr(rise, field)
            why = f"scores rise up to span {finding.centre}, but the {words} is under {needed:g}"
            yield Near(policy.name, want, "", finding.centre, why, needed)
