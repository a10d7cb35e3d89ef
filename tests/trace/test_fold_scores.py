"""Scores that come apart from their span: before it, after it, or alone."""

from __future__ import annotations

import json

import pytest

from monitor.model import EVALUATOR, MEMBER, PLAIN, WRAPPER, Fragment
from tests.trace.folding import Log, late_score, scored, settings_of, tid
from tests.trace.truth import sid


def test_a_score_waits_for_its_span_and_is_judged_by_its_role() -> None:
    log = Log()
    assert log.scores("a", late_score(1, 0.5, role="unknown"), at=0) == []
    assert log.spans("a", scored(1, 0, score=None, role="retrieval"), at=1) == []
    log.spans("a", scored(0))
    log.until(11)
    assert log.incidents == []
    assert log.verdicts[0].reductions[0].max_score == 0.5
    assert log.verdicts[0].forensics.status == "complete"


def test_a_score_that_waited_pages_when_its_span_comes() -> None:
    log = Log()
    log.scores("a", late_score(1, 0.5), at=0)
    [page] = log.spans("a", scored(1, 0, score=None), at=1)
    assert (page.argmax_span_id, page.argmax_role) == (sid(1), "tool_call")


@pytest.mark.parametrize("first", ["score", "span"])
@pytest.mark.parametrize("kind", [WRAPPER, PLAIN])
def test_a_span_that_did_not_count_does_once_a_score_names_it(first: str, kind: int) -> None:
    """As at intake, where a score on the span itself makes a member of it: a score is never lost."""
    log = Log()
    span = scored(0, score=None, kind=kind, role="unknown")
    if first == "span":
        log.spans("a", span, at=0)
    log.scores("a", late_score(0, 0.9), at=0)
    if first == "score":
        log.spans("a", span, at=0)
    [page] = log.incidents
    assert (page.argmax_span_id, page.max_score) == (sid(0), 0.9)
    log.until(10)
    [verdict] = log.verdicts
    assert verdict.span_count == 1
    assert verdict.reductions[0].max_score == 0.9


def test_a_score_and_its_span_in_one_fragment() -> None:
    log = Log()
    fragment = Fragment(tid("a"), (scored(1, 0, score=None),), (late_score(1, 0.5),))
    assert [i.argmax_span_id for i in log.put(fragment)] == [sid(1)]


@pytest.mark.parametrize(
    ("role", "value", "paged"),
    [
        ("unknown", 0.3, True),
        ("unknown", 0.29, False),
        ("retrieval", 0.5, False),
        ("retrieval", 0.8, True),
    ],
)
def test_a_score_still_alone_at_closing_pages_by_its_own_role(
    role: str, value: float, paged: bool
) -> None:
    log = Log()
    log.scores("a", late_score("absent", value, role=role), at=0)
    log.spans("a", scored(0), at=0)
    log.until(9)
    assert log.incidents == []
    log.until(10)
    assert bool(log.incidents) == paged
    assert log.verdicts[0].forensics.status == "incomplete"
    assert [f.kind for f in log.verdicts[0].forensics.faults] == ["score_without_span"]
    if paged:
        [page] = log.incidents
        assert (page.reason, page.argmax_span_id, page.argmax_role) == (
            "threshold",
            sid("absent"),
            role,
        )
        assert page.forensics.status == "incomplete"
        assert page.neighbourhood.status == "partial"
        assert page.evidence[0].source.topic == "scores"


def test_a_late_score_still_alone_pages_at_the_next_flush() -> None:
    log = Log()
    log.spans("a", scored(0), at=0)
    log.until(11)
    assert log.scores("a", late_score("absent", 0.9), at=12) == []
    log.until(15)
    [page] = log.incidents
    assert (page.argmax_span_id, page.forensics.status) == (sid("absent"), "incomplete")


def test_a_score_alone_becomes_a_dead_letter_when_its_life_leaves() -> None:
    log = Log(settings_of(late_window_ms=20_000))
    log.scores("a", late_score("absent", 0.125, role="planner", service="judges"), at=0)
    log.spans("a", scored(0), at=0)
    log.until(29)
    assert log.dead_letters == []
    log.until(30)
    [letter] = log.dead_letters
    assert letter.reason == "span_not_in_memory"
    assert (letter.trace_id, letter.span_id, letter.scorer) == (tid("a"), sid("absent"), "judge")
    assert letter.source.topic == "scores"
    assert letter.value is not None
    assert json.loads(letter.value) == {
        "trace_id": tid("a"),
        "span_id": sid("absent"),
        "scorer": "judge",
        "version": "1",
        "value": 0.125,
        "service": "judges",
        "role": "planner",
    }
    assert log.fold.counters["span_not_in_memory"] == 1


def test_never_both_joined_and_dead_lettered() -> None:
    log = Log(settings_of(late_window_ms=20_000))
    log.scores("a", late_score(1, 0.1), at=0)
    log.spans("a", scored(0), at=0)
    log.spans("a", scored(1, 0, score=None), at=29)  # a second before it leaves
    log.until(40)
    assert log.dead_letters == []
    assert log.verdicts[-1].reductions[0].scored_count == 2


def test_a_page_of_a_score_alone_shows_its_span_when_that_comes_and_is_not_taken_back() -> None:
    log = Log()
    log.scores("a", late_score(1, 0.5), at=0)
    log.spans("a", scored(0), at=0)
    log.until(11)
    assert [i.argmax_role for i in log.incidents] == ["unknown"]
    log.spans("a", scored(1, 0, score=None, role="retrieval"), at=12)
    log.until(15)
    last = log.incidents[-1]
    assert (last.revision, last.argmax_role, last.max_score) == (2, "retrieval", 0.5)
    assert last.forensics.status == "complete"


def test_the_last_score_of_a_scorer_version_counts() -> None:
    log = Log()
    log.scores("a", late_score(1, 0.05), at=0)  # before the span, whose own score is the later one
    log.spans("a", scored(0), scored(1, 0, 0.2), at=0)
    log.scores("a", late_score(0, 0.25), at=1)
    log.until(12)
    roles = log.verdicts[0].reductions[0].roles
    assert roles["tool_call"].max == 0.25
    assert roles["tool_call"].scored == 2
    [entry] = [e for d in log.deltas for e in d.entries] or [None]
    assert entry is None
    log.until(60)
    [entry] = log.deltas[0].entries
    assert entry.bins == (200, 250)


def test_a_score_for_an_id_that_several_spans_bear_keeps_its_own_coordinates() -> None:
    log = Log()
    log.spans("a", scored(0), scored(1, 0, 0.1), scored(1, 0, 0.1, name="another"), at=0)
    [page] = log.scores("a", late_score(1, 0.9, role="retrieval"), at=1)
    assert page.argmax_span_id == sid(1)
    assert page.evidence[0].source.topic == "scores"
    assert page.evidence[0].content_hash == ""
    log.until(12)
    [reduction] = log.verdicts[-1].reductions
    assert reduction.max_score == 0.1  # tied to neither
    identity = [i for i in log.incidents if i.reason == "identity"][-1]
    assert (identity.max_score, identity.evidence[0].source.topic) == (0.9, "scores")


def test_a_score_for_a_span_that_was_only_delivered_again_is_joined() -> None:
    log = Log()
    root = scored(0, None, 0.1)
    log.spans("a", root, root, at=0)
    log.scores("a", late_score(0, 0.2), at=1)
    log.until(12)
    assert log.verdicts[-1].forensics.status == "complete"
    assert log.verdicts[-1].reductions[0].max_score == 0.2


def test_scores_that_were_replaced_are_counted_once() -> None:
    log = Log()
    log.spans("a", scored(0, None, 0.1), at=0)
    log.scores("a", late_score(0, 0.2), late_score(0, 0.05), at=1)
    log.until(20)
    assert log.fold.counters["scores_replaced"] == 2
    log.scores("a", late_score(0, 0.07), at=21)
    log.until(40)
    assert log.fold.counters["scores_replaced"] == 3


def test_a_score_of_an_evaluator_is_dead_lettered_and_not_lost() -> None:
    log = Log()
    log.spans("a", scored(0), scored(1, 0, None, kind=EVALUATOR), at=0)
    log.scores("a", late_score(1, 0.9), late_score(1, 0.1), at=1)
    log.until(12)
    [page] = log.incidents  # whatever it judged, it was too high
    assert (page.max_score, page.argmax_role) == (0.9, "unknown")
    log.until(700)
    assert [(d.reason, d.span_id, d.scorer) for d in log.dead_letters] == [
        ("scores_no_member", sid(1), "judge")
    ] * 2
    assert log.fold.counters["scores_of_no_member"] == 2


@pytest.mark.parametrize("kind", [MEMBER, EVALUATOR])
@pytest.mark.parametrize("order", ["thief first", "score first", "score last"])
def test_a_span_that_borrows_the_id_of_another_does_not_get_its_score(
    kind: int, order: str
) -> None:
    """A callee knows its caller's id before the caller's span is exported. Breaking an id must not cost less than
    being caught."""
    log = Log()
    log.spans("a", scored(0, None, 0.1, role="planner"))
    thief = scored(1, 0, None, role="retrieval", service="evil", name="evil", kind=kind)
    victim = scored(1, 0, None, service="payments")
    if order == "thief first":
        log.spans("a", thief)
        log.scores("a", late_score(1, 0.5))
        log.spans("a", victim)
    elif order == "score first":
        log.scores("a", late_score(1, 0.5))
        log.spans("a", thief)
        log.spans("a", victim)
    else:
        log.spans("a", thief, victim)
        log.scores("a", late_score(1, 0.5))
    log.until(40)
    last = {i.incident_id: i for i in log.incidents}.values()
    assert ("critical", 0.5, "tool_call") in {
        (i.severity, i.max_score, i.argmax_role) for i in last
    }
