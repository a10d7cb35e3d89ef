from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.model import Edge, Link, Neighbourhood, Span
from monitor.trace.identity import examine
from monitor.trace.neighbourhood import DEFAULT, LISTED_GAPS, Budget, neighbourhood
from tests.trace.truth import detail, sid, span

TRACE = "0af7651916cd43dd8448eb211c80319c"
ROOT = span("root", role="planner", detail=detail(asked=("report.txt",)))


def around(spans: list[Span], centre: str, budget: Budget = DEFAULT) -> Neighbourhood:
    report = examine(spans, (), redelivery="collapse")
    return neighbourhood(report, sid(centre), budget, trace_id=TRACE)


def edges(found: Neighbourhood, why: str) -> set[tuple[str, str]]:
    return {(e.cause, e.effect) for e in found.edges if e.why == why}


def pair(cause: str, effect: str) -> tuple[str, str]:
    return (sid(cause), sid(effect))


TREE = [
    ROOT,
    span("read", "root", 2, role="retrieval"),
    span("agent", "root", 3, role="planner"),
    span("call", "agent", 4, role="tool_call"),
    span("under", "call", 5, role="tool_call"),
    span("answer", "root", 6, role="completion"),
    span("cousin", "read", 2.1),
]


def test_ancestors_descendants_and_siblings_in_causal_order() -> None:
    found = around(TREE, "agent")
    assert (found.status, found.centre, found.gaps) == ("edges", sid("agent"), ())
    assert found.span_ids == tuple(map(sid, ["root", "read", "agent", "call", "under", "answer"]))
    assert edges(found, "parent") == {
        pair("root", "read"),
        pair("root", "agent"),
        pair("agent", "call"),
        pair("call", "under"),
        pair("root", "answer"),
    }
    assert edges(found, "sibling_order") == {pair("read", "agent"), pair("agent", "answer")}


def test_structure_goes_before_the_clock() -> None:
    """A child whose service's clock is an hour behind still comes after its parent."""
    spans = [
        span("root", at=5000),
        span("a", "root", 5001),
        span("b", "a", 1400, service="behind"),
        span("c", "a", 5002),
    ]
    found = around(spans, "a")
    assert found.span_ids == tuple(map(sid, ["root", "a", "b", "c"]))
    assert edges(found, "sibling_order") == set()
    assert found.gaps == (
        f"order of siblings {sid('b')} and {sid('c')} is not decided: no common clock",
    )


def test_siblings_that_overlap_have_no_order() -> None:
    spans = [ROOT, span("a", "root", 2), span("b", "root", 2.2), span("c", "root", 4)]
    found = around(spans, "b")
    assert edges(found, "sibling_order") == {pair("b", "c")}
    assert found.gaps == (
        f"order of siblings {sid('a')} and {sid('b')} is not decided: they overlap",
    )


def test_links_both_ways_and_into_other_traces() -> None:
    links = (Link(TRACE, sid("read")), Link("f" * 32, "f" * 16))
    spans = [
        ROOT,
        span("far", "root", 1.1),
        span("read", "far", 2),
        span("call", "root", 4, detail=detail(links=links)),
        span("other", "far", 6, detail=detail(links=(Link(TRACE, sid("call")),))),
    ]
    found = around(spans, "call")
    assert edges(found, "link") == {pair("read", "call"), pair("call", "other")}
    assert found.gaps == (
        f"link to span {'f' * 16} of trace {'f' * 32}: not followed, another trace",
    )


def test_a_link_into_another_trace_is_not_taken_for_a_span_of_the_same_id_here() -> None:
    call = span("call", "root", 4, detail=detail(links=(Link("f" * 32, sid("read")),)))
    spans = [ROOT, span("deep", "root", 1.5), span("read", "deep", 2), call]
    found = around(spans, "call")
    assert edges(found, "link") == set()
    assert sid("read") not in found.span_ids


def test_a_link_to_a_span_that_never_came() -> None:
    found = around([span("root", detail=detail(links=(Link(TRACE, sid("ghost")),)))], "root")
    assert found.gaps == (f"link to span {sid('ghost')}, which never came",)


def test_a_tool_call_id_ties_the_span_that_asked_to_the_one_that_answered() -> None:
    spans = [
        ROOT,
        span("deep", "root", 2),
        span("chat", "deep", 2, role="planner", detail=detail(tool_call_id="call_1")),
        span("call", "root", 4, role="tool_call", detail=detail(tool_call_id="call_1")),
    ]
    assert edges(around(spans, "call"), "tool_call") == {pair("chat", "call")}
    again = span("again", "deep", 3, detail=detail(tool_call_id="call_1"))
    found = around([*spans, again], "call")
    assert edges(found, "tool_call") == set()
    assert "the centre's tool-call id is used by 2 other spans: not followed" in found.gaps


def flowing(**changes: Span) -> list[Span]:
    spans = {
        "root": ROOT,
        "deep": span("deep", "root", 1.5),
        "mail": span(
            "mail", "deep", 2, role="retrieval", detail=detail(result=("eve@x.org", "report.txt"))
        ),
        "send": span(
            "send",
            "root",
            4,
            role="tool_call",
            detail=detail(given=("eve@x.org",), result=("id-777",)),
        ),
        "later": span("later", "deep", 1.6, role="tool_call", detail=detail(given=("id-777",))),
        "erase": span("erase", "root", 6, role="tool_call", detail=detail(given=("id-777",))),
    }
    return list((spans | changes).values())


def test_flow_into_its_arguments_and_out_of_its_result() -> None:
    found = around(flowing(), "send")
    assert edges(found, "flow") == {pair("mail", "send"), pair("send", "erase")}


def test_what_the_user_asked_for_does_not_flow() -> None:
    send = span("send", "root", 4, role="tool_call", detail=detail(given=("report.txt",)))
    assert edges(around(flowing(send=send), "send"), "flow") == set()


def test_no_flow_out_of_a_result_that_was_not_there_yet() -> None:
    slow = span(
        "mail", "root", 2, end_unix_nano=5_000_000_000, detail=detail(result=("eve@x.org",))
    )
    assert edges(around(flowing(mail=slow), "send"), "flow") == {pair("send", "erase")}


def test_no_flow_out_of_what_encloses_it() -> None:
    """A sub-agent's answer holds what its own call was given: the call did not get it from there."""
    outer = span(
        "outer",
        "root",
        2,
        role="tool_call",
        end_unix_nano=9_000_000_000,
        detail=detail(result=("eve@x.org",)),
    )
    inner = span(
        "inner", "outer", 3, role="tool_call", service="other", detail=detail(given=("eve@x.org",))
    )
    assert edges(around([ROOT, outer, inner], "inner"), "flow") == set()


def test_a_missing_parent_is_listed_and_not_bridged() -> None:
    spans = [ROOT, span("b", "gone", 2), span("c", "b", 3)]
    found = around(spans, "c")
    assert found.status == "partial"
    assert found.span_ids == (sid("b"), sid("c"))
    assert edges(found, "parent") == {pair("b", "c")}
    assert found.gaps == (
        f"parent {sid('gone')} of span {sid('b')} never came",
        "missing_parent: 1 in the trace",
    )


def test_siblings_under_a_parent_that_never_came_are_not_drawn_together() -> None:
    found = around([ROOT, span("b", "gone", 2), span("c", "gone", 3)], "c")
    assert found.span_ids == (sid("c"),)
    assert found.edges == ()


def test_flow_reaches_across_a_gap() -> None:
    mail = span("mail", "gone", 2, detail=detail(result=("eve@x.org",)))
    found = around(flowing(mail=mail), "send")
    assert (found.status, edges(found, "flow")) == (
        "partial",
        {pair("mail", "send"), pair("send", "erase")},
    )


def test_refused_where_identity_is_rejected() -> None:
    found = around([ROOT, span("b", "root", name="1"), span("b", "root", name="2")], "root")
    assert (found.status, found.span_ids, found.edges) == ("refused", (), ())
    assert found.gaps


def test_a_centre_that_never_came() -> None:
    found = around([ROOT], "ghost")
    assert (found.status, found.span_ids) == ("partial", ())
    assert found.gaps == (f"span {sid('ghost')} never came",)


def test_budget_of_spans_keeps_what_says_most_and_counts_the_rest() -> None:
    spans = [ROOT, *[span(n, "root", 2 + n) for n in range(20)]]
    spans.append(span("call", "root", 60, detail=detail(given=("v-1",))))
    spans.append(span("deep", 0, 2.1, detail=detail(result=("v-1",))))
    found = around(spans, "call", Budget(hops=5, spans=4))
    assert set(found.span_ids) == set(map(sid, ["call", "root", "deep", 19]))
    assert "4 siblings before it left out: the budget is 4 spans" in found.gaps
    assert "15 siblings left out: the budget is 5 on either side" in found.gaps


def test_budget_of_hops_up_and_down() -> None:
    chain = [span(n, n - 1 if n else None, n + 1) for n in range(20)]
    found = neighbourhood(examine(chain, (), redelivery="collapse"), sid(10), Budget(hops=3))
    assert found.span_ids == tuple(sid(n) for n in range(7, 14))
    assert len(found.gaps) == 2


def test_gaps_are_bounded() -> None:
    links = tuple(Link("f" * 32, f"{n:016x}") for n in range(1, 201))
    found = around([span("root", detail=detail(links=links))], "root")
    assert len(found.gaps) == LISTED_GAPS
    assert found.gaps[-1] == "151 more gaps"


@pytest.mark.parametrize("shape", ["chain", "star"])
def test_ten_thousand_spans(shape: str) -> None:
    spans = [
        span(n, None if not n else n - 1 if shape == "chain" else 0, n + 1) for n in range(10_000)
    ]
    found = around(spans, "5000", Budget(hops=20, spans=30))
    assert len(found.span_ids) == 30
    assert sid(5000) in found.span_ids


@st.composite
def trees(draw: st.DrawFn) -> list[Span]:
    values = ("a-1", "b-2", "c-3")
    some = st.lists(st.sampled_from(values), max_size=2).map(tuple)
    spans = [span(0)]
    for n in range(1, draw(st.integers(1, 14))):
        spans.append(  # noqa: PERF401 - one draw after another reads better
            span(
                n,
                draw(st.integers(0, n - 1)),
                draw(st.sampled_from([0, 1, 2, 3, 4])),
                service=draw(st.sampled_from(["agents", "tools"])),
                role=draw(st.sampled_from(["planner", "tool_call"])),
                detail=detail(
                    given=draw(some),
                    result=draw(some),
                    tool_call_id=draw(st.sampled_from([None, "x", "y"])),
                ),
            )
        )
    return spans


@given(trees(), st.integers(0, 13), st.integers(0, 2**32))
def test_laws(spans: list[Span], centre: int, seed: int) -> None:
    which = str(centre % len(spans))
    found = around(spans, which)
    shuffled = random.Random(seed).sample(spans, len(spans))
    assert around(shuffled, which) == found  # order of arrival does not show
    assert sid(which) in found.span_ids
    assert len(set(found.span_ids)) == len(found.span_ids)
    position = {span_id: n for n, span_id in enumerate(found.span_ids)}
    for edge in found.edges:
        assert isinstance(edge, Edge)
        assert edge.cause in position
        assert edge.effect in position
        if edge.why in ("parent", "sibling_order"):
            assert position[edge.cause] < position[edge.effect]
