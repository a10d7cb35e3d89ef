"""Lives: what opens, closes and ends them, and what their verdicts say."""

from __future__ import annotations

import pytest

from monitor.model import EVALUATOR, PLAIN, Fragment
from tests.trace.folding import Log, late_score, scored, settings_of, tid
from tests.trace.truth import sid


def test_root_complete_after_the_grace() -> None:
    log = Log()
    log.spans("a", scored(1, 0), scored(2, 0), at=0)
    log.spans("a", scored(0), at=1)
    log.until(10.9)
    assert log.verdicts == []
    log.until(11)
    [verdict] = log.verdicts
    assert (verdict.closed_by, verdict.root_seen, verdict.span_count) == ("root_complete", True, 3)
    assert (verdict.life, verdict.revision, verdict.trace_id) == (1, 1, tid("a"))
    assert verdict.forensics.status == "complete"
    assert not verdict.cut
    assert verdict.provenance.fragment_offsets == (1, 2)
    assert verdict.provenance.causing_offset == 2
    assert verdict.provenance.partition == 3
    assert verdict.provenance.settings == log.fold.settings_sha
    assert verdict.provenance.gate == {"judge": "unknown"}


def test_an_unresolved_parent_waits_for_idleness() -> None:
    log = Log()
    log.spans("a", scored(0), scored(1, "absent"), at=0)
    log.until(29.9)
    assert log.verdicts == []
    log.until(30)
    [verdict] = log.verdicts
    assert (verdict.closed_by, verdict.root_seen) == ("idle", True)
    assert [f.kind for f in verdict.forensics.faults] == ["missing_parent"]


def test_a_parent_that_comes_last_completes_the_trace() -> None:
    log = Log()
    log.spans("a", scored(0), scored(2, 1), at=0)
    log.spans("a", scored(1, 0), at=20)
    log.until(30)
    assert [v.closed_by for v in log.verdicts] == ["root_complete"]


def test_a_root_that_has_not_ended_does_not_complete() -> None:
    log = Log()
    log.spans("a", scored(0, end_unix_nano=0), at=0)
    log.until(29)
    assert log.verdicts == []
    log.until(30)
    assert [v.closed_by for v in log.verdicts] == ["idle"]


def test_idle_without_a_root() -> None:
    log = Log()
    log.spans("a", scored(1, 0), at=0)
    log.until(30)
    [verdict] = log.verdicts
    assert (verdict.closed_by, verdict.root_seen) == ("idle", False)
    assert {f.kind for f in verdict.forensics.faults} == {"missing_parent", "no_root"}


def test_max_lifetime_closes_what_never_falls_silent() -> None:
    log = Log(settings_of(max_lifetime_ms=20_000))
    for second in range(0, 20, 5):
        log.spans("a", scored(second + 1, 0), at=second)
    log.until(20)
    [verdict] = log.verdicts
    assert (verdict.closed_by, verdict.cut, verdict.span_count) == ("max_lifetime", True, 4)


def test_max_spans_closes_with_the_span_that_fills_it() -> None:
    log = Log(settings_of(max_spans=3))
    log.spans("a", scored(0), scored(1, 0), at=0)
    assert log.verdicts == []
    out = log.spans("a", scored(2, 0), scored(3, 0), scored(4, 0), at=0)
    [verdict] = log.verdicts
    assert (verdict.closed_by, verdict.cut, verdict.span_count) == ("max_spans", True, 3)
    assert out == [verdict]
    assert log.fold.counters["past_max_spans"] == 2


def test_an_id_used_again_after_its_memory_is_gone_is_another_life() -> None:
    log = Log(settings_of(root_grace_ms=1_000, late_window_ms=2_000))
    log.spans("a", scored(0), at=0)
    log.spans("a", scored(0), at=2.999)  # closed at 1 s, gone at 3 s
    log.until(5)
    log.spans("a", scored(0), at=5.001)  # the late span did not extend the window
    log.until(10)
    lives = [(v.life, v.revision) for v in log.verdicts]
    assert lives == [(1, 1), (1, 2), (6, 1)]


@pytest.mark.parametrize(("at", "lives"), [(2.999, 1), (3.0, 2), (3.001, 2)])
def test_a_span_that_comes_exactly_when_the_window_ends_opens_a_new_life(
    at: float, lives: int
) -> None:
    log = Log(settings_of(root_grace_ms=1_000, late_window_ms=2_000))
    log.spans("a", scored(0), at=0)
    log.spans("a", scored(1, 0), at=at)
    log.until(40)
    assert len({v.life for v in log.verdicts}) == lives


def test_a_constant_trace_id_is_one_life_after_the_other() -> None:
    log = Log(settings_of(max_lifetime_ms=10_000, late_window_ms=10_000, revision_flush_ms=5_000))
    for second in range(60):
        log.spans("constant", scored(second + 1, 0), at=second)
    assert [v.life for v in log.verdicts if v.revision == 1] == [1, 21, 41]
    # One revision a flush, not one a span.
    assert max(v.revision for v in log.verdicts) == 3


@pytest.mark.parametrize("span", [scored(0, score=None, kind=PLAIN), scored(0, kind=EVALUATOR)])
def test_a_life_without_a_member_publishes_nothing(span: object) -> None:
    log = Log()
    log.put(Fragment(tid("a"), (span,)))  # type: ignore[arg-type]
    log.until(70)
    assert log.records == []
    assert log.fold.counters["unpublished"] == 1
    assert len(log.closed) == 1


def test_a_life_of_scores_only_publishes_nothing_and_its_first_verdict_is_revision_1() -> None:
    log = Log()
    log.scores("a", late_score(0, 0.1), at=0)
    log.until(31)
    assert log.verdicts == []
    assert log.fold.counters["unpublished"] == 1
    log.spans("a", scored(0, score=None), at=32)
    log.until(35)
    [verdict] = log.verdicts
    assert (verdict.revision, verdict.life, verdict.span_count) == (1, 1, 1)
    assert verdict.reductions[0].max_score == 0.1


def test_a_plain_span_that_is_scored_counts() -> None:
    log = Log()
    log.spans("a", scored(0, score=None, kind=PLAIN, role="unknown"), at=0)
    log.scores("a", late_score(0, 0.2))
    log.until(10)
    [verdict] = log.verdicts
    assert verdict.reductions[0].argmax_span_id == sid(0)
    assert verdict.span_count == 1


def test_the_service_is_the_roots_else_the_first_spans() -> None:
    log = Log()
    log.spans("a", scored(1, 0, service="tools", model_version="m1"), scored(0, service="planner"))
    log.spans("b", scored(1, 0, service="tools"), scored(2, 0, service="other"))
    log.until(40)
    assert [(v.service, v.model_version) for v in log.verdicts] == [
        ("planner", "m1"),
        ("tools", "unknown"),
    ]


def test_a_redelivered_span_is_one_span_and_is_counted() -> None:
    log = Log()
    log.spans("a", scored(0), scored(1, 0), scored(1, 0))
    log.until(10)
    [verdict] = log.verdicts
    assert (verdict.span_count, verdict.redelivered) == (2, 1)
    assert verdict.forensics.status == "complete"


def test_lists_stop_at_500_offsets() -> None:
    log = Log(settings_of(max_spans=2_000))
    log.spans("a", scored(0))
    for n in range(1, 700):
        log.spans("a", scored(n, 0))
    log.until(10)
    [verdict] = log.verdicts
    assert verdict.provenance.fragment_offsets == tuple(range(1, 501))
    assert verdict.span_count == 700
