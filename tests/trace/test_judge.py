"""The pure judge, as `explain` calls it: fragments of the log in, the same verdict and incidents out."""

from __future__ import annotations

import pytest

from monitor.codec import encode_fold_record
from monitor.model import Fragment
from monitor.trace.config import FoldSettings, ScorerRule
from monitor.trace.content import Content
from monitor.trace.judge import judge
from monitor.trace.rules import Rules
from tests.trace.folding import Log, late_score, scored, tid, unusable
from tests.trace.truth import sid

SETTINGS = FoldSettings(scorers={"judge": ScorerRule("per_unit:pii", independent=True)})
RULES = Rules(SETTINGS, SETTINGS.sha256, SETTINGS.canonical())


def content_of(*fragments: Fragment) -> Content:
    return Content.of(encode_fold_record(fragment) for fragment in fragments)


def test_the_judge_gives_a_published_verdict_again() -> None:
    log = Log(SETTINGS)
    first = Fragment(tid("a"), (scored(1, 0, 0.2), scored(2, 0, 0.9)))
    second = Fragment(tid("a"), (scored(0),), (late_score(1, 0.25),))
    log.gate("shifted", 3)
    log.put(first)
    log.put(second, at=1)
    log.until(11)
    [verdict] = log.verdicts
    gates = {(verdict.service, scorer): gate for scorer, gate in verdict.provenance.gate.items()}
    judged = judge(tid("a"), content_of(first, second), (), RULES, gates, cut=verdict.cut)
    assert judged.reductions == verdict.reductions
    assert judged.forensics == verdict.forensics
    assert (judged.service, judged.model_version) == (verdict.service, verdict.model_version)
    assert judged.around(sid(2)) == log.incidents[-1].neighbourhood
    assert judged.gate == {"judge": "shifted"}


def test_scores_alone_are_a_gap_that_is_listed() -> None:
    alone = [late_score("x", 0.9), late_score("y", 0.1), late_score("x", 0.2)]
    judged = judge(
        tid("a"), content_of(Fragment(tid("a"), (scored(0),))), alone, RULES, {}, cut=False
    )
    assert judged.forensics.status == "incomplete"
    [fault] = judged.forensics.faults
    assert (fault.kind, fault.span_ids, fault.count) == (
        "score_without_span",
        tuple(sorted((sid("x"), sid("y")))),
        2,
    )
    assert [c.evidence.span_id for c in judged.due_alone()] == [sid("x")]
    scalar = judged.reductions[0].scalar
    assert scalar is not None
    assert not scalar.alertable


def test_nothing_is_drawn_of_a_rejected_trace() -> None:
    broken = Fragment(tid("a"), (scored(0), scored(1, 0, 0.9)), (), (unusable(0.95),))
    judged = judge(tid("a"), content_of(broken), (), RULES, {}, cut=False)
    assert judged.forensics.status == "rejected"
    assert judged.around(sid(1)).status == "refused"
    assert judged.part(incident=True) is None
    worst = judged.worst()
    assert worst is not None
    assert (worst.score, worst.evidence.span_id, worst.evidence.source.offset) == (0.95, None, 99)


def test_the_worst_is_first_among_those_that_reached_their_threshold() -> None:
    echo = scored(1, 0, 0.79, role="retrieval")
    call = scored(2, 0, 0.4)
    content = content_of(Fragment(tid("a"), (scored(0), echo, call)))
    worst = judge(tid("a"), content, (), RULES, {}, cut=False).worst()
    assert worst is not None
    assert worst.evidence.span_id == sid(2)


@pytest.mark.parametrize(("cut", "contributes"), [(False, True), (True, False)])
def test_a_cut_trace_contributes_nothing(cut: bool, contributes: bool) -> None:
    content = content_of(Fragment(tid("a"), (scored(0),)))
    part = judge(tid("a"), content, (), RULES, {}, cut=cut).part(incident=False)
    assert (part is not None) == contributes


def test_a_neighbourhood_of_a_span_that_is_not_here_admits_it() -> None:
    content = content_of(Fragment(tid("a"), (scored(0),)))
    around = judge(tid("a"), content, (), RULES, {}, cut=False).around(sid("elsewhere"))
    assert (around.status, around.edges) == ("partial", ())
    assert around.gaps


def test_the_order_of_arrival_does_not_show() -> None:
    spans = [scored(0), *(scored(n, n // 2, n / 100, at=1.0 + n) for n in range(1, 12))]
    forth = judge(tid("a"), content_of(Fragment(tid("a"), tuple(spans))), (), RULES, {}, cut=False)
    back = judge(
        tid("a"), content_of(Fragment(tid("a"), tuple(spans[::-1]))), (), RULES, {}, cut=False
    )
    assert forth.reductions == back.reductions
    assert forth.forensics == back.forensics
    assert forth.part(False) == back.part(False)
    assert forth.around(sid(5)) == back.around(sid(5))


def test_a_tool_span_without_a_model_version_has_its_callers() -> None:
    """Drift of a model version would else miss the tools that it calls."""
    spans = (
        scored(0, None, 0.1, role="planner", model_version="gpt-x"),
        scored(1, 0, 0.2, model_version="unknown"),
    )
    judged = judge(tid("a"), content_of(Fragment(tid("a"), spans)), (), RULES, {}, cut=False)
    assert [span.model_version for span in judged.members] == ["gpt-x", "gpt-x"]
    part = judged.part(False)
    assert part is not None
    assert {part.names[group.model_version] for group in part.groups} == {"gpt-x"}


def test_of_a_rejected_trace_no_version_is_inferred() -> None:
    spans = (
        scored(0, None, 0.1, role="planner", model_version="gpt-x"),
        scored(1, 0, 0.2, model_version="unknown"),
        scored(1, 0, 0.2, model_version="unknown", name="another"),
    )
    judged = judge(tid("a"), content_of(Fragment(tid("a"), spans)), (), RULES, {}, cut=False)
    assert {span.model_version for span in judged.members[1:]} == {"unknown"}
