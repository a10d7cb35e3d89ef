"""Composition policies: what an attack made of harmless-looking spans looks like, said declaratively.

A policy is either a sequence of *steps*, spans in causal order, or a *rise* of scores along a conversation.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["critical", "warning", "info"]


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One span of the sequence. All that is said must hold; what is left out does not matter.

    tags        it has one of these (``egress``, ``private_read`` ...: made at intake by verb and object)
    not_tags    it has none of these
    roles       it has one of these roles
    min_score   its highest safety score (0 safe .. 1 violates) is at least this
    flow_from   name of an earlier step: a value in this span's arguments came out of that step's result
                and was not in the user's request
    """

    name: str
    tags: tuple[str, ...] = ()
    not_tags: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    min_score: float = 0.0
    flow_from: str | None = None


class Rise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rising run of one scorer's scores, each below its threshold, and then an act of compliance.

    roles       the spans whose scores are looked at, in causal order
    length      spans that the run has at least
    height      last score less the first one, at least
    reach       last score as a share of its threshold, at least
    then_roles  a span of one of these roles follows the run
    """

    roles: tuple[str, ...]
    length: int
    height: float
    reach: float
    then_roles: tuple[str, ...]


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``severity`` is that of a proven match; an undecidable one (no content, a gap) is a ``warning``."""

    name: str
    policy_class: str
    description: str = ""
    severity: Severity = "critical"
    steps: tuple[Step, ...] = ()
    rise: Rise | None = None


class Finding(msgspec.Struct, frozen=True):
    """A policy that matched.

    span_ids     the spans that prove it in causal order, the sink last
    centre       the span whose neighbourhood the incident shows: the sink
    by_flow      argument flow was seen, which holds across gaps; else tags and order alone
    undecidable  flow was required and could not be looked for; severity is ``warning`` then
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
