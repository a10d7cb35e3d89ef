"""Thresholds, span by span: a page does not wait for its trace to close, and no limit silences one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from monitor.model import (
    MEMBER,
    MEMBER_IF_SCORED,
    Fault,
    Forensics,
    Fragment,
    Score,
    Span,
    SpanScore,
    judged_role,
)
from monitor.trace.life import Life
from monitor.trace.output import Outbox
from monitor.trace.pages import (
    Candidate,
    Page,
    alone_candidate,
    fault_candidates,
    score_candidate,
    span_candidate,
    threshold_page,
)
from monitor.trace.records import pending_incident, scores_no_member, span_not_in_memory

PENDING: Final = Forensics("pending")


class Pager:
    """Looks at the items of one fragment of one life, at one moment.

    offset  of the fragment
    date    of the moment, as the log dates it
    paged   whether the life has something to say: some incident was opened or revised
    """

    __slots__ = ("date", "life", "offset", "out", "paged")

    def __init__(self, out: Outbox, life: Life, offset: int, date: int) -> None:
        self.out = out
        self.life = life
        self.offset = offset
        self.date = date
        self.paged = False

    def look(self, fragment: Fragment, *, kept: bool) -> None:
        """Judge every score by its threshold. ``kept``: the life keeps these items (a score that waited for
        one of these spans has found it)."""
        life = self.life
        for span in fragment.spans:
            if span.kind == MEMBER:
                for score in span.scores:
                    self._score(span, score)
            if life.waiting:
                for early in life.waiting.get(span.span_id, ()):
                    self._join(span, early)
                if kept:
                    life.waiting.pop(span.span_id, None)
        for late in fragment.scores:
            content = life.load()
            copies = content.copies(late.span_id)
            if not copies:
                self._wait(late, kept)
            elif content.ambiguous(late.span_id):
                self._unplaced(copies, late)
            else:
                self._join(copies[0], late)
        for fault in fragment.faults:
            self.out.count("faults")
            if not kept and life.broken.setdefault(fault.fault, fault) is fault:
                self.paged = True  # the life is rejected from now on
            for candidate in fault_candidates(fault, life.rules):
                if candidate.threshold is not None:
                    self._page(candidate, Forensics("rejected", (Fault(fault.fault, (), 1),)))

    def _wait(self, score: SpanScore, kept: bool) -> None:
        """A score without its span. One that the life does not keep cannot wait: it says now what it would
        have said at the end."""
        life = self.life
        if kept:
            life.waiting.setdefault(score.span_id, []).append(score)
            return
        candidate = alone_candidate(score, life.rules)
        if candidate is not None:
            self._page(candidate, PENDING)
        self.out.count("span_not_in_memory")
        self.out.records.append(span_not_in_memory(life.trace_id, score))

    def _join(self, span: Span, late: SpanScore) -> None:
        """A score that came apart from its span counts with the span's own role and service."""
        if span.kind in MEMBER_IF_SCORED:
            self._score(span, late.score)
        else:  # an evaluator that names itself, not what it judged
            self.out.count("scores_of_no_member")
            self.out.records.append(scores_no_member(self.life.trace_id, late))

    def _unplaced(self, copies: Sequence[Span], late: SpanScore) -> None:
        """Of several spans of that id nothing says which one is meant: the score is held against each, and
        keeps its own coordinates."""
        rules = self.life.rules
        for span in copies:
            if span.kind in MEMBER_IF_SCORED and rules.thresholds.reached_by(span, late.score):
                role = judged_role(span.role, late.score.judged)
                named = msgspec.structs.replace(late, role=role)
                threshold = rules.thresholds.value(span.service, late.score.scorer, role)
                self._page(score_candidate(named, threshold, rules), PENDING)

    def _score(self, span: Span, score: Score) -> None:
        rules = self.life.rules
        if rules.thresholds.reached_by(span, score):
            self._page(span_candidate(span, score, rules), PENDING)

    def _page(self, candidate: Candidate, forensics: Forensics) -> None:
        life = self.life
        rejected = forensics.status == "rejected"
        key = (
            ("identity", "")
            if rejected
            else threshold_page(life.pages, candidate.scorer, life.rules)
        )
        page = life.pages.get(key)
        if page is None:
            page = life.pages[key] = Page(
                "identity" if rejected else "threshold",
                key[1],
                candidate.evidence.service,
                candidate.severity,
                self.date,
                self.offset,
                policy_class=None if rejected else life.rules.scorer(key[1]).policy_class,
            )
        if page.offer(candidate, self.offset):
            page.tell(page.telling(forensics))
            self.out.records.append(pending_incident(self.out.partition, life, page, forensics))
            self.paged = True
