"""Model versions that only the trace knows, and model calls that are there twice."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from monitor.model import (
    ALIAS_MODEL,
    MEMBER,
    MODEL_CALL,
    PLAIN,
    UNKNOWN,
    WRAPPER,
    Score,
    Source,
    Span,
    SpanDetail,
)
from monitor.policy.load import BUILTIN
from monitor.trace.attribution import attributed
from monitor.trace.config import FoldSettings
from tests.trace.folding import Log
from tests.trace.truth import span

HIGH = (Score("s", "1", 0.9),)


def call(
    span_id: str, parent: str | None = None, model: str = UNKNOWN, *ids: str, **of: object
) -> Span:
    flags = MODEL_CALL | int(str(of.pop("flags", 0)))
    return Span(
        span_id, "planner", parent_span_id=parent, model_version=model,
        detail=SpanDetail(flags=flags, call_ids=ids), **of,  # type: ignore[arg-type]
    )  # fmt: skip


def tool(span_id: str, parent: str | None = None, call_id: str | None = None) -> Span:
    detail = SpanDetail(tool_call_id=call_id) if call_id else None
    return Span(span_id, "tool_call", parent_span_id=parent, detail=detail)


def other(span_id: str, parent: str | None = None, kind: int = WRAPPER) -> Span:
    return Span(span_id, parent_span_id=parent, kind=kind)


def settle(*spans: Span) -> dict[str, Span]:
    parents = {span.span_id: span.parent_span_id for span in spans}
    return {span.span_id: span for span in attributed(spans, parents)}


def test_tool_takes_the_version_of_the_call_that_asked_for_it() -> None:
    found = settle(
        Span("root", "planner", model_version="agent-alias"),
        call("a", "root", "m-1", "call_1"),
        call("b", "root", "m-2", "call_2"),
        tool("t1", "root", "call_1"),
        tool("t2", "root", "call_2"),
    )
    assert (found["t1"].model_version, found["t2"].model_version) == ("m-1", "m-2")


def test_else_the_nearest_ancestor_through_what_has_none() -> None:
    found = settle(
        Span("root", "planner", model_version="m-0"),
        Span("agent", "planner", parent_span_id="root", model_version="m-1"),
        other("chain", "agent"),
        tool("t", "chain", "call_that_nobody_holds"),
        Span("r", "retrieval", parent_span_id="t"),
    )
    assert (found["t"].model_version, found["r"].model_version) == ("m-1", "m-1")
    assert found["chain"].model_version == UNKNOWN


def test_an_id_that_calls_of_several_versions_hold_decides_nothing() -> None:
    spans = [
        Span("root", "planner", model_version="m-0"),
        call("a", "root", "m-1", "call_1"),
        call("b", "root", "m-2", "call_1"),
        call("c", "root", "m-1", "call_1"),
        tool("t", "root", "call_1"),
    ]
    for order in (spans, spans[::-1]):
        assert settle(*order)["t"].model_version == "m-0"


def test_an_id_that_another_service_holds_too_takes_no_version_away() -> None:
    mine = [call("a", None, "m-1", "call_1", service="agents")]
    mine.append(msgspec.structs.replace(tool("t", None, "call_1"), service="agents"))
    evil = call("e", None, "m-evil", "call_1", service="evil")
    assert settle(*mine, evil)["t"].model_version == "m-1"
    assert (
        settle(mine[1], evil)["t"].model_version == "m-evil"
    )  # a gateway's call: nobody else says


def test_without_any_it_stays_unknown_and_nothing_is_copied() -> None:
    spans = [other("root", kind=PLAIN), tool("t", "root"), tool("u", "missing")]
    parents = {span.span_id: span.parent_span_id for span in spans}
    assert attributed(spans, parents) is spans


def test_own_version_wins_and_planners_get_none() -> None:
    own = Span("t", "tool_call", parent_span_id="root", model_version="own")
    found = settle(
        Span("root", "planner", model_version="m-0"), own, Span("p", "planner", (), "root")
    )
    assert found["t"] is own
    assert found["p"].model_version == UNKNOWN


def test_nothing_else_of_the_span_changes() -> None:
    full = Span(
        "t", "tool_call", HIGH, "root", "shop", "pay", UNKNOWN, 5, 6, MEMBER, b"h", Source("in", 1, 2, 3, 4),
        SpanDetail("pay"),
    )  # fmt: skip
    found = settle(Span("root", "planner", model_version="m-0"), full)["t"]
    assert found == msgspec.structs.replace(full, model_version="m-0")


def test_an_alias_stays_marked() -> None:
    found = settle(call("a", None, "latest", "call_1", flags=ALIAS_MODEL), tool("t", "a", "call_1"))
    detail = found["t"].detail
    assert found["t"].model_version == "latest"
    assert detail is not None
    assert (detail.flags, detail.tool_call_id) == (ALIAS_MODEL, "call_1")


def kinds(found: dict[str, Span]) -> dict[str, int]:
    return {span_id: span.kind for span_id, span in found.items()}


def test_three_nested_spans_of_one_call_count_once() -> None:
    found = settle(call("a"), call("b", "a"), other("chain", "b"), call("c", "chain"))
    assert kinds(found) == {"a": WRAPPER, "b": WRAPPER, "chain": WRAPPER, "c": MEMBER}


def test_of_two_the_scored_one_stays_and_two_scored_ones_both() -> None:
    outer = settle(call("a", scores=HIGH), call("b", "a"))
    assert kinds(outer) == {"a": MEMBER, "b": WRAPPER}
    inner = settle(call("a"), call("b", "a", scores=HIGH))
    assert kinds(inner) == {"a": WRAPPER, "b": MEMBER}
    both = settle(call("a", scores=HIGH), call("b", "a", scores=HIGH))
    assert kinds(both) == {"a": MEMBER, "b": MEMBER}


def test_calls_of_an_agent_or_a_tool_between_them_are_calls_of_their_own() -> None:
    agent = Span("agent", "planner", parent_span_id="a")
    found = settle(call("a"), agent, call("b", "agent"), tool("t", "b"), call("c", "t"))
    assert set(kinds(found).values()) == {MEMBER}
    # Siblings are two calls.
    assert set(kinds(settle(call("a"), call("b"))).values()) == {MEMBER}


def test_another_services_call_doubles_none() -> None:
    """Any service may hang a span below this one's, or this one's below its own: neither takes a call out."""
    victim = call("victim", service="agents")
    assert kinds(settle(victim, call("evil", "victim", service="evil"))) == {
        "victim": MEMBER,
        "evil": MEMBER,
    }
    below = call("inner", "evil", service="agents")
    above = call("evil", scores=HIGH, service="evil")
    assert kinds(settle(above, below)) == {"evil": MEMBER, "inner": MEMBER}


def test_a_call_of_another_role_is_another_call() -> None:
    answer = msgspec.structs.replace(call("a"), role="completion")
    assert set(kinds(settle(answer, call("b", "a"))).values()) == {MEMBER}


def test_a_rise_is_not_hidden_by_a_call_below_the_answer() -> None:
    settings = FoldSettings(policies=BUILTIN)
    flags = SpanDetail(flags=MODEL_CALL)
    rise = [
        span(n, "root", 1 + n, role="planner", scores=score)
        for n, score in enumerate((0.05, 0.10, 0.17, 0.25))
    ]
    answer = span("answer", "root", 50, role="completion", detail=flags)
    evil = span("evil", "answer", 50.1, role="planner", service="evil", detail=flags)
    for more in ([], [evil]):
        log = Log(settings)
        log.spans("t", span("root"), *rise, answer, *more)
        log.until(60)
        assert [i.policy for i in log.incidents] == ["multi_step_jailbreak"]


def test_a_chain_as_deep_as_the_trace_is_walked_once() -> None:
    spans: list[Span] = [Span("0", "planner", model_version="m")]
    spans += [other(str(i), str(i - 1)) for i in range(1, 10_000)]
    spans += [tool(f"t{i}", str(i)) for i in range(0, 10_000, 2)]
    start = time.perf_counter()
    found = settle(*spans)
    assert time.perf_counter() - start < 2
    assert {s.model_version for i, s in found.items() if i[0] == "t"} == {"m"}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 9)), max_size=12), st.randoms())
def test_order_of_arrival_changes_nothing(shape: Sequence[tuple[int, int]], random: object) -> None:
    spans = []
    for place, (what, parent) in enumerate(shape):
        above = str(parent) if 0 <= parent < place else None
        name = str(place)
        spans.append(
            (
                call(name, above),
                tool(name, above, "c"),
                other(name, above),
                call(name, above, "m", "c"),
            )[what]
        )
    shuffled = list(spans)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert settle(*shuffled) == settle(*spans)
