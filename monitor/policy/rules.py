"""Composition policies: what an attack made of harmless-looking spans looks like, said declaratively.

A policy is a sequence of *steps*, spans in causal order, or a *rise* of scores along a conversation. The files
are described in `monitor.policy.load`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from monitor.model import MEMBER, Score, Span, SpanFault

Severity = Literal["critical", "warning", "info"]

UNTAGGED: Final = (
    "untagged"  # in a step's tags: a tool whose name and attributes say nothing of what it does
)

_NO_TOOL: Final = frozenset({"planner", "completion"})


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One span of the sequence. All that is said must hold; what is left out does not matter.

    tags         it has one of these (``egress``, ``private_read`` ...: made at intake by verb and object)
    not_tags     it has none of these
    roles        it has one of these roles
    min_score    its highest safety score (0 safe .. 1 violates), by any scorer at any time, is at least this
    flow_from    names of earlier steps; last step only: a value in this span's arguments came out of the result
                 of one of them and was not in the user's request
    unexplained  last step only: instead of such a flow it may hold a value that is neither in the user's request
                 nor in any earlier result, so that nobody can say where it came from. A warning, no proof
    plain_words  last step only: instead of such a flow it may hold plain words alone, which are no values that
                 could be followed (a new password, say). A warning, no proof
    """

    name: str
    tags: tuple[str, ...] = ()
    not_tags: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    min_score: float = 0.0
    flow_from: tuple[str, ...] = ()
    unexplained: bool = False
    plain_words: bool = False

    def fits(self, span: Span, more: Sequence[Score] = ()) -> bool:
        """Whether ``span`` by itself can be this step: all but flow and order. ``more``: scores that it was
        given beside those in force."""
        if span.kind != MEMBER or (self.roles and span.role not in self.roles):
            return False
        if self.min_score > 0.0:
            for score in (*span.scores, *more) if more else span.scores:
                if score.value >= self.min_score:
                    break
            else:
                return False
        tags = () if span.detail is None else span.detail.tags
        if self.not_tags:
            for tag in tags:
                if tag in self.not_tags:
                    return False
        if self.tags:
            for tag in tags:
                if tag in self.tags:
                    return True
            return not tags and UNTAGGED in self.tags
        return True

    def may_be(self, fault: SpanFault) -> bool:
        """Whether a span without a usable id may have been this step. Its tags are not known; what plans or
        answers has none, since they come from the names of tools."""
        if (self.roles and fault.role not in self.roles) or (self.tags and fault.role in _NO_TOOL):
            return False
        return self.min_score <= 0.0 or any(s.value >= self.min_score for s in fault.scores)


class Rise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rising run of one scorer's scores, each below its threshold, and then an act of compliance.

    roles       the spans whose scores make the run, in causal order
    length      scores that the run has at least
    height      last score less the first one, at least
    reach       last score as a share of its threshold, at least
    then_roles  roles of the span that complies: the run's last one, or the first such span after it
    then_share  that span's score as a share of the run's last score, at least; a refusal scores low.
                A span that the scorer did not judge complies
    """

    roles: tuple[str, ...]
    then_roles: tuple[str, ...]
    length: int = 4
    height: float = 0.15
    reach: float = 0.6
    then_share: float = 0.5


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``steps`` or ``rise``. ``severity`` is that of a proven match; one that is undecidable is a ``warning``,
    or ``info`` where the policy itself is.
    """

    name: str
    policy_class: str
    description: str = ""
    severity: Severity = "critical"
    steps: tuple[Step, ...] = ()
    rise: Rise | None = None


class Finding(msgspec.Struct, frozen=True):
    """A policy that matched.

    span_ids     the spans that show it in causal order, at most 50, the sink last
    centre       the span whose neighbourhood the incident shows: the earliest sink
    by_flow      argument flow was seen, which holds across gaps; else tags, scores and order alone
    undecidable  what the policy requires could not be looked for: content that is not there, a gap, a cut
    why          one line for people, without content
    """

    policy: str
    policy_class: str
    severity: Severity
    span_ids: tuple[str, ...]
    centre: str
    by_flow: bool
    undecidable: bool
    why: str
