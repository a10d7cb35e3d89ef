"""A session: the steps of its latest traces, what its policies found, and what was said of that.

Pure: `apply` takes the state of a session and one trace's steps, and gives the next state and the incidents that are
due. What lies in the state is a choice by rank (elevated steps first, then the latest closing), not by arrival, so
within its bounds every order of the traces ends in the same state and the same findings.

A session has no score of its own and no mean of any. An incident is one for each (session, policy), revised when what fired or how grave it
is changes; its severity never falls.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from monitor.errors import UndecodableRecord
from monitor.model import (
    Edge,
    Forensics,
    Incident,
    Neighbourhood,
    Provenance,
    SessionEvidence,
    SessionTrace,
    Span,
)
from monitor.policy.flow import arguments_of, results_of
from monitor.policy.rules import Finding
from monitor.policy.session import Turn, match_session
from monitor.trace.pages import span_evidence
from monitor.trace.records import FOLD_VERSION, sealed
from monitor.trace.rules import Rules, Severity, higher
from monitor.trace.steps import STEPS_LIMIT, SessionSteps, encode_steps

TRACES_LIMIT: Final = 50
"""Traces of a session that are held: some minutes of a fan-out, or a long conversation."""

BYTES_LIMIT: Final = 512_000
"""Of a session, encoded: ordinary steps are 1 to 3 kB a trace. A row is written anew with each trace, and stays under
Kafka's default limit of a message."""

AGE_MS: Final = 86_400_000
"""Steps older than the session's latest by more than this are dropped: as long as their topic keeps them."""

_ID_SHOWN: Final = 128  # characters of a session id in a summary
_TRACES_NAMED: Final = 3

_Why = Literal["traces", "bytes", "age", "stale"]


class SessionPage(msgspec.Struct, frozen=True, array_like=True):
    """What was said of one policy: (revision, severity, service and date of the first revision, the spans)."""

    revision: int
    severity: Severity
    service: str
    opened_at_ms: int
    proof: tuple[str, ...]
    by_flow: bool


class SessionState(msgspec.Struct, frozen=True, array_like=True):
    """A row of the sessions table. ``steps``: in order of (closing, trace, life)."""

    steps: tuple[SessionSteps, ...] = ()
    pages: dict[str, SessionPage] = {}
    version: int = 1

    @property
    def latest_ms(self) -> int:
        """The log's date of the latest closing in it; 0 for an empty one."""
        return max((steps.closed_at_ms for steps in self.steps), default=0)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SessionState)


def encode_state(state: SessionState) -> bytes:
    return _ENCODER.encode(state)


def decode_state(payload: bytes) -> SessionState:
    """Raises UndecodableRecord."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableRecord(f"row of {len(payload)} bytes is no session: {error}") from error


class Applied(NamedTuple):
    """dropped: traces whose steps are not held any more, or never were, by the bound that dropped them."""

    state: SessionState
    incidents: list[Incident]
    dropped: Mapping[_Why, int]


def apply(
    key: bytes, state: SessionState, steps: SessionSteps, rules: Rules, *, offset: int
) -> Applied:
    """Take in one trace's steps.

    key     of the session, `monitor.trace.steps.session_key`
    rules   policies to match and the settings that the incidents name
    offset  of the record of the steps, for the incidents' provenance

    The policies see what was held and the new steps together, before any bound drops something.
    Raises UndecodableRecord for steps past their limit.
    """
    if len(encode_steps(steps)) > STEPS_LIMIT:
        raise UndecodableRecord(f"session steps of over {STEPS_LIMIT} bytes, the limit")
    held = {(one.trace_id, one.life): one for one in state.steps}
    known = held.get((steps.trace_id, steps.life))
    if known is not None and known.number >= steps.number:
        return Applied(state, [], {"stale": 1})
    held[steps.trace_id, steps.life] = steps
    together = sorted(held.values(), key=_order)
    pages = dict(state.pages)
    incidents = []
    told = _Scene(together)
    for finding in match_session(told.turns, rules.settings.policies):
        page = _page(pages.get(finding.policy), finding, told, steps.closed_at_ms)
        if page is None:
            continue
        before = pages.get(finding.policy)
        pages[finding.policy] = page
        incidents.append(told.incident(key, steps.session_id, finding, page, before, rules, offset))
    kept, dropped = _bounded(together, rules)
    return Applied(SessionState(tuple(kept), pages), incidents, dropped)


def session_incident_id(key: bytes, policy: str) -> str:
    """The same in every revision, whatever traces came first."""
    return hashlib.sha256(msgspec.json.encode(("session", key.decode(), policy))).hexdigest()[:32]


def _order(steps: SessionSteps) -> tuple[int, str, int]:
    return (steps.closed_at_ms, steps.trace_id, steps.life)


def _bounded(
    together: Sequence[SessionSteps], rules: Rules
) -> tuple[list[SessionSteps], Counter[_Why]]:
    """Traces with an elevated step stay before those without, so that harmless traces, however many, cannot push out
    the one that carried the attacker's words; then the latest stay."""
    dropped: Counter[_Why] = Counter()
    newest = together[-1].closed_at_ms
    elevated = rules.caring.elevated
    ranked = sorted(
        together,
        key=lambda one: (any(map(elevated, one.spans)), *_order(one)),
        reverse=True,
    )
    kept: list[SessionSteps] = []
    size = 0
    for one in ranked:
        needed = len(encode_steps(one))
        if one.closed_at_ms < newest - AGE_MS:
            dropped["age"] += 1
        elif len(kept) == TRACES_LIMIT:
            dropped["traces"] += 1
        elif size + needed > BYTES_LIMIT:
            dropped["bytes"] += 1
        else:
            kept.append(one)
            size += needed
    return sorted(kept, key=_order), dropped


def _page(
    before: SessionPage | None, finding: Finding, told: _Scene, now_ms: int
) -> SessionPage | None:
    """What is to be said now; None: nothing that was not said. A proof is not taken back by a doubt, and another doubt
    of the same kind says nothing new: a long session would have a revision for each of its traces."""
    if before is None:
        service = told.spans[finding.centre][1].service
        return SessionPage(1, finding.severity, service, now_ms, finding.span_ids, finding.by_flow)
    severity = higher(before.severity, finding.severity)
    said = not finding.by_flow or (before.by_flow and finding.span_ids == before.proof)
    if said and severity == before.severity:
        return None
    return msgspec.structs.replace(
        before,
        revision=before.revision + 1,
        severity=severity,
        proof=finding.span_ids,
        by_flow=finding.by_flow,
    )


class _Scene:
    """The steps of a session as the matcher reads them.

    turns  one a trace; lives of one trace are one: what lies in it alone is its own incident
    spans  id in the session -> (steps that it stands in, the span)
    """

    __slots__ = ("spans", "turns")

    def __init__(self, together: Sequence[SessionSteps]) -> None:
        self.spans: dict[str, tuple[SessionSteps, Span]] = {}
        requests: dict[str, bytes | None] = {}
        explained: dict[str, bytes] = {}
        members: dict[str, list[Span]] = {}
        for steps in together:
            own = members.setdefault(steps.trace_id, [])
            if requests.get(steps.trace_id) is None:
                requests[steps.trace_id] = steps.request
            explained[steps.trace_id] = explained.get(steps.trace_id, b"") + steps.explained
            for span in steps.spans:
                name = f"{steps.trace_id}/{span.span_id}"
                if name in self.spans:  # an id that several spans bear ties nothing to any of them
                    name = f"{name}#{len(self.spans)}"
                self.spans[name] = (steps, span)
                own.append(msgspec.structs.replace(span, span_id=name))
        self.turns = [
            Turn(trace_id, tuple(spans), requests[trace_id], explained[trace_id])
            for trace_id, spans in members.items()
        ]

    def incident(
        self,
        key: bytes,
        session_id: str,
        finding: Finding,
        page: SessionPage,
        before: SessionPage | None,
        rules: Rules,
        offset: int,
    ) -> Incident:
        found = [self.spans[name] for name in finding.span_ids]
        sink_steps, sink = self.spans[finding.centre]
        best = max(
            (span for _, span in found),
            key=lambda s: (s.safety_score or -1.0, -s.start_unix_nano, s.span_id),
        )
        status = _status([steps for steps, _ in found])
        ids: dict[tuple[str, int], list[str]] = {}
        for steps, span in found:
            ids.setdefault((steps.trace_id, steps.life), []).append(span.span_id)
        edges = self._edges(finding) if status != "rejected" else ()
        traces = sorted({steps.trace_id for steps, _ in found})
        named = ", ".join(traces[:_TRACES_NAMED]) + (" …" if len(traces) > _TRACES_NAMED else "")
        score = best.safety_score
        return sealed(
            Incident(
                incident_id=session_incident_id(key, finding.policy),
                trace_id=None,
                life=None,
                revision=page.revision,
                service=page.service,
                model_version=best.model_version,
                reason="policy",
                policy=finding.policy,
                policy_class=finding.policy_class,
                scorer=None,
                scorer_version=None,
                severity=page.severity,
                rose_from=None
                if before is None or before.severity == page.severity
                else before.severity,
                argmax_span_id=best.span_id,
                argmax_role=best.role,
                max_score=score,
                threshold=None,
                forensics=Forensics(status),
                neighbourhood=Neighbourhood(
                    "refused" if status == "rejected" else "partial",
                    finding.centre,
                    finding.span_ids,
                    edges,
                    ("the spans lie in several traces: nothing but a value ties them",),
                ),
                span_ids=tuple(dict.fromkeys(span.span_id for _, span in found)),
                evidence=tuple(span_evidence(span, span.safety_score) for _, span in found),
                others={},
                summary=f"policy {finding.policy} over traces {named} of session {session_id[:_ID_SHOWN]}: {finding.why}",
                caused_at_ms=sink.source.timestamp_ms,
                opened_at_ms=page.opened_at_ms,
                session=SessionEvidence(
                    session_id,
                    tuple(
                        SessionTrace(trace_id, life, tuple(spans))
                        for (trace_id, life), spans in ids.items()
                    ),
                ),
                provenance=Provenance(
                    sink_steps.partition,
                    sink_steps.life,
                    (),
                    offset,
                    rules.sha256,
                    {},
                    FOLD_VERSION,
                ),
            )
        )

    def _edges(self, finding: Finding) -> tuple[Edge, ...]:
        """Where a value out of one trace is an argument of the sink in another."""
        sink_steps, sink = self.spans[finding.centre]
        values = arguments_of(sink)
        return tuple(
            Edge(name, finding.centre, "flow")
            for name in finding.span_ids
            if self.spans[name][0].trace_id != sink_steps.trace_id
            and values & results_of(self.spans[name][1])
        )


def _status(found: Sequence[SessionSteps]) -> Literal["incomplete", "rejected"]:
    """Never complete: between traces there is a gap. A broken identity takes nothing from the severity, or breaking one would be cheaper
    than being caught; but then no edge is drawn."""
    statuses = {steps.forensics for steps in found}
    return "rejected" if "rejected" in statuses else "incomplete"
