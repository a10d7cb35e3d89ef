"""What a life says when it closes and at each revision: its verdict, its incidents, its drift contribution.

Pure: the life is read, not changed, so that an exception on the way leaves nothing half done. What the
life takes over stands in the `Conclusion`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from typing import cast

import msgspec

from monitor.drift.delta import TracePart
from monitor.model import Forensics, Incident, Verdict
from monitor.trace.judge import JUDGE_ERROR, JUDGE_ERROR_FORENSICS, Judgement, judge_life
from monitor.trace.life import Life
from monitor.trace.pages import (
    Candidate,
    Page,
    Pages,
    Reason,
    score_given,
    span_candidate,
    threshold_page,
)
from monitor.trace.records import LISTED_SPANS, concluded_incident, verdict
from monitor.trace.rules import Severity, higher
from monitor.trace.steps import SessionSteps, session_steps

Gates = Mapping[tuple[str, str], str]


class Conclusion:
    """records: the verdict (if there is one to publish), then the incidents by reason and name."""

    __slots__ = ("error", "gates", "pages", "part", "published", "records", "replaced", "steps")

    def __init__(self) -> None:
        self.records: list[Verdict | Incident] = []
        self.pages: Pages = {}
        self.part: TracePart | None = None
        self.gates: dict[tuple[str, str], str] = {}
        self.published = False
        self.error: str | None = None
        self.steps: list[SessionSteps] = []  # what its sessions are told
        self.replaced = 0  # scores of the life that others have taken the place of


def conclude(
    partition: int, life: Life, gates: Gates, opened_at_ms: int, *, closing: bool
) -> Conclusion:
    """Judge the life whole.

    gates         (service, scorer) -> gate now in force; those in force at its closing win
    opened_at_ms  the log's date, for pages that are opened by this
    closing       every page gets its revision; at a later revision only those that changed
    """
    try:
        return _judged(partition, life, gates, opened_at_ms, closing)
    except Exception as error:  # noqa: BLE001 - one life that cannot be judged must not stop the partition
        return _failed(partition, life, opened_at_ms, closing, type(error).__name__)


def _judged(
    partition: int, life: Life, gates: Gates, opened_at_ms: int, closing: bool
) -> Conclusion:
    done = Conclusion()
    judged = judge_life(life, _gates_at_closing(life, gates))
    pages = {key: msgspec.structs.replace(page) for key, page in life.pages.items()}
    desk = _Desk(life, judged, pages, opened_at_ms)
    if life.waiting or judged.contested:
        desk.scores_alone()
    if judged.reductions:
        desk.scalars()
    if judged.findings:
        desk.policies()
    if judged.report.status == "rejected":
        desk.identity()
    done.pages = pages
    done.replaced = judged.replaced
    done.part = judged.part(bool(pages))
    done.gates = {(judged.service, scorer): state for scorer, state in judged.gate.items()}
    if judged.publishable or life.revision:
        done.published = True
        done.records.append(verdict(partition, life, judged, judged.forensics, life.revision + 1))
    _tell(partition, life, pages, judged, judged.forensics, closing, done)
    done.steps = session_steps(partition, life, judged)
    return done


def _failed(partition: int, life: Life, opened_at_ms: int, closing: bool, error: str) -> Conclusion:
    """Judging failed: forensics rejected, a page of its own, and what had been paged stays paged."""
    done = Conclusion()
    done.error = error
    pages = done.pages = {key: msgspec.structs.replace(page) for key, page in life.pages.items()}
    spans = life.load().spans
    pages.setdefault(
        ("fault", JUDGE_ERROR),
        Page(
            "fault",
            JUDGE_ERROR,
            spans[0].service if spans else "unknown",
            "critical",
            opened_at_ms,
            life.last_offset,
        ),
    )
    done.published = True
    done.records.append(verdict(partition, life, None, JUDGE_ERROR_FORENSICS, life.revision + 1))
    _tell(partition, life, pages, None, JUDGE_ERROR_FORENSICS, closing, done)
    return done


def _gates_at_closing(life: Life, gates: Gates) -> Gates:
    if not life.gates:
        return gates
    return ChainMap(life.gates, cast("MutableMapping[tuple[str, str], str]", gates))


def _tell(
    partition: int,
    life: Life,
    pages: Pages,
    judged: Judgement | None,
    forensics: Forensics,
    closing: bool,
    done: Conclusion,
) -> None:
    digests = life.digests(LISTED_SPANS) if pages else ()
    for page in sorted(pages.values(), key=lambda p: p.order):
        telling = page.telling(forensics)
        if closing or telling != page.told:
            page.tell(telling)
            done.records.append(
                concluded_incident(partition, life, page, judged, forensics, digests)
            )


class _Desk:
    """Opens and revises the pages that only the whole life can show."""

    __slots__ = ("judged", "life", "opened_at_ms", "pages")

    def __init__(self, life: Life, judged: Judgement, pages: Pages, opened_at_ms: int) -> None:
        self.life = life
        self.judged = judged
        self.pages = pages
        self.opened_at_ms = opened_at_ms
        for page in pages.values():
            self._recognise(page)

    def scores_alone(self) -> None:
        for candidate in self.judged.due_alone():
            _, name = threshold_page(self.pages, candidate.scorer, self.life.rules)
            page = self._page("threshold", name, candidate.severity, candidate)
            page.offer(candidate, self.life.last_offset)

    def scalars(self) -> None:
        """A mean may page only while every condition of its validity holds."""
        limit = self.life.rules.settings.scalar_threshold
        for reduction in self.judged.reductions:
            scalar = reduction.scalar
            if scalar is None or not scalar.alertable or scalar.value < limit:
                continue
            elevated = self.pages.get(("threshold", reduction.scorer))
            best = elevated.best if elevated is not None else self.judged.argmax(reduction)
            page = self._page("scalar", reduction.scorer, "critical", best)
            page.policy_class = reduction.policy_class
            if best is not None:
                page.offer(best, self.life.last_offset)

    def policies(self) -> None:
        best = self._elevated() or self.judged.argmax()
        for finding in self.judged.findings:
            page = self._page("policy", finding.policy, finding.severity, best)
            if finding.centre in self.judged.report.by_id and not page.revision:
                page.service = self.judged.report.by_id[finding.centre].service
            page.policy_class = finding.policy_class
            page.finding = finding
            page.severity = higher(page.severity, finding.severity)
            if best is not None and (page.best is None or best.before(page.best)):
                page.best = best

    def identity(self) -> None:
        """Broken identity never silences: the worst score and its coordinates, and no chain is drawn."""
        worst = self.judged.worst()
        elevated = self._elevated()
        if elevated is not None and (
            worst is None or elevated.before(worst) or worst.threshold is None
        ):
            worst = elevated
        reached = worst is not None and worst.threshold is not None
        severity: Severity = worst.severity if worst is not None and reached else "warning"
        strongest = self.judged.strongest_unordered()
        page = self._page("identity", "", severity, worst)
        if strongest is not None:
            page.policy_class = strongest.policy_class
            severity = higher(severity, strongest.severity)
        page.severity = higher(page.severity, severity)
        if worst is not None and (
            page.best is None
            or page.best.threshold is None
            or (reached and worst.before(page.best))
        ):
            page.best = worst

    def _page(self, reason: Reason, name: str, severity: Severity, best: Candidate | None) -> Page:
        page = self.pages.get((reason, name))
        if page is None:
            page = self.pages[reason, name] = Page(
                reason,
                name,
                self.judged.service if best is None else best.evidence.service,
                severity,
                self.opened_at_ms,
                self.life.last_offset,
                policy_class=self.life.rules.scorer(name).policy_class
                if reason == "threshold"
                else None,
            )
        return page

    def _elevated(self) -> Candidate | None:
        """The argmax among all that reached their threshold, whoever scored it."""
        best: Candidate | None = None
        for page in self.pages.values():
            if page.reason == "threshold" and page.best is not None:
                best = page.best if best is None or page.best.before(best) else best
        return best

    def _recognise(self, page: Page) -> None:
        """A score that paged without its span shows the span as soon as it is here."""
        best = page.best
        if best is None or best.evidence.content_hash or best.evidence.span_id is None:
            return
        if best.evidence.span_id in self.judged.unplaced:
            return
        span = self.judged.report.by_id.get(best.evidence.span_id)
        if span is not None:
            score = score_given(span, best.scorer, best.version, best.score)
            known = span_candidate(span, score, self.life.rules)
            page.best = msgspec.structs.replace(
                known, threshold=best.threshold, severity=best.severity
            )
