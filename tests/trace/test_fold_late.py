"""What comes after the closing: pages at once, one revision a flush, drift sums moved in their own window."""

from __future__ import annotations

from monitor.drift.delta import DeltaAccumulator, ScoreDelta
from monitor.model import Incident, Verdict
from tests.trace.folding import Log, late_score, scored, settings_of
from tests.trace.truth import sid


def sums(deltas: list[ScoreDelta]) -> list[ScoreDelta]:
    return DeltaAccumulator.from_state(deltas).state()


def test_late_spans_become_one_revision_at_the_flush() -> None:
    log = Log()
    log.spans("a", scored(0), at=0)
    log.until(11)
    log.spans("a", scored(1, 0), at=11.1)
    log.spans("a", scored(2, 0), at=12)
    assert log.spans("a", scored(3, 2), at=14.9) == []
    log.until(15)
    assert [(v.revision, v.span_count, v.life) for v in log.verdicts] == [(1, 1, 1), (2, 4, 1)]
    assert log.verdicts[1].closed_at_ms == log.verdicts[0].closed_at_ms
    assert log.verdicts[1].closed_by == "root_complete"
    assert log.fold.counters["late_spans"] == 3


def test_a_revision_supersedes_composition_and_identity_too() -> None:
    log = Log()
    log.spans("a", scored(1, 0), at=0)
    log.until(31)
    assert log.verdicts[0].forensics.status == "incomplete"
    log.spans("a", scored(0), at=32)
    log.until(35)
    assert log.verdicts[1].forensics.status == "complete"
    assert log.verdicts[1].root_seen


def test_the_old_contribution_comes_out_of_the_window_of_the_closing_and_the_new_goes_in() -> None:
    settings = settings_of(drift_window_ms=20_000, late_window_ms=120_000, delta_flush_ms=30_000)
    late = Log(settings)
    late.spans("a", scored(0), at=0)
    late.until(40)  # closed at 10 s, flushed at 30 s
    window = late.deltas[0].entries[0].window
    late.spans("a", scored(1, 0), at=41)
    late.until(70)  # revised at 45 s, flushed at 60 s
    assert {e.window for d in late.deltas for e in d.entries} == {window}
    assert [d.entries[0].traces for d in late.deltas] == [1, -1]

    whole = Log(settings)
    whole.spans("a", scored(0), scored(1, 0), at=0)
    whole.until(40)
    assert sums(late.deltas) == sums(whole.deltas)


def test_a_revision_that_is_rejected_takes_its_contribution_out() -> None:
    log = Log()
    log.spans("a", scored(0), scored(1, 0), at=0)
    log.until(61)
    assert len(sums(log.deltas)) == 1
    log.spans("a", scored(1, 0, content_hash=b"x" * 16), at=62)
    log.until(125)
    assert sums(log.deltas) == []


def test_a_late_span_over_its_threshold_pages_at_once() -> None:
    log = Log()
    log.spans("a", scored(0), at=0)
    log.until(11)
    [page] = log.spans("a", scored(1, 0, 0.9), at=11.2)
    assert isinstance(page, Incident)
    assert (page.revision, page.forensics.status, page.argmax_span_id) == (1, "pending", sid(1))
    log.until(15)
    verdict, concluded = log.records[-2:]
    assert isinstance(verdict, Verdict)
    assert (concluded.incident_id, concluded.revision) == (page.incident_id, 2)
    assert concluded.forensics.status == "complete"


def test_a_late_span_that_changes_no_page_revises_none() -> None:
    log = Log()
    log.spans("a", scored(0), scored(1, 0, 0.9), at=0)
    log.until(11)
    before = len(log.incidents)
    log.spans("a", scored(2, 0, 0.5), at=12)
    log.until(15)
    assert len(log.incidents) == before
    assert [v.revision for v in log.verdicts] == [1, 2]


def test_a_late_score_finds_its_span_in_the_raw_fragments() -> None:
    log = Log()
    log.spans("a", scored(0), scored(1, 0, 0.1, role="retrieval"), at=0)
    log.until(11)
    assert log.scores("a", late_score(1, 0.79), at=12) == []  # a retrieval's threshold is 0.80
    [page] = log.scores("a", late_score(1, 0.85), at=12.5)
    assert (page.argmax_role, page.severity, page.max_score) == ("retrieval", "warning", 0.85)
    log.until(15)
    assert log.verdicts[-1].reductions[0].max_score == 0.85
    assert log.fold.counters["late_scores"] == 2


def test_a_dirty_life_is_revised_before_it_leaves() -> None:
    log = Log(settings_of(root_grace_ms=1_000, late_window_ms=3_000, revision_flush_ms=60_000))
    log.spans("a", scored(0), at=0)
    log.spans("a", scored(1, 0), at=3.5)
    log.until(3.9)
    assert [v.revision for v in log.verdicts] == [1]
    log.until(4)
    assert [(v.revision, v.span_count) for v in log.verdicts] == [(1, 1), (2, 2)]
    assert log.fold.closed_lives == 0


def test_every_closing_and_revision_is_an_entry_with_what_came_since() -> None:
    log = Log()
    log.spans("a", scored(1, 0), at=0)
    log.spans("a", scored(0), at=1)
    log.until(12)
    log.spans("a", scored(2, 0), at=12.5)
    log.until(15)
    first, second = log.closed
    assert (first.life, first.number, first.revision) == (1, 0, 1)
    assert (second.life, second.number, second.revision) == (1, 1, 2)
    assert [offset for offset, _ in first.fragments] == [1, 2]
    assert len(second.fragments) == 1
    assert first.deadline_vt == second.deadline_vt == 11_000 + 600_000
