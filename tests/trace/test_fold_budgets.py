"""Budgets of a partition, lives that were cut, and what stays of them."""

from __future__ import annotations

import msgspec

from monitor.codec import encode_fold_record
from monitor.model import Fragment, Score, Source, Span
from monitor.policy.rules import Policy, Step
from monitor.trace.config import FoldSettings, Lifecycle
from monitor.trace.content import Content
from monitor.trace.life import LIFE_BYTES, Life
from monitor.trace.pieces import ITEM_BYTES, items_weight, pieces
from monitor.trace.residue import RESIDUE_BYTES, SPAN_BYTES, residue_of
from monitor.trace.rules import Rules
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
from tests.trace.truth import detail, sid

SPAN = ITEM_BYTES + len(msgspec.msgpack.encode(scored(0, None, 0.1)))
CHILD = ITEM_BYTES + len(msgspec.msgpack.encode(scored(1, 0, 0.1)))
LIFE = LIFE_BYTES + SPAN  # of one root
TWO_LIVES = (2 * LIFE + CHILD) * 4 // 3 + 2  # a quarter of it is for residues


def test_a_fragment_weighs_what_its_items_weigh_however_it_is_cut() -> None:
    for n in (1, 15, 16, 40):
        whole = Fragment(
            tid("a"),
            tuple(scored(i, 0) for i in range(n)),
            (late_score(1, 0.5),) * n,
            (unusable(0.1),),
        )
        raw = encode_fold_record(whole)
        alone = list(pieces(raw, whole))
        assert items_weight(raw, whole) == sum(size for _, _, size in alone)
        assert [items_weight(r, f) for r, f, _ in alone] == [size for _, _, size in alone]
        assert len(alone) == 2 * n + 1


def test_open_lives_over_the_budget_close_oldest_birth_first() -> None:
    log = Log(settings_of(open_bytes=3 * LIFE))
    log.spans("a", scored(0), at=0)
    log.spans("b", scored(0), at=0)
    log.spans("c", scored(0), at=0)
    assert log.verdicts == []
    log.spans("d", scored(0), at=0)
    assert [(v.trace_id, v.closed_by, v.cut) for v in log.verdicts] == [
        (tid("a"), "pressure", True)
    ]
    assert log.fold.bytes_open == 3 * LIFE


def test_a_life_larger_than_the_budget_closes_by_itself_and_goes_on_late() -> None:
    log = Log(settings_of(open_bytes=LIFE_BYTES + 2 * CHILD))
    log.spans("a", *(scored(n, 0) for n in range(1, 6)), at=0)
    assert [(v.closed_by, v.span_count) for v in log.verdicts] == [("pressure", 3)]
    log.until(5)
    assert [(v.revision, v.span_count) for v in log.verdicts] == [(1, 3), (2, 5)]


def test_closed_lives_leave_by_their_lowest_last_number() -> None:
    log = Log(settings_of(root_grace_ms=1_000, closed_bytes=TWO_LIVES))
    log.spans("a", scored(0), at=0)
    log.until(1)
    log.spans("b", scored(0), at=2)
    log.until(3)
    log.spans("a", scored(1, 0), at=4)
    log.until(5)  # a's revision is number 2, b's closing number 1
    log.spans("c", scored(0), at=6)
    log.until(7)
    assert log.fold.in_closed_memory((tid("a"), 1))
    assert not any(log.fold.in_closed_memory((tid("b"), n)) for n in range(20))
    assert log.fold.counters["evicted_by_budget"] == 1
    assert log.restored().closed_lives == log.fold.closed_lives == 2


def test_the_last_closed_life_stays_though_it_is_over_the_budget_alone() -> None:
    """Else a record that closes the life it opened would open another one of the same name."""
    log = Log(settings_of(max_spans=2, closed_bytes=100))
    log.spans("a", scored(0), scored(1, 0), scored(2, 0, 0.9), at=0)
    assert [(v.life, v.revision) for v in log.verdicts] == [(1, 1)]
    assert [i.provenance.life for i in log.incidents] == [1]
    assert log.fold.in_closed_memory((tid("a"), 1))


def test_a_score_that_waited_for_a_span_past_max_spans_is_judged_and_stays_alone() -> None:
    log = Log(settings_of(max_spans=2, late_window_ms=6_000))
    log.scores("a", late_score(2, 0.5, role="retrieval"), at=0)
    log.spans("a", scored(0), scored(1, 0), at=0)
    assert log.incidents == []
    [page] = log.spans("a", scored(2, 0, None), at=1)  # a tool call: its threshold is 0.30
    assert page.argmax_role == "tool_call"
    log.until(6)
    assert [d.span_id for d in log.dead_letters] == [sid(2)]


def test_a_dirty_life_is_revised_before_the_budget_takes_it() -> None:
    log = Log(settings_of(root_grace_ms=1_000, revision_flush_ms=60_000, closed_bytes=TWO_LIVES))
    log.spans("a", scored(0), at=0)
    log.spans("b", scored(0), at=1.5)
    log.spans("a", scored(1, 0), at=1.6)
    log.until(3)
    assert [(v.trace_id, v.revision) for v in log.verdicts] == [(tid("a"), 1), (tid("b"), 1)]
    log.spans("c", scored(0), at=4)
    log.until(5)
    assert (tid("a"), 2, 2) in [(v.trace_id, v.revision, v.span_count) for v in log.verdicts]
    assert not log.fold.in_closed_memory((tid("a"), 1))
    # The entry of that revision says that the life is gone: a restore must not bring it back.
    assert log.restored().snapshot() == log.fold.snapshot()
    assert log.restored().closed_lives == log.fold.closed_lives


def test_a_smaller_budget_in_new_settings_holds_at_once() -> None:
    log = Log(settings_of())
    for name in "abc":
        log.spans(name, scored(0), at=0)
    log.put(settings_record(settings_of(open_bytes=LIFE), (0, 2)))
    assert [v.closed_by for v in log.verdicts] == ["pressure", "pressure"]


def test_a_cut_life_enters_no_drift_sums_and_is_counted() -> None:
    log = Log(settings_of(max_spans=2))
    log.spans("a", scored(0), scored(1, 0), at=0)
    log.until(61)
    assert log.deltas == []
    assert log.fold.counters["cut"] == 1


DEFAULT = FoldSettings()
RULES = Rules(DEFAULT, DEFAULT.sha256, DEFAULT.canonical())
CUT = Lifecycle(max_spans=2, late_window_ms=5_000, max_lifetime_ms=60_000, root_grace_ms=1_000)


def test_a_life_born_under_a_residue_continues_it_and_counts_as_cut() -> None:
    log = Log(FoldSettings(lifecycle=CUT))
    log.spans("a", scored(1, 0), scored(2, 0, 0.6, detail=detail("egress")), at=0)
    log.until(6)
    assert log.fold.closed_lives == 0
    assert not log.fold.empty  # its residue is here
    log.spans("a", scored(0), at=7)
    log.until(9)
    last = log.verdicts[-1]
    assert (last.continues, last.cut, last.closed_by, last.span_count) == (
        1,
        True,
        "root_complete",
        1,
    )
    log.until(61)
    assert log.deltas == []
    assert log.fold.counters["continued"] == 1


def test_a_residue_stays_for_max_lifetime_and_no_longer() -> None:
    log = Log(FoldSettings(lifecycle=CUT))
    log.spans("a", scored(1, 0), scored(2, 0), at=0)  # gone at 5 s
    log.until(64.9)
    assert not log.fold.empty
    log.until(65)
    assert log.fold.empty
    log.spans("a", scored(0), at=65)
    log.until(67)
    assert log.verdicts[-1].continues is None


def test_a_residue_stays_for_the_max_lifetime_of_its_own_settings() -> None:
    log = Log(FoldSettings(lifecycle=CUT))
    log.spans("a", scored(1, 0), scored(2, 0), at=0)
    log.put(settings_record(settings_of(max_lifetime_ms=1_000), (0, 2)))
    log.until(64.9)
    assert not log.fold.empty
    log.until(65)
    assert log.fold.empty


def test_a_residue_is_bounded_and_skips_what_is_too_large() -> None:
    large = scored("large", 0, detail=detail("egress", given=tuple(map(str, range(9_000)))))
    small = [scored(n, 0, detail=detail("egress")) for n in range(1, 100)]
    life = Life(tid("a"), 1, 0, RULES, 0)
    life.content = Content()
    life.content.add(Fragment(tid("a"), (scored(0), *small, scored("elevated", 0, 0.9), large)))
    residue = residue_of(life, 5)
    assert len(residue.spans) == 63  # of the 64 that rank first one is too large
    assert residue.bytes < 200_000  # decoded: a residue may hold 64 kB of encoded spans
    assert residue.spans[-1].span_id == sid("elevated")  # in order of arrival
    assert residue.spans[0].span_id == sid(38)  # the latest tagged ones


def test_an_uncut_life_leaves_nothing() -> None:
    log = Log(FoldSettings(lifecycle=CUT))
    log.spans("a", scored(0), at=0)
    log.until(60)
    assert log.fold.empty


def test_residues_have_a_quarter_of_the_closed_budget_oldest_out_first() -> None:
    """Each holds one tagged span; the quarter holds one and a half of them."""
    span = scored(1, 0, detail=detail("egress"))
    size = RESIDUE_BYTES + SPAN_BYTES + 2 * len(msgspec.msgpack.encode(span))
    log = Log(FoldSettings(lifecycle=msgspec.structs.replace(CUT, closed_bytes=6 * size)))
    for at, name in enumerate("abc"):
        log.spans(name, span, scored(2, 0), at=at)
    log.until(8)
    assert log.fold.counters["residues_dropped"] == 2
    for name in "abc":
        log.spans(name, scored(0), at=8)
    log.until(10)
    assert [v.continues for v in log.verdicts[-3:]] == [None, None, 3]


POLICY = Policy(
    "read then send",
    "compositional_exfiltration",
    steps=(
        Step("read", tags=("private_read",)),
        Step("send", tags=("egress",), flow_from=("read",)),
    ),
)


def read_and_send() -> tuple[Span, Span]:
    read = scored(
        "read", 0, at=1, role="retrieval", detail=detail("private_read", result=("secret",))
    )
    send = scored(
        "send",
        0,
        at=2,
        detail=detail("egress", given=("secret",), result=None),
        source=Source("agent-spans", 0, 5, 0, START + 77),
    )
    return read, send


def test_composition_reaches_back_over_a_cut_by_argument_flow() -> None:
    read, send = read_and_send()
    log = Log(FoldSettings(lifecycle=CUT, policies=(POLICY,)))
    log.spans("a", scored(0, detail=detail(asked=("hello",))), read, at=0)
    log.until(6)
    assert [i for i in log.incidents if i.reason == "policy"] == []
    log.spans("a", send, at=7)
    log.until(40)
    [page] = [i for i in log.incidents if i.reason == "policy"]
    assert page.policy == "read then send"
    assert page.policy_class == "compositional_exfiltration"
    assert page.provenance.life != 1
    assert {sid("read"), sid("send")} <= {e.span_id for e in page.evidence}
    assert log.verdicts[-1].continues == 1


def test_what_lies_in_the_residue_alone_is_not_said_again() -> None:
    read, send = read_and_send()
    lifecycle = msgspec.structs.replace(CUT, max_spans=3)
    log = Log(FoldSettings(lifecycle=lifecycle, policies=(POLICY,)))
    log.spans("a", scored(0, detail=detail(asked=("hello",))), read, send, at=0)
    log.until(6)
    assert {i.provenance.life for i in log.incidents if i.reason == "policy"} == {1}
    log.spans("a", scored("more", 0), at=7)
    log.until(40)
    assert log.verdicts[-1].continues == 1
    assert {i.provenance.life for i in log.incidents if i.reason == "policy"} == {1}


def test_a_policy_pages_at_closing_under_its_own_incident() -> None:
    read, send = read_and_send()
    log = Log(FoldSettings(policies=(POLICY,)))
    log.spans("a", scored(0, None, 0.2, detail=detail(asked=("hello",))), read, send, at=0)
    assert log.incidents == []
    log.until(10)
    [page] = log.incidents
    assert (page.reason, page.policy, page.severity) == ("policy", "read then send", "critical")
    assert (page.scorer, page.max_score, page.threshold) == ("judge", 0.2, None)
    assert page.argmax_span_id == sid(0)  # of a lower trace the reduction's
    assert page.neighbourhood.centre == sid("send")
    assert page.caused_at_ms == START + 77


def test_a_rejected_trace_pages_by_the_steps_in_any_order() -> None:
    read, send = read_and_send()
    log = Log(FoldSettings(policies=(POLICY,)))
    log.spans("a", scored(0), send, read, scored("x", "x", 0.0), at=0)
    log.until(30)
    [page] = log.incidents
    assert (page.reason, page.severity, page.policy_class) == (
        "identity",
        "critical",
        "compositional_exfiltration",
    )
    assert page.neighbourhood.status == "refused"


HOT = Policy(
    "hot read then send",
    "compositional_exfiltration",
    steps=(
        Step("read", tags=("private_read",), min_score=0.2),
        Step("send", tags=("egress",), flow_from=("read",)),
    ),
)


def test_a_lower_score_that_comes_later_does_not_hide_a_step_from_composition() -> None:
    """Whoever may score a span could else take it out of a policy's sight."""
    read, send = read_and_send()
    read = msgspec.structs.replace(read, scores=(Score("judge", "1", 0.25),))
    log = Log(FoldSettings(policies=(HOT,)))
    log.spans("a", scored(0, None, 0.2, detail=detail(asked=("hello",))), read, send, at=0)
    log.scores("a", late_score("read", 0.0, service="evil"))
    log.until(10)
    assert [i.policy for i in log.incidents] == ["hot read then send"]


def test_a_lower_score_does_not_hide_a_step_across_a_cut() -> None:
    read, send = read_and_send()
    read = msgspec.structs.replace(read, scores=(Score("judge", "1", 0.25),))
    log = Log(FoldSettings(lifecycle=CUT, policies=(HOT,)))
    log.spans("a", scored(0, detail=detail(asked=("hello",))), read, at=0)
    log.scores("a", late_score("read", 0.0, service="evil"), at=1)
    log.until(8)
    log.spans("a", send, at=9)
    log.until(40)
    assert [i.policy for i in log.incidents if i.reason == "policy"] == ["hot read then send"]


def test_an_id_of_a_cut_life_that_comes_again_as_another_span_is_rejected() -> None:
    """It would else take the place of the step that the residue kept."""
    read, send = read_and_send()
    log = Log(FoldSettings(lifecycle=CUT, policies=(POLICY,)))
    log.spans("a", scored(0, detail=detail(asked=("hello",))), read, at=0)
    log.until(6)
    log.spans("a", send, scored("read", 0, name="harmless"), at=7)
    log.until(40)
    last = log.verdicts[-1]
    assert last.forensics.status == "rejected"
    first = last.forensics.faults[0]
    assert (first.kind, first.count) == ("duplicate_conflicting", 1)
    [page] = [i for i in log.incidents if i.reason == "identity" and i.life == last.life]
    assert (page.severity, page.policy_class) == ("critical", "compositional_exfiltration")


def test_a_span_of_a_cut_life_that_is_delivered_again_is_no_fault() -> None:
    read, send = read_and_send()
    log = Log(FoldSettings(lifecycle=CUT, policies=(POLICY,)))
    log.spans("a", scored(0, detail=detail(asked=("hello",))), read, at=0)
    log.until(6)
    log.spans("a", read, send, at=7)
    log.until(40)
    assert log.verdicts[-1].forensics.status != "rejected"


def test_a_borrowed_id_does_not_take_a_steps_only_score_out_of_the_policies_sight() -> None:
    read, send = read_and_send()
    read = msgspec.structs.replace(read, scores=())
    thief = scored("read", 0, None, service="evil", name="evil")
    log = Log(FoldSettings(policies=(HOT,)))
    log.spans("a", scored(0, None, 0.2, detail=detail(asked=("hello",))), read, send, thief, at=0)
    log.scores("a", late_score("read", 0.25))
    log.until(30)
    [page] = [i for i in log.incidents if i.reason == "identity"]
    assert (page.severity, page.policy_class) == ("critical", "compositional_exfiltration")
