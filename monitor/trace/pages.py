"""What a life has to page for, and what was already said of it.

A page is one incident: (life, reason, scorer or policy). What is due stays due: the highest score ever
given decides, severity never falls, and nothing that came later takes a page back. A revision is owed only when what
fired, its severity or the forensics changed since the last one, and once at closing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from monitor.model import (
    OTHER,
    Forensics,
    Score,
    Span,
    SpanEvidence,
    SpanFault,
    SpanScore,
    judged_role,
)
from monitor.policy.rules import Finding
from monitor.trace.rules import Rules, Severity, higher
from monitor.trace.scorers import SCORER_LIMIT

Reason = Literal["threshold", "scalar", "policy", "identity", "fault"]
REASON_ORDER: Final[dict[str, int]] = {
    "threshold": 0,
    "scalar": 1,
    "policy": 2,
    "identity": 3,
    "fault": 4,
}


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """A scored thing that may be an incident's argmax. ``threshold`` None: it was below every threshold."""

    scorer: str
    version: str
    score: float
    threshold: float | None
    start: int  # start_unix_nano: of equal scores the earlier span is the argmax
    severity: Severity
    evidence: SpanEvidence

    def before(self, other: Candidate) -> bool:
        """Whether this one is the argmax of the two: score, then start, then span_id, then content."""
        if self.score != other.score:
            return self.score > other.score
        return self._tie() < other._tie()

    def _tie(self) -> tuple[int, str, str, str, str]:
        seen = self.evidence
        return (self.start, seen.span_id or "", seen.content_hash, self.scorer, self.version)


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What the last revision of an incident said, as far as a change of it is worth another one."""

    argmax: str | None
    score: float | None
    severity: Severity
    forensics: Forensics
    proof: tuple[str, ...]  # spans of a policy's match


class Page(msgspec.Struct, array_like=True):
    reason: Reason
    name: str  # scorer or policy; "" where there is neither
    service: str  # of the span that proved it at the first revision: part of the alert group, never changed
    severity: Severity
    opened_at_ms: int
    causing_offset: int
    best: Candidate | None = None
    policy_class: str | None = None
    finding: Finding | None = None
    revision: int = 0
    told: Told | None = None
    rose_from: Severity | None = None  # severity of the revision before, where this one is graver

    @property
    def order(self) -> tuple[int, str]:
        return (REASON_ORDER[self.reason], self.name)

    def offer(self, candidate: Candidate, offset: int) -> bool:
        """Take the candidate in. True if what fired or how grave it is has changed."""
        severity = higher(self.severity, candidate.severity)
        graver = severity != self.severity
        self.severity = severity
        if self.best is None or candidate.before(self.best):
            self.best = candidate
            self.causing_offset = offset
            return True
        return graver

    def tell(self, telling: Told) -> None:
        """Make it the next revision."""
        before = None if self.told is None else self.told.severity
        self.rose_from = before if before != telling.severity else None
        self.revision += 1
        self.told = telling

    def telling(self, forensics: Forensics) -> Told:
        best = self.best
        return Told(
            None if best is None else best.evidence.span_id,
            None if best is None else best.score,
            self.severity,
            forensics,
            () if self.finding is None else self.finding.span_ids,
        )


Pages = dict[tuple[str, str], Page]


def threshold_page(pages: Pages, scorer: str, rules: Rules) -> tuple[str, str]:
    """Key of the scorer's page. Each page costs time by the size of the trace, so scorers that the settings do
    not name share one, ``other``, past SCORER_LIMIT of them."""
    key = ("threshold", scorer)
    if key in pages or scorer in rules.named_scorers:
        return key
    if sum(reason == "threshold" for reason, _ in pages) < SCORER_LIMIT:
        return key
    return ("threshold", OTHER)


def incident_id(trace_id: str, life: int, name: str, reason: str) -> str:
    """The same while pending, at close and in every revision."""
    return hashlib.sha256(msgspec.json.encode((trace_id, life, name, reason))).hexdigest()[:32]


def span_candidate(span: Span, score: Score, rules: Rules) -> Candidate:
    """The span by this score. Its role is that of the unit that was judged: a tool's result is retrieval."""
    role = judged_role(span.role, score.judged)
    threshold = rules.thresholds.value(span.service, score.scorer, role)
    evidence = span_evidence(span, score.value)
    if role != span.role:
        evidence = msgspec.structs.replace(evidence, role=role)
    return Candidate(
        score.scorer,
        score.version,
        score.value,
        threshold if score.value >= threshold else None,
        span.start_unix_nano,
        rules.severity(score.scorer, role),
        evidence,
    )


def score_given(span: Span, scorer: str, version: str, value: float) -> Score:
    """The span's score by this scorer version of this value, with the unit that it judged; a bare one where the
    span has it no more."""
    for score in span.scores:
        if (score.scorer, score.version, score.value) == (scorer, version, value):
            return score
    return Score(scorer, version, value)


def alone_candidate(score: SpanScore, rules: Rules) -> Candidate | None:
    """Of a score whose span is not here, if at or over the threshold of the role that it names."""
    threshold = rules.thresholds.value(score.service, score.score.scorer, score.role)
    return None if score.score.value < threshold else score_candidate(score, threshold, rules)


def score_candidate(score: SpanScore, threshold: float, rules: Rules) -> Candidate:
    """Of a score by itself: all that is known is what it says."""
    own = score.score
    return Candidate(
        own.scorer,
        own.version,
        own.value,
        threshold,
        0,
        rules.severity(own.scorer, score.role),
        SpanEvidence(
            score.span_id,
            None,
            score.role,
            score.service,
            "",
            "unknown",
            own.value,
            "",
            score.source,
        ),
    )


def unplaced_candidates(
    score: SpanScore, copies: Sequence[Span], rules: Rules
) -> Iterator[Candidate]:
    """Of several spans of that id nothing says which one is meant: the score is held against each, and keeps its
    own coordinates."""
    for span in copies:
        if rules.thresholds.reached_by(span, score.score):
            role = judged_role(span.role, score.score.judged)
            threshold = rules.thresholds.value(span.service, score.score.scorer, role)
            yield score_candidate(msgspec.structs.replace(score, role=role), threshold, rules)


def fault_candidates(fault: SpanFault, rules: Rules) -> list[Candidate]:
    """Every score of a span without a usable id; ``threshold`` is None where it lies below."""
    found = []
    for score in fault.scores:
        threshold = rules.thresholds.value(fault.service, score.scorer, fault.role)
        reached = score.value >= threshold
        found.append(
            Candidate(
                score.scorer,
                score.version,
                score.value,
                threshold if reached else None,
                0,
                rules.severity(score.scorer, fault.role) if reached else "warning",
                SpanEvidence(
                    None,
                    None,
                    fault.role,
                    fault.service,
                    fault.name,
                    fault.model_version,
                    score.value,
                    "",
                    fault.source,
                ),
            )
        )
    return found


def span_evidence(span: Span, score: float | None) -> SpanEvidence:
    detail = span.detail
    return SpanEvidence(
        span.span_id,
        span.parent_span_id,
        span.role,
        span.service,
        span.name,
        span.model_version,
        score,
        span.content_hash.hex(),
        span.source,
        None if detail is None else detail.tool_name,
        () if detail is None else detail.tags,
    )
