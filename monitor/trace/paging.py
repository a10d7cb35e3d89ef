"""Thresholds, span by span: a page does not wait for its trace to close, and no limit silences one."""

from __future__ import annotations

from typing import Final

from monitor.model import (
    MEMBER,
    MEMBER_IF_SCORED,
    Fault,
    Forensics,
    Fragment,
    Score,
    Span,
    SpanScore,
)
from monitor.trace.life import Life
from monitor.trace.output import Outbox
from monitor.trace.pages import (
    Candidate,
    Page,
    alone_candidate,
    fault_candidates,
    span_candidate,
    threshold_page,
    unplaced_candidates,
)
from monitor.trace.records import pending_incident, span_not_in_memory

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
            if span.span_id in life.waiting and span.kind in MEMBER_IF_SCORED:
                for early in life.waiting[span.span_id]:
                    self._score(span, early.score)
                if kept:
                    del life.waiting[span.span_id]
        for late in fragment.scores:
            content = life.load()
            copies = content.copies(late.span_id)
            if not copies:
                self._wait(late, kept)
            elif content.ambiguous(late.span_id):
                for candidate in unplaced_candidates(late, copies, life.rules):
                    self._page(candidate, PENDING)
            else:
                self._score(copies[0], late.score)
        for fault in fragment.faults:
            self.out.count("faults")
            if not kept and life.broken.setdefault(fault.fault, fault) is fault:
                self.paged = True  # the life is rejected from now on
            for candidate in fault_candidates(fault, life.rules):
                if candidate.threshold is not None:
                    self._page(candidate, Forensics("rejected", (Fault(fault.fault, (), 1),)))

    def _wait(self, score: SpanScore, kept: bool) -> None:
        """A score without a span that can be scored: an evaluator that names itself has none either. One that the life
        does not keep cannot wait: it says now what it would have said at the end."""
        life = self.life
        if kept:
            life.waiting.setdefault(score.span_id, []).append(score)
            return
        candidate = alone_candidate(score, life.rules)
        if candidate is not None:
            self._page(candidate, PENDING)
        self.out.count("span_not_in_memory")
        self.out.records.append(span_not_in_memory(life.trace_id, score))

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
