"""Judge a life's spans: pure, so that `monitor explain` can do it again from the log.

The only module of the fold that calls identity, reduction, policies and neighbourhood.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from typing import Final

import msgspec

from monitor.codec import encode_json
from monitor.drift.delta import TracePart, trace_part
from monitor.model import (
    MEMBER,
    UNKNOWN,
    Fault,
    Forensics,
    Neighbourhood,
    Reduction,
    Score,
    Span,
    SpanFault,
    SpanScore,
    judged_role,
)
from monitor.policy.rules import Finding, Policy
from monitor.trace.attribution import attributed
from monitor.trace.content import Content
from monitor.trace.identity import (
    LISTED_IDS,
    IdentityReport,
    add_fault,
    examine,
    span_content,
)
from monitor.trace.life import Life
from monitor.trace.neighbourhood import Layout, neighbourhood
from monitor.trace.pages import (
    Candidate,
    alone_candidate,
    fault_candidates,
    score_given,
    span_candidate,
    unplaced_candidates,
)
from monitor.trace.reduce import highest_by_scorer, reduce_scores
from monitor.trace.rules import Rules
from monitor.trace.scorers import bounded

# Kinds of gap and fault that only the fold can know; the others are `monitor.trace.identity`'s.
SCORE_WITHOUT_SPAN: Final = "score_without_span"
PAST_LIMIT: Final = "past_limit"  # spans that came past max_spans or the closed budget
JUDGE_ERROR: Final = "judge_error"

JUDGE_ERROR_FORENSICS: Final = Forensics("rejected", (Fault(JUDGE_ERROR, (), 1),))


class Judgement:
    """What is true of a life as far as it has come.

    spans       with the scores in force, re-deliveries collapsed, in order of arrival
    members     those of them that count
    gate        scorer -> gate used, for the verdict's service and the scorers of the reductions
    service     the root's, else the first span's
    earlier     spans of the residue that composition looked back to, by id
    """

    __slots__ = (
        "_layout",
        "_pairs",
        "alone",
        "contested",
        "cut",
        "earlier",
        "faults",
        "findings",
        "forensics",
        "gate",
        "highest",
        "members",
        "model_version",
        "reductions",
        "replaced",
        "report",
        "residue",
        "root_seen",
        "rules",
        "service",
        "spans",
        "trace_id",
        "units",
        "unplaced",
    )

    def __init__(
        self,
        trace_id: str,
        report: IdentityReport,
        members: list[Span],
        faults: Sequence[SpanFault],
        alone: Sequence[SpanScore],
        rules: Rules,
        cut: bool,
    ) -> None:
        self.trace_id = trace_id
        self.report = report
        self.spans = report.spans
        self.members = members
        self.faults = faults
        self.alone = alone
        self.rules = rules
        self.cut = cut
        self.forensics = Forensics(report.status, report.faults)
        self.root_seen = bool(report.roots)
        self.service, self.model_version = _of_whom(report)
        self.reductions: tuple[Reduction, ...] = ()
        self.findings: tuple[Finding, ...] = ()
        self.earlier: dict[str, Span] = {}
        self.residue: Sequence[Span] = ()
        self.unplaced: set[str] = set()  # ids of scores that several spans bear
        self.contested: list[
            Candidate
        ] = []  # what these scores are due for, held against each of the spans
        self.replaced = 0
        self.units = False  # some score says which unit of its span it judged
        self.gate: dict[str, str] = {}
        self.highest: dict[str, tuple[Score, ...]] = {}
        self._layout: Layout | None = None
        self._pairs: list[tuple[str, str]] | None = None

    @property
    def publishable(self) -> bool:
        """Whether there is a verdict to publish: a GenAI or scored span, or one whose id was unusable."""
        return bool(self.members or self.faults)

    def part(self, incident: bool) -> TracePart | None:
        """Contribution to the drift sums: none of a trace that was cut, rejected or has no members."""
        if self.cut or not self.members or self.report.status == "rejected":
            return None
        members, units = _by_unit(self.members) if self.units else (self.members, [])
        return trace_part(
            members,
            verdict_service=self.service,
            verdict_model_version=self.model_version,
            threshold_of=self.rules.thresholds.value,
            incident=incident,
            units=units,
        )

    def around(self, centre: str | None) -> Neighbourhood:
        """Causal neighbourhood of a span; nothing is drawn where identity is rejected."""
        if self.report.status == "rejected":
            return Neighbourhood("refused", centre)
        if centre is None or centre not in self.report.parents:
            return Neighbourhood(
                "partial", centre, gaps=("the span is not here: its neighbours are unknown",)
            )
        if self._layout is None:
            self._layout = Layout(self.report)
        return neighbourhood(self.report, centre, trace_id=self.trace_id, layout=self._layout)

    def others(self, shown: Container[str]) -> tuple[int, str]:
        """(count, sha256 over the ids and content hashes) of the spans whose ids are not ``shown``."""
        if self._pairs is None:
            self._pairs = sorted((span.span_id, span.content_hash.hex()) for span in self.spans)
        left = [pair for pair in self._pairs if pair[0] not in shown]
        return len(left), hashlib.sha256(encode_json(left)).hexdigest()

    def due_alone(self) -> list[Candidate]:
        """Scores still without their span that are at or over the threshold of the role they name, and scores whose
        id several spans bear."""
        found = (alone_candidate(score, self.rules) for score in self.alone)
        return [*(candidate for candidate in found if candidate is not None), *self.contested]

    def argmax(self, reduction: Reduction | None = None) -> Candidate | None:
        """The reduction's argmax as a candidate below every threshold; of all reductions without one."""
        best: Candidate | None = None
        for one in self.reductions if reduction is None else (reduction,):
            if one.argmax_span_id is None or one.max_score is None:
                continue
            span = self.report.by_id[one.argmax_span_id]
            score = score_given(span, one.scorer, one.scorer_version, one.max_score)
            candidate = span_candidate(span, score, self.rules)
            if best is None or candidate.before(best):
                best = candidate
        return None if best is None else msgspec.structs.replace(best, threshold=None)

    def worst(self) -> Candidate | None:
        """Highest score of anything that came, whether its id can be trusted or not; first among those that
        reached their threshold."""
        best: Candidate | None = None
        found = [c for fault in self.faults for c in fault_candidates(fault, self.rules)]
        for span in self.members:
            found += [span_candidate(span, score, self.rules) for score in span.scores]
        for candidate in found:
            low = candidate.threshold is None
            if best is None:
                best = candidate
            elif low == (best.threshold is None):
                best = candidate if candidate.before(best) else best
            elif not low:
                best = candidate
        return best

    def strongest_unordered(self) -> Policy | None:
        """Of a rejected trace no order can be known: the gravest policy whose steps are all here in any order.

        Breaking an id must never be cheaper than being caught.
        """
        spans = [*self.residue, *self.members]
        return self.rules.matcher.strongest_in_any_order(spans, self.faults, self.highest)


def judge_life(life: Life, gates: Mapping[tuple[str, str], str]) -> Judgement:
    """What is true of a life with all that it holds now."""
    return judge(
        life.trace_id,
        life.load(),
        life.alone(),
        life.rules,
        gates,
        cut=life.cut,
        residue=life.residue,
        past=life.past,
        broken=tuple(life.broken.values()),
        unkept=life.unkept,
    )


def judge(
    trace_id: str,
    content: Content,
    alone: Sequence[SpanScore],
    rules: Rules,
    gates: Mapping[tuple[str, str], str],
    *,
    cut: bool,
    residue: Sequence[Span] = (),
    past: Sequence[Span] = (),
    broken: Sequence[SpanFault] = (),
    unkept: int = 0,
) -> Judgement:
    """Identity, reductions and composition of what came of one life.

    alone    scores whose span never came: a gap that is listed
    gates    (service, scorer) -> cardinality gate to use
    cut      the life ended early or goes on where another was cut
    broken   spans without a usable id that the content does not hold, since the life was full
    unkept   spans that the content does not hold for the same reason: an id may have come again among them
    residue  what is left of that other life: composition may reach back to it by argument flow
    past     spans of this life that came past its limit: composition may reach them likewise
    """
    settings = rules.settings
    spans = bounded(content.joined(), rules.named_scorers)
    faults = [*content.faults, *broken] if broken else content.faults
    report = _examined(spans, faults, settings.redelivery)
    others = (*residue, *past)
    if others:
        _reject_reused(report, others)
    if alone:
        ids = sorted({score.span_id for score in alone})
        _list_gap(report, Fault(SCORE_WITHOUT_SPAN, tuple(ids[:LISTED_IDS]), len(ids)))
    if unkept:
        _list_gap(report, Fault(PAST_LIMIT, (), unkept))
    members = [span for span in report.spans if span.kind == MEMBER]
    judged = Judgement(trace_id, report, members, faults, alone, rules, cut)
    judged.highest = content.highest()
    judged.unplaced = {score.span_id for score in content.unplaced}
    judged.contested = [
        candidate
        for score in content.unplaced
        for candidate in unplaced_candidates(score, content.copies(score.span_id), rules)
    ]
    judged.replaced = content.replaced
    judged.residue = others
    judged.units = any(score.judged for span in members for score in span.scores)
    if members:
        judged.reductions = reduce_scores(report.spans, report, settings, gates, judged.service)
        service = judged.service
        judged.gate = {
            r.scorer: gates.get((service, r.scorer), "unknown") for r in judged.reductions
        }
        if settings.policies:
            whole = report
            if others:
                here = report.parents
                judged.earlier = {s.span_id: s for s in others if s.span_id not in here}
                whole = _examined([*judged.earlier.values(), *spans], faults, settings.redelivery)
            if report.status != "rejected":
                findings = rules.matcher.match(whole, cut=cut, highest=judged.highest)
                if residue:  # what lies in the residue alone was said of the life that it is of
                    mine = report.parents.keys() | {span.span_id for span in past}
                    findings = tuple(f for f in findings if not mine.isdisjoint(f.span_ids))
                judged.findings = findings
    return judged


def _examined(
    spans: Sequence[Span], faults: Sequence[SpanFault], redelivery: str
) -> IdentityReport:
    """With what only a tree that can be believed says of its spans: whose model called a tool, what is there twice."""
    report = examine(spans, faults, redelivery=redelivery)
    if report.status != "rejected":
        report.spans = attributed(report.spans, report.parents)
    return report


def _reject_reused(report: IdentityReport, residue: Sequence[Span]) -> None:
    """An id of the cut life that this one continues, or of a span past the limit, is there again, and not as the same
    span: who sent it last would otherwise decide what composition sees of it."""
    known = {span.span_id: span_content(span) for span in report.spans}
    reused = sorted(
        {
            span.span_id
            for span in residue
            if known.setdefault(span.span_id, span_content(span)) != span_content(span)
        }
    )
    if reused:
        add_fault(report, Fault("duplicate_conflicting", tuple(reused[:LISTED_IDS]), len(reused)))
        report.status = "rejected"


def _by_unit(members: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """(the members without the scores of another unit than their role says; for each of those scores the span in
    that unit's role, with what was said of it). A span counts once for a scorer: by its highest score."""
    own: list[Span] = []
    others: list[Span] = []
    for span in members:
        apart: dict[str, list[Score]] = {span.role: []}
        for score in highest_by_scorer(span.scores):
            apart.setdefault(judged_role(span.role, score.judged), []).append(score)
        for role, scores in apart.items():
            unit = msgspec.structs.replace(span, role=role, scores=tuple(scores))
            (own if role == span.role else others).append(unit)
    return own, others


def _list_gap(report: IdentityReport, gap: Fault) -> None:
    report.faults += (gap,)
    if report.status == "complete":
        report.status = "incomplete"


def _of_whom(report: IdentityReport) -> tuple[str, str]:
    """(service, model version): the root's, else the first span's; of the version the first that is known."""
    spans = report.spans
    if not spans:
        return UNKNOWN, UNKNOWN
    first = spans[0]
    if report.roots and first.parent_span_id is not None:
        for first in (
            reversed(spans) if len(report.roots) == 1 else spans
        ):  # a root mostly ends last
            if first.parent_span_id is None:
                break
    if first.model_version != UNKNOWN:
        return first.service, first.model_version
    known = next((s.model_version for s in spans if s.model_version != UNKNOWN), UNKNOWN)
    return first.service, known
