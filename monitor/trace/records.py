"""Build what is published: verdicts, incidents, dead letters. Nothing is decided here."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from monitor.codec import canonical_json, encode_json
from monitor.model import (
    UNKNOWN,
    DeadLetter,
    Fault,
    Forensics,
    Incident,
    Neighbourhood,
    OrphanFault,
    Provenance,
    ResetRecord,
    Source,
    Span,
    SpanEvidence,
    SpanScore,
    Verdict,
)
from monitor.trace.judge import Judgement
from monitor.trace.life import Life
from monitor.trace.pages import Candidate, Page, incident_id, span_evidence

FOLD_VERSION: Final = 1  # raise it when the same log would give other output
INCIDENT_LIMIT: Final = (
    900_000  # bytes: below the broker's default message limit with room for headers
)
LISTED_SPANS: Final = 500
LISTED_REDUCTIONS: Final = 200  # about 1 kB each; only settings that name more scorers get there
FRAGMENTS_TOPIC: Final = "monitor.fragments"  # where the fold's own input has its coordinates
MONITOR_SERVICE: Final = "agent-monitor"  # service of an incident that is about the monitor itself


def provenance(
    partition: int,
    life: Life,
    causing_offset: int,
    gate: dict[str, str],
    digests: tuple[str, ...] = (),
) -> Provenance:
    return Provenance(
        partition,
        life.birth,
        life.offsets(LISTED_SPANS),
        causing_offset,
        life.rules.sha256,
        gate,
        FOLD_VERSION,
        digests,
    )


def verdict(
    partition: int, life: Life, judged: Judgement | None, forensics: Forensics, revision: int
) -> Verdict:
    """``judged`` None: judging failed, nothing but the rejection can be said."""
    content = life.load()
    if judged is None:
        first = content.spans[0] if content.spans else None
        service = UNKNOWN if first is None else first.service
        return Verdict(
            trace_id=life.trace_id,
            life=life.birth,
            revision=revision,
            service=service,
            model_version=UNKNOWN,
            closed_by=life.closed_by,
            root_seen=False,
            cut=life.cut,
            continues=life.continues,
            span_count=0,
            redelivered=0,
            forensics=forensics,
            reductions=(),
            closed_at_ms=life.closed_at_ms,
            provenance=provenance(partition, life, life.last_offset, {}),
        )
    reductions = judged.reductions
    if len(reductions) > LISTED_REDUCTIONS:
        ranked = sorted(reductions, key=lambda r: -(r.max_score or 0.0))
        reductions = tuple(ranked[:LISTED_REDUCTIONS])
    service, model_version = judged.service, judged.model_version
    if not judged.spans and judged.faults:
        service, model_version = judged.faults[0].service, judged.faults[0].model_version
    return Verdict(
        trace_id=life.trace_id,
        life=life.birth,
        revision=revision,
        service=service,
        model_version=model_version,
        closed_by=life.closed_by,
        root_seen=judged.root_seen,
        cut=life.cut,
        continues=life.continues,
        span_count=len(judged.members),
        redelivered=judged.report.redelivered,
        forensics=forensics,
        reductions=reductions,
        closed_at_ms=life.closed_at_ms,
        provenance=provenance(
            partition, life, life.last_offset, {r.scorer: judged.gate[r.scorer] for r in reductions}
        ),
        reductions_left_out=len(judged.reductions) - len(reductions),
    )


def pending_incident(partition: int, life: Life, page: Page, forensics: Forensics) -> Incident:
    """A page that does not wait: the span that proves it, nothing of its surroundings yet."""
    best = page.best
    assert best is not None, page  # a provisional page is made by a score
    span_id = best.evidence.span_id
    around = Neighbourhood(
        "refused" if forensics.status == "rejected" else "partial",
        span_id,
        () if span_id is None else (span_id,),
        gaps=("the trace has not been judged whole yet",),
    )
    return _incident(partition, life, page, forensics, around, (best.evidence,), {}, {})


def concluded_incident(
    partition: int,
    life: Life,
    page: Page,
    judged: Judgement | None,
    forensics: Forensics,
    digests: tuple[str, ...],
) -> Incident:
    """What an incident says once its life has been judged whole. ``digests``: of the life's fragments."""
    best = page.best
    centre = None if best is None else best.evidence.span_id
    if page.finding is not None:
        centre = page.finding.centre
    if judged is None:
        around = Neighbourhood("refused", centre)
        own = () if best is None else (best.evidence,)
        return _incident(partition, life, page, forensics, around, own, {}, {}, digests)
    around = judged.around(centre)
    scorer = None if page.reason == "policy" or best is None else best.scorer
    version = None if best is None else best.version
    by_id = judged.report.by_id
    listed = [s for s in around.span_ids if s in by_id]
    if page.finding is not None and around.status != "refused":
        if judged.earlier:
            by_id = {**judged.earlier, **by_id}
        shown = set(listed)
        listed = [s for s in page.finding.span_ids if s in by_id and s not in shown] + listed
    listed = listed[:LISTED_SPANS]
    evidence = [span_evidence(by_id[s], _score_of(by_id[s], scorer, version)) for s in listed]
    if best is not None and best.evidence.span_id not in listed:
        evidence = [best.evidence, *evidence]
    if around.status == "refused":
        evidence += _copies(judged, best)
    count, digest = judged.others(set(listed))
    others = {"count": count, "digest": digest}
    return _incident(
        partition, life, page, forensics, around, tuple(evidence), others, judged.gate, digests
    )


def orphan_incident(
    partition: int,
    offset: int,
    orphan: OrphanFault,
    best: Candidate,
    settings: str,
    opened_at_ms: int,
) -> Incident:
    """A span without a usable trace_id at or over its threshold: no trace can be named, its coordinates are."""
    fault = orphan.fault
    return sealed(
        Incident(
            incident_id=orphan.fault_id,
            trace_id=None,
            life=None,
            revision=1,
            service=fault.service,
            model_version=fault.model_version,
            reason="identity",
            policy=None,
            policy_class=None,
            scorer=best.scorer,
            scorer_version=best.version,
            severity=best.severity,
            argmax_span_id=None,
            argmax_role=fault.role,
            max_score=best.score,
            threshold=best.threshold,
            forensics=Forensics("rejected", (Fault(fault.fault, (), 1),)),
            neighbourhood=Neighbourhood("refused"),
            span_ids=(),
            evidence=(best.evidence,),
            others={},
            summary=f"span without a usable trace_id ({fault.fault}) scored {best.score:.3g} by {best.scorer}",
            caused_at_ms=fault.source.timestamp_ms,
            opened_at_ms=opened_at_ms,
            provenance=Provenance(partition, offset, (offset,), offset, settings, {}, FOLD_VERSION),
        )
    )


def state_lost_incident(
    partition: int, offset: int, reset: ResetRecord, opened_at_ms: int
) -> Incident:
    """The loss stands in the log: what was between the last publication and here was never judged."""
    lost = {"partition": partition, "from": reset.published_to, "to": offset}
    return sealed(
        Incident(
            incident_id=incident_id("", offset, f"state_lost/{partition}", "fault"),
            trace_id=None,
            life=None,
            revision=1,
            service=MONITOR_SERVICE,
            model_version=UNKNOWN,
            reason="fault",
            policy="state_lost",
            policy_class=None,
            scorer=None,
            scorer_version=None,
            severity="critical",
            argmax_span_id=None,
            argmax_role=None,
            max_score=None,
            threshold=None,
            forensics=Forensics("rejected", (Fault("state_lost", (), 1),)),
            neighbourhood=Neighbourhood("refused"),
            span_ids=(),
            evidence=(),
            others={"range": lost},
            summary=f"state of fragments partition {partition} was lost: offsets {reset.published_to} to "
            f"{offset} were not judged",
            caused_at_ms=opened_at_ms,
            opened_at_ms=opened_at_ms,
            provenance=Provenance(
                partition, offset, (offset,), offset, reset.settings.sha256, {}, FOLD_VERSION
            ),
        )
    )


def span_not_in_memory(trace_id: str, score: SpanScore) -> DeadLetter:
    why = "its span did not come while its trace was in memory"
    return _refused_score("span_not_in_memory", why, trace_id, score)


def scores_no_member(trace_id: str, score: SpanScore) -> DeadLetter:
    why = (
        "its span is an evaluator or guardrail, which are not scored; name the span that was judged"
    )
    return _refused_score("scores_no_member", why, trace_id, score)


def _refused_score(reason: str, why: str, trace_id: str, score: SpanScore) -> DeadLetter:
    return DeadLetter(
        reason=reason,
        detail=f"score of {score.score.scorer} {score.score.version}: {why}",
        source=score.source,
        trace_id=trace_id,
        span_id=score.span_id,
        scorer=score.score.scorer,
        value=encode_json(
            {
                "trace_id": trace_id,
                "span_id": score.span_id,
                "scorer": score.score.scorer,
                "version": score.score.version,
                "value": score.score.value,
                "service": score.service,
                "role": score.role,
            }
        ),
    )


def undecodable(partition: int, offset: int, timestamp_ms: int | None, why: str) -> DeadLetter:
    """Named by its coordinates; the bytes lie in the log."""
    return DeadLetter(
        reason="undecodable_fragment",
        detail=why[:200],
        source=Source(FRAGMENTS_TOPIC, partition, offset, 0, timestamp_ms or 0),
    )


def _incident(
    partition: int,
    life: Life,
    page: Page,
    forensics: Forensics,
    around: Neighbourhood,
    evidence: tuple[SpanEvidence, ...],
    others: dict[str, Any],
    gate: dict[str, str],
    digests: tuple[str, ...] = (),
) -> Incident:
    best = page.best
    seen = None if best is None else best.evidence
    policy = page.name if page.reason in ("policy", "fault") else None
    span_ids = tuple(dict.fromkeys(e.span_id for e in evidence if e.span_id is not None))
    return sealed(
        Incident(
            incident_id=incident_id(life.trace_id, life.birth, page.name, page.reason),
            trace_id=life.trace_id,
            life=life.birth,
            revision=page.revision,
            service=page.service,
            model_version=UNKNOWN if seen is None else seen.model_version,
            reason=page.reason,
            policy=policy,
            policy_class=page.policy_class,
            scorer=None if best is None else best.scorer,
            scorer_version=None if best is None else best.version,
            severity=page.severity,
            rose_from=page.rose_from,
            argmax_span_id=None if seen is None else seen.span_id,
            argmax_role=None if seen is None else seen.role,
            max_score=None if best is None else best.score,
            threshold=None if best is None else best.threshold,
            forensics=forensics,
            neighbourhood=around,
            span_ids=span_ids[:LISTED_SPANS],
            evidence=evidence,
            others=others,
            summary=_summary(page, forensics.status),
            caused_at_ms=_caused_at(page, evidence),
            opened_at_ms=page.opened_at_ms,
            provenance=provenance(partition, life, page.causing_offset, gate, digests),
        )
    )


def sealed(incident: Incident) -> Incident:
    """With its digest: sha256 of the canonical JSON without one. At most INCIDENT_LIMIT bytes: evidence, edges
    and gates are left out from the end, half of each at a time, and counted."""
    whole, payload = incident, canonical_json(incident)
    evidence, edges, gates = (
        whole.evidence,
        whole.neighbourhood.edges,
        sorted(whole.provenance.gate.items()),
    )
    while len(payload) > INCIDENT_LIMIT - 100 and (evidence or edges or gates):
        evidence = evidence[: len(evidence) // 2]
        edges = edges[: len(edges) // 2]
        gates = gates[: len(gates) // 2]
        left_out = {
            "evidence": len(whole.evidence) - len(evidence),
            "edges": len(whole.neighbourhood.edges) - len(edges),
            "gates": len(whole.provenance.gate) - len(gates),
        }
        incident = msgspec.structs.replace(
            whole,
            evidence=evidence,
            neighbourhood=msgspec.structs.replace(whole.neighbourhood, edges=edges),
            provenance=msgspec.structs.replace(whole.provenance, gate=dict(gates)),
            others={**whole.others, "left_out": left_out},
        )
        payload = canonical_json(incident)
    return msgspec.structs.replace(incident, digest=hashlib.sha256(payload).hexdigest())


def _summary(page: Page, status: str) -> str:
    best = page.best
    where = "" if best is None else f" {best.evidence.role} span"
    score = "" if best is None else f"{best.scorer} {best.score:.3g}"
    limit = "" if best is None or best.threshold is None else f" (threshold {best.threshold:.3g})"
    match page.reason:
        case "threshold":
            text = f"{score} on a{where}{limit}"
        case "scalar":
            text = f"mean of {page.name} over the trace is at or over the scalar threshold; highest {score}"
        case "policy":
            text = f"policy {page.name}: {'' if page.finding is None else page.finding.why}"
        case "identity":
            text = "span identity is broken" + (f"; worst {score}{limit}" if score else "")
        case _:
            text = f"{page.name}: the trace could not be judged"
    return f"{text}; forensics {status}"


def _caused_at(page: Page, evidence: tuple[SpanEvidence, ...]) -> int:
    """Kafka timestamp of the record that proved it: a policy's sink, else the argmax; 0 where there is none."""
    if page.finding is not None:
        for shown in evidence:
            if shown.span_id == page.finding.centre:
                return shown.source.timestamp_ms
    return 0 if page.best is None else page.best.evidence.source.timestamp_ms


def _copies(judged: Judgement, best: Candidate | None) -> list[SpanEvidence]:
    """Of a rejected trace: coordinates of every span that bears a broken id, and of those without any."""
    broken = {i for fault in judged.forensics.faults for i in fault.span_ids}
    shown = () if best is None else (best.evidence.source,)
    found = [
        span_evidence(span, span.safety_score)
        for span in judged.spans
        if span.span_id in broken and span.source not in shown
    ]
    found += [
        SpanEvidence(
            None,
            None,
            fault.role,
            fault.service,
            fault.name,
            fault.model_version,
            max((s.value for s in fault.scores), default=None),
            "",
            fault.source,
        )
        for fault in judged.faults
        if fault.source not in shown
    ]
    return found[:LISTED_SPANS]


def _score_of(span: Span, scorer: str | None, version: str | None) -> float | None:
    """The span's score in force by this scorer version; the highest of all where none is asked for."""
    if scorer is None:
        return span.safety_score
    return max(
        (s.value for s in span.scores if s.scorer == scorer and s.version == version), default=None
    )
