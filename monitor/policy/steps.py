"""Find a policy's steps in a trace: tagged spans in causal order, tied by argument flow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from monitor.model import Span
from monitor.policy.flow import (
    NO_TOKENS,
    arguments_known,
    arguments_of,
    result_known,
    results_of,
)
from monitor.policy.ladder import Ladder, Track
from monitor.policy.rules import UNTAGGED, Finding, Policy, Step
from monitor.policy.scene import LISTED_SPANS, Scene, lowered

PROVIDERS: Final = 8  # spans kept a token: the same value comes out of many results of a long trace
NO_ORDER: Final = "the parts of the trace are in no known order"
BY_TIME: Final = "the parts of the trace are in order only by time"
AGAINST_TIMES: Final = "by its sender's times the result was not there yet"


class _Chain(msgspec.Struct):
    """One way through the steps: their spans, the sink last. ``by_flow``: a value was seen to flow."""

    spans: list[Span]
    by_flow: bool
    source: str = ""  # name of the step whose result the value came out of
    doubt: str = ""  # why it is no proof


def match_steps(policy: Policy, scene: Scene) -> Finding | None:
    """The finding that a policy of steps makes in a trace, or None.

    Proven: within one part of the trace in order, by flow where the policy requires it; or across parts by
    flow straight into the sink. Otherwise, where content was not captured or only times tell the order, it is
    undecidable. So it is where a value is seen to flow and the times say that it cannot have: they are the sender's
    word, who may leave them out.
    """
    found: list[_Chain] = []
    for part in scene.parts:
        found += _chains(policy.steps, part, scene, across=False)
    if len(scene.parts) > 1 and not any(chain.by_flow for chain in found):
        found += _chains(policy.steps, scene.by_time(), scene, across=True)
    if len(scene.parts) > 1 and not found and policy.steps[-1].flow_from:
        found = _between_parts(policy.steps, scene)
    if scene.cut:
        for chain in found:
            if not chain.by_flow and not chain.doubt:
                chain.doubt = "spans of the trace are missing (cut)"
    return _best(policy, found, scene)


def match_steps_between(policy: Policy, scene: Scene) -> Finding | None:
    """What a policy of steps finds between the parts of a scene that are whole traces, none within one.

    Proven by a value that flows from one into another alone, as in `match_steps`. By tags and order it is undecidable,
    and only where content was not captured, the policy asks for no flow, or lets a value that comes out of nothing do.
    """
    steps = policy.steps
    track = scene.by_time()
    ladder = Ladder(steps, track, scene.fitting)
    found: list[_Chain] = []
    if ladder.soonest:
        if steps[-1].flow_from:
            flow = _Flow(steps, ladder, scene, across=True, apart=True)
            chains = (flow.chain(sink) for sink in ladder.fitting[-1])
            provable = scene.request.known
        else:
            chains = (_in_order(ladder, sink, across=True) for sink in ladder.fitting[-1])
            provable = False
        found = _enough(
            (chain for chain in chains if chain is not None and _over_parts(chain, scene)),
            provable=provable,
        )
    if steps[-1].flow_from and not any(chain.by_flow for chain in found):
        found = _between_parts(steps, scene) or found
    return _best(policy, found, scene)


def _over_parts(chain: _Chain, scene: Scene) -> bool:
    part = scene.part_of(chain.spans[-1])
    return any(scene.part_of(span) is not part for span in chain.spans)


def _best(policy: Policy, found: list[_Chain], scene: Scene) -> Finding | None:
    proven = [chain for chain in found if not chain.doubt]
    chains = proven or found
    return _finding(policy, chains, scene) if chains else None


def _finding(policy: Policy, chains: list[_Chain], scene: Scene) -> Finding:
    first = chains[0]
    sink = first.spans[-1]
    if first.source:
        why = (
            f"a value out of step {first.source!r}, span {first.spans[0].span_id}, is an argument of step "
            f"{policy.steps[-1].name!r}, span {sink.span_id}"
        )
    else:
        why = f"steps {', '.join(step.name for step in policy.steps)} in order, up to span {sink.span_id}"
    if first.doubt:
        why += f"; undecidable: {first.doubt}"
    listed: dict[str, None] = {}
    last = sink
    for chain in chains:
        more = listed | dict.fromkeys(span.span_id for span in chain.spans)
        if len(more) > LISTED_SPANS:
            break
        listed, last = more, chain.spans[-1]
    return Finding(
        policy.name,
        policy.policy_class,
        lowered(policy.severity) if first.doubt else policy.severity,
        scene.in_order(listed, last.span_id),
        sink.span_id,
        by_flow=first.by_flow,
        undecidable=bool(first.doubt),
        why=why,
    )


def _chains(steps: Sequence[Step], track: Track, scene: Scene, *, across: bool) -> list[_Chain]:
    """One chain a sink at most, in the order of the sinks."""
    ladder = Ladder(steps, track, scene.fitting)
    if not ladder.soonest:
        return []
    last = steps[-1]
    if not last.flow_from:
        found = (_in_order(ladder, sink, across=across) for sink in ladder.fitting[-1])
    else:
        flow = _Flow(steps, ladder, scene, across=across)
        found = (flow.chain(sink) for sink in ladder.fitting[-1])
    provable = scene.request.known or not last.flow_from
    return _enough((chain for chain in found if chain is not None), provable=provable)


def _enough(chains: Iterable[_Chain], *, provable: bool) -> list[_Chain]:
    """As many as a finding can name: each has another sink. What is proven goes before what is in doubt."""
    taken, counted = [], 0
    for chain in chains:
        taken.append(chain)
        counted += not chain.doubt or not provable
        if counted > LISTED_SPANS:
            break
    return taken


def _between_parts(steps: Sequence[Step], scene: Scene) -> list[_Chain]:
    """Chains by a value that stands in a result of one part and the arguments of another."""
    ladder = Ladder(steps, scene.in_any_order(), scene.fitting)
    if not ladder.soonest:
        return []
    flow = _Flow(steps, ladder, scene, across=True, apart=True)
    found = (flow.seen(sink) for sink in ladder.fitting[-1])
    chains = _enough((chain for chain in found if chain is not None), provable=False)
    for chain in chains:
        chain.by_flow, chain.doubt = False, NO_ORDER
    return chains


def _in_order(ladder: Ladder, sink: Span, *, across: bool) -> _Chain | None:
    """A chain before ``sink`` by tags, scores and order."""
    if ladder.complete >= ladder.track.entered[sink.span_id]:
        return None
    return _Chain([*ladder.soonest, sink], by_flow=False, doubt=BY_TIME if across else "")


class _Flow:
    """What flows into the sinks of one ladder."""

    def __init__(
        self,
        steps: Sequence[Step],
        ladder: Ladder,
        scene: Scene,
        *,
        across: bool,
        apart: bool = False,
    ) -> None:
        self.steps = steps
        self.ladder = ladder
        self.scene = scene
        self.across = across
        self.doubted = 0
        self.apart = apart  # only what flows from one part to another counts
        self.sink = steps[-1]
        self.sources = [n for n, step in enumerate(steps) if step.name in self.sink.flow_from]
        # span_id of a sink -> the values in its arguments that are not the user's for sure
        allows, part_of = scene.request.allows, scene.part_of
        self.values = {
            span.span_id: arguments_of(span) - allows(part_of(span)) for span in ladder.fitting[-1]
        }
        self.wanted = NO_TOKENS.union(*self.values.values())
        # token -> (number of the step, span whose result holds it), the soonest usable first
        self.providers: dict[int, list[tuple[int, Span]]] = {}
        self.blind_from: int | None = (
            None  # when a chain from a result that is not known whole is complete
        )
        self._find_providers()
        self.first_seen: dict[int, int] | None = None

    def _find_providers(self) -> None:
        left = self.ladder.track.left
        ready = []
        for number in self.sources:
            done = self.ladder.done[number]
            for span in self.ladder.fitting[number]:
                when = done.get(span.span_id)
                if when is None:
                    continue
                if not result_known(span) and (self.blind_from is None or when < self.blind_from):
                    self.blind_from = when
                ready.append((max(when, left[span.span_id]), number, span.span_id, span))
        # Those that are ready soonest can feed the most sinks: what is kept first must not be what nothing can
        # come of, or a handful of spans that enclose the sink, or say they never ended, would hide the others.
        ready.sort(key=lambda one: one[:3])
        for _, number, _, span in ready:
            for token in results_of(span) & self.wanted:
                known = self.providers.setdefault(token, [])
                if len(known) < PROVIDERS and (
                    not self.apart or all(self._apart(span, other) for _, other in known)
                ):
                    known.append((number, span))

    def _apart(self, span: Span, other: Span) -> bool:
        return self.scene.part_of(span) is not self.scene.part_of(other)

    def chain(self, sink: Span) -> _Chain | None:
        """What there is of ``sink``: a proof or a doubt. Once there are more doubts than a finding can name only
        a proof can change it."""
        found = self.seen(sink)
        if found is None and self.doubted <= LISTED_SPANS:
            found = self.in_doubt(sink)
        self.doubted += found is not None and bool(found.doubt)
        return found

    def seen(self, sink: Span) -> _Chain | None:
        """The chain by which a value that the user did not name came into the arguments of ``sink``."""
        track, done = self.ladder.track, self.ladder.done
        entered = track.entered[sink.span_id]
        request = self.scene.request
        perhaps = request.may_allow(self.scene.part_of(sink))
        values = self.values[sink.span_id]
        proof_only = self.doubted > LISTED_SPANS
        if proof_only:
            values -= perhaps
        usable = [
            (value in perhaps, early, number, track.entered[span.span_id], span.span_id, span)
            for value in values & self.providers.keys()
            for number, span in self.providers[value]
            if track.left[span.span_id] < entered
            and done[number][span.span_id] < entered
            and not ((early := _overlap(span, sink)) and proof_only)
            and (not self.apart or self._apart(span, sink))
        ]
        if not usable:
            return None
        named, early, number, _, _, span = min(usable, key=lambda provider: provider[:5])
        doubt = ""
        if not request.known:
            doubt = "the user's request was not captured, and may have named the value"
        elif named:
            doubt = "a request that may not be the user's names the value"
        elif early:
            doubt = AGAINST_TIMES
        elif self.across and len(self.steps) > 2:
            doubt = BY_TIME
        return _Chain(
            [*self.ladder.chain(span, number), sink],
            by_flow=not doubt,
            source=self.steps[number].name,
            doubt=doubt,
        )

    def in_doubt(self, sink: Span) -> _Chain | None:
        """A chain in order, where flow into ``sink`` was not seen and cannot be ruled out."""
        tags = () if sink.detail is None else sink.detail.tags
        if not tags and UNTAGGED in self.sink.tags:
            return None  # neither what it does is known nor what it was given: that says nothing
        chain = _in_order(self.ladder, sink, across=self.across)
        if chain is None:
            return None
        entered = self.ladder.track.entered[sink.span_id]
        if not arguments_known(sink) or (self.blind_from is not None and self.blind_from < entered):
            chain.doubt = "arguments or results were not captured whole"
        elif self.sink.unexplained and self._unexplained(sink, entered):
            chain.doubt = "a value in the arguments comes out of nothing that was captured"
        elif self.sink.plain_words and not arguments_of(sink):
            chain.doubt = "the arguments hold plain words only, which cannot be followed"
        else:
            return None
        return chain

    def _unexplained(self, sink: Span, entered: int) -> bool:
        if not self.scene.request.known:
            return False
        if self.first_seen is None:
            self.first_seen = {}
            for span in self.ladder.track.spans:
                left = self.ladder.track.left[span.span_id]
                for token in results_of(span) & self.wanted:
                    self.first_seen[token] = min(left, self.first_seen.get(token, left))
        return any(
            self.first_seen.get(value, entered) >= entered for value in self.values[sink.span_id]
        )


def _overlap(span: Span, sink: Span) -> bool:
    """Whether the clock that both share says that the sink was called before the result was there.

    That is a doubt and no more: who sends the result says when it was there, and whose clock that is.
    """
    return span.service == sink.service and 0 < sink.start_unix_nano < span.end_unix_nano
