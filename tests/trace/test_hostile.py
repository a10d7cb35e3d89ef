"""A trace whose writer wants the monitor to stop, swell or stay silent: what it costs is bounded by what it sends."""

from __future__ import annotations

import time

import msgspec
import pytest

from monitor.codec import encode_fold_record, encode_json
from monitor.model import OTHER, Fragment, Score, Span, Tick
from monitor.trace.config import FoldSettings, ScorerRule, ThresholdOverride
from monitor.trace.fold import PartitionFold
from monitor.trace.life import LIFE_BYTES
from monitor.trace.lives import STEP_SPANS
from monitor.trace.pieces import ITEM_BYTES
from monitor.trace.scorers import SCORER_LIMIT, bounded
from tests.trace.folding import (
    START,
    Log,
    late_score,
    scored,
    settings_of,
    settings_record,
    tid,
    unusable,
)
from tests.trace.truth import sid


def judged_by(key: int, *scores: tuple[str, str, float], parent: int | None = 0) -> Span:
    return msgspec.structs.replace(
        scored(key, parent, None), scores=tuple(Score(*score) for score in scores)
    )


def flood(spans: int, value: float, a_span: int = 32) -> list[Span]:
    """Every score by another scorer."""
    return [
        judged_by(n, *((f"{n}/{k}", "1", value) for k in range(a_span)))
        for n in range(1, spans + 1)
    ]


# --- scorers -------------------------------------------------------------------------------------------------


def test_scorers_within_the_limit_keep_the_spans_as_they_are() -> None:
    spans = [scored(0), *(judged_by(n, (str(n % 31), "1", 0.1)) for n in range(1, 100))]
    assert bounded(spans, ()) is spans
    assert bounded(spans[:3], ()) == spans[:3]


def test_past_the_limit_the_first_come_and_the_declared_keep_their_names() -> None:
    spans = [*flood(1, 0.2), judged_by(2, ("late", "1", 0.5), ("mine", "7", 0.4), ("x", "1", 0.6))]
    first, second = bounded(spans, {"mine"})
    assert first is spans[0]
    assert set(second.scores) == {Score(OTHER, OTHER, 0.6), Score("mine", OTHER, 0.4)}


def test_versions_of_a_declared_scorer_are_bounded_too() -> None:
    spans = [judged_by(n, ("mine", str(n), 0.1)) for n in range(200)]
    found = {(s.scorer, s.version) for span in bounded(spans, {"mine"}) for s in span.scores}
    assert len(found) == SCORER_LIMIT + 1
    assert ("mine", OTHER) in found


def test_a_flood_of_scorers_gives_a_small_verdict_and_hides_no_score() -> None:
    log = Log()
    log.spans("a", scored(0), *flood(110, 0.1), judged_by(500, ("real", "1", 0.9)))
    log.until(10)
    [verdict] = log.verdicts
    assert len(verdict.reductions) == SCORER_LIMIT + 1
    assert len(encode_json(verdict)) < 50_000
    [other] = [r for r in verdict.reductions if r.scorer == OTHER]
    assert (other.max_score, other.argmax_span_id) == (0.9, sid(500))
    first, *_, last = log.incidents
    assert {i.incident_id for i in log.incidents} == {first.incident_id}
    assert (last.scorer, last.max_score, last.argmax_span_id) == ("real", 0.9, sid(500))


def test_a_flood_of_elevated_scorers_is_a_bounded_number_of_pages() -> None:
    settings = FoldSettings(
        scorers={"mine": ScorerRule("per_unit:pii")},
        threshold_overrides=(ThresholdOverride("theirs", "tool_call", 0.05),),
    )
    log = Log(settings)
    log.spans("a", scored(0), *flood(100, 0.5))
    log.spans("a", judged_by(500, ("mine", "1", 0.4), ("theirs", "1", 0.06), ("worst", "1", 0.8)))
    log.until(10)
    pages = {i.incident_id: i for i in log.incidents}
    assert len(pages) == SCORER_LIMIT + 3
    named = {i.scorer: i.max_score for i in pages.values()}
    assert named["mine"] == 0.4
    assert named["theirs"] == 0.06
    assert named["worst"] == 0.8  # the page that the others share shows the highest


def test_scores_that_wait_share_the_pages_too() -> None:
    log = Log()
    log.spans("a", scored(0))
    log.scores("a", *(late_score("gone", 0.5, scorer=f"s{n}") for n in range(100)))
    log.until(15)
    assert len({i.incident_id for i in log.incidents}) == SCORER_LIMIT + 1


# --- memory --------------------------------------------------------------------------------------------------


def test_small_lives_weigh_what_they_cost() -> None:
    """20,000 lives of 100 encoded bytes are not 2 MB."""
    log = Log(settings_of(open_bytes=10 * (LIFE_BYTES + ITEM_BYTES)))
    for n in range(100):
        log.spans(n, scored(n), at=0)
    assert log.fold.open_lives < 10


def test_scores_of_a_closed_life_alone_in_memory_keep_to_the_budget() -> None:
    budget = 100_000
    log = Log(settings_of(root_grace_ms=1, closed_bytes=budget, late_window_ms=60_000))
    log.spans("a", scored(0), at=0)
    log.until(1)
    for n in range(300):
        log.scores("a", late_score(f"gone{n}", 0.1), late_score(0, 0.1, scorer=f"x{n}"))
    assert log.fold.bytes_closed <= budget
    assert len(log.dead_letters) > 100  # those that could not wait
    [page] = log.scores("a", late_score("gone", 0.9, role="tool_call"))[:1]
    assert (page.max_score, page.argmax_span_id) == (0.9, sid("gone"))


def test_large_spans_of_a_closed_life_alone_in_memory_keep_to_the_budget() -> None:
    budget = 400_000
    log = Log(settings_of(root_grace_ms=1, closed_bytes=budget, late_window_ms=60_000))
    log.spans("a", scored(0), at=0)
    log.until(1)
    for n in range(1, 30):
        log.spans("a", scored(n, 0, name="x" * 50_000))
    assert log.fold.bytes_closed <= budget
    [page] = log.spans("a", scored(99, 0, 0.9, name="x" * 50_000))[:1]
    assert page.argmax_span_id == sid(99)
    log.until(30)
    last = log.verdicts[-1]
    [gap] = [f for f in last.forensics.faults if f.kind == "past_limit"]
    assert gap.count == 30 + 1 - last.span_count
    assert last.forensics.status == "incomplete"


def test_residues_without_a_span_weigh_something() -> None:
    log = Log(
        settings_of(max_spans=1, late_window_ms=1, closed_bytes=60_000, max_lifetime_ms=900_000)
    )
    for n in range(200):
        log.spans(n, scored(n), at=n)
    assert log.fold.counters["residues_dropped"] > 100


# --- time ----------------------------------------------------------------------------------------------------


def test_each_revision_waits_one_flush_longer_than_the_last() -> None:
    """A score a flush must not buy a judgement of ten thousand spans a flush."""
    log = Log(settings_of(root_grace_ms=1, late_window_ms=600_000))
    log.spans("a", scored(0), at=0)
    log.until(4)
    for second in range(4, 600):
        log.scores("a", late_score(0, 0.1, scorer=f"s{second % 7}"), at=second)
    log.until(700)
    assert 10 <= len(log.verdicts) <= 20
    assert log.verdicts[1].revision == 2


def test_a_page_does_not_wait_for_the_revision() -> None:
    log = Log(settings_of(root_grace_ms=1, late_window_ms=600_000))
    log.spans("a", scored(0), at=0)
    for second in range(1, 100):
        log.scores("a", late_score(0, 0.1), at=second)
    [page] = log.scores("a", late_score(0, 0.9), at=100)
    assert page.max_score == 0.9


# --- what a limit must not hide ----------------------------------------------------------------------------------


def test_spans_past_the_limit_are_a_gap_that_is_counted() -> None:
    """Among them an id may have come again: who can show it is not complete."""
    log = Log(settings_of(max_spans=3))
    log.spans("a", scored(0), scored(1, 0), scored(2, 0), at=0)
    assert log.verdicts[-1].forensics.status == "complete"
    log.spans("a", scored(1, 0, 0.2, name="another"), scored(3, 0), at=1)
    log.until(10)
    last = log.verdicts[-1]
    assert last.span_count == 3
    assert last.forensics.status == "incomplete"
    assert [(f.kind, f.count) for f in last.forensics.faults] == [("past_limit", 2)]


def test_spans_past_the_limit_do_not_heal_what_is_rejected() -> None:
    log = Log(settings_of(max_spans=3))
    log.spans("a", scored(0), scored(1, 0), scored(1, 0, name="another"), at=0)
    log.spans("a", scored(3, 0), at=1)
    log.until(10)
    assert log.verdicts[-1].forensics.status == "rejected"


@pytest.mark.parametrize("first", ["tool_call", "retrieval"])
def test_a_late_score_is_held_against_every_copy_of_its_span(first: str) -> None:
    """An id that is there twice must not lend its score the milder role of the two."""
    second = "retrieval" if first == "tool_call" else "tool_call"
    log = Log()
    log.spans("a", scored(0), scored(1, 0, None, role=first), scored(1, 0, None, role=second))
    [page, *_] = log.scores("a", late_score(1, 0.5))
    assert (page.argmax_role, page.max_score) == ("tool_call", 0.5)


def test_unusable_spans_past_the_limit_take_no_memory() -> None:
    log = Log(settings_of(max_spans=1, late_window_ms=60_000))
    log.spans("a", scored(0), at=0)
    before = log.fold.bytes_closed
    for _ in range(100):
        log.faults("a", unusable(0.1))
    assert log.fold.bytes_closed == before
    assert log.fold.in_closed_memory((tid("a"), 1))


def test_a_moment_at_which_many_large_traces_close_is_taken_in_steps() -> None:
    """A worker that misses its heartbeats loses the partition to one that will miss them too."""
    fold = PartitionFold(0)
    fold.apply(0, START, encode_fold_record(settings_record(settings_of(idle_ms=5_000))))
    for trace in range(6):
        spans = tuple(scored(n, 0) for n in range(1, STEP_SPANS // 2 + 1))
        fold.apply(1 + trace, START, encode_fold_record(Fragment(tid(trace), spans)))
    steps = list(fold.steps(7, START + 5_000, encode_fold_record(Tick())))
    assert len(steps) == 3
    assert fold.open_lives == 0


def test_scores_and_copies_of_one_id_cost_time_in_proportion() -> None:
    """Thousands of spans under one id, then thousands of scores of it: their product would keep a worker from its
    heartbeats."""

    def seconds(n: int) -> float:
        log = Log(settings_of(open_bytes=10**9, closed_bytes=10**9))
        base = scored(1, 0, 0.1)
        conflicting = (msgspec.structs.replace(base, content_hash=b"%016d" % k) for k in range(n))
        log.put(Fragment(tid("t"), (*conflicting,)), at=0)
        log.put(Fragment(tid("u"), (scored(0), *([base] * n))), at=0)
        started = time.process_time()
        for trace in "tu":
            log.scores(trace, *(late_score(1, 0.1, scorer=f"s{k}") for k in range(n)), at=0.1)
        log.until(40)
        return time.process_time() - started

    seconds(100)
    assert seconds(4_000) < 20 * max(seconds(400), 0.02)
