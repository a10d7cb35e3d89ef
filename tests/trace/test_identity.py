from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.model import Source, Span, SpanFault
from monitor.trace.identity import FAULT_CLASS, LISTED_IDS, examine
from tests.trace.truth import cpu_seconds, sid, span


@dataclass(frozen=True)
class Shape:
    """What a trace looks like, and what must be said of it: status, and each fault with its spans."""

    name: str
    spans: list[Span]
    status: str
    faults: dict[str, list[str]] = field(default_factory=dict)
    redelivered: int = 0
    kept: int | None = None
    unusable: tuple[str, ...] = ()
    redelivery: str = "collapse"


A = span("a")
COPY = span("b", "a", 2)
TIMELESS = span("b", "a", 0)

SHAPES = [
    Shape("one span", [A], "complete"),
    Shape("flat", [A, span("b", "a"), span("c", "a")], "complete"),
    Shape("chain", [A, span("b", "a"), span("c", "b"), span("d", "c")], "complete"),
    Shape("child before its parent", [span("c", "b"), span("b", "a"), A], "complete"),
    Shape(
        "parent that arrives last", [span("b", "a"), span("c", "a"), span("d", "a"), A], "complete"
    ),
    Shape(
        "several services",
        [A, span("b", "a", service="tools"), span("c", "b", service="db")],
        "complete",
    ),
    Shape("child that starts before its parent (clock skew)", [A, span("b", "a", 0.2)], "complete"),
    Shape("judge hangs below what it judges", [A, span("b", "a", kind=1)], "complete"),
    Shape("delivered twice", [A, COPY, COPY], "complete", redelivered=1, kept=2),
    Shape("all delivered three times", [A, COPY] * 3, "complete", redelivered=4, kept=2),
    Shape("root delivered twice", [A, COPY, A], "complete", redelivered=1, kept=2),
    Shape(
        "delivered twice, by another Kafka record",
        [A, COPY, span("b", "a", 2, content_hash=COPY.content_hash, source=Source("spans", 3, 14))],
        "complete",
        redelivered=1,
        kept=2,
    ),
    Shape(
        "delivered twice where that is refused",
        [A, COPY, COPY],
        "rejected",
        {"duplicate_redelivered": ["b"]},
        redelivered=1,
        kept=2,
        redelivery="reject",
    ),
    Shape(
        "copies without times",
        [A, TIMELESS, TIMELESS],
        "rejected",
        {"duplicate_conflicting": ["b"]},
        kept=3,
    ),
    Shape(
        "copies that never ended",
        [A, *[span("b", "a", 2, end_unix_nano=0)] * 2],
        "rejected",
        {"duplicate_conflicting": ["b"]},
    ),
    Shape(
        "copies without a content hash",
        [A, *[span("b", "a", content_hash=b"")] * 2],
        "rejected",
        {"duplicate_conflicting": ["b"]},
    ),
    Shape(
        "one id, other content",
        [A, span("b", "a", name="search"), span("b", "a", name="send")],
        "rejected",
        {"duplicate_conflicting": ["b"]},
        kept=3,
    ),
    Shape(
        "one id, other content, and one copy sent again",
        [
            A,
            span("b", "a", name="search"),
            span("b", "a", name="send"),
            span("b", "a", name="search"),
        ],
        "rejected",
        {"duplicate_conflicting": ["b"]},
        redelivered=1,
        kept=3,
    ),
    Shape(
        "one id under two parents",
        [A, span("c", "a"), span("b", "a", content_hash=b"x"), span("b", "c", content_hash=b"x")],
        "rejected",
        {"duplicate_conflicting": ["b"]},
    ),
    Shape(
        "two sub-agents with their own counters",
        [A, *[span(n, "a", service=s) for s in ("planner", "retriever") for n in (1, 2)]],
        "rejected",
        {"duplicate_conflicting": [1, 2]},
    ),
    Shape(
        "two tenants under one trace id",
        [span("a", service="tenant 1"), span("a", service="tenant 2")],
        "rejected",
        {"duplicate_conflicting": ["a"]},
    ),
    Shape(
        "ids used again by a restarted process",
        [A, span("b", "a", 2), span("a", at=60), span("b", "a", 62)],
        "rejected",
        {"duplicate_conflicting": ["a", "b"]},
        kept=4,
    ),
    Shape("its own parent", [A, span("b", "b")], "rejected", {"self_parent": ["b"]}),
    Shape(
        "only span, its own parent",
        [span("b", "b")],
        "rejected",
        {"self_parent": ["b"], "no_root": []},
    ),
    Shape(
        "two in a circle",
        [span("b", "c"), span("c", "b")],
        "rejected",
        {"cycle": ["b", "c"], "no_root": []},
    ),
    Shape(
        "circle beside a good root",
        [A, span("x", "a"), span("b", "d"), span("c", "b"), span("d", "c")],
        "rejected",
        {"cycle": ["b", "c", "d"]},
    ),
    Shape(
        "tail that hangs on a circle",
        [A, span("b", "c"), span("c", "b"), span("t", "b"), span("u", "t")],
        "rejected",
        {"cycle": ["b", "c"]},
    ),
    Shape(
        "two circles",
        [A, span(1, 2), span(2, 1), span(3, 4), span(4, 5), span(5, 3)],
        "rejected",
        {"cycle": [1, 2, 3, 4, 5]},
    ),
    Shape("parent is missing", [A, span("b", "gone")], "incomplete", {"missing_parent": ["b"]}),
    Shape(
        "parent in another trace",
        [span("b", "elsewhere")],
        "incomplete",
        {"missing_parent": ["b"], "no_root": []},
    ),
    Shape(
        "root is missing",
        [span("b", "a"), span("c", "a"), span("d", "b")],
        "incomplete",
        {"missing_parent": ["b", "c"], "no_root": []},
    ),
    Shape(
        "two roots", [A, span("r"), span("b", "a")], "incomplete", {"multiple_roots": ["a", "r"]}
    ),
    Shape(
        "two roots and a missing parent",
        [A, span("r"), span("b", "gone")],
        "incomplete",
        {"missing_parent": ["b"], "multiple_roots": ["a", "r"]},
    ),
    Shape(
        "conflict and a missing parent",
        [A, span("b", "gone"), span("c", "a", name="1"), span("c", "a", name="2")],
        "rejected",
        {"duplicate_conflicting": ["c"], "missing_parent": ["b"]},
    ),
    Shape("a span without an id", [A], "rejected", {"missing_id": []}, unusable=("missing_id",)),
    Shape("a base64 id", [A], "rejected", {"malformed_id": []}, unusable=("malformed_id",)),
    Shape(
        "nothing but spans without ids",
        [],
        "rejected",
        {"missing_id": [], "malformed_id": []},
        kept=0,
        unusable=("malformed_id", "missing_id"),
    ),
    Shape("no span at all", [], "incomplete", {"no_root": []}, kept=0),
]


def test_there_are_enough_shapes() -> None:
    assert len(SHAPES) >= 25
    assert {kind for shape in SHAPES for kind in shape.faults} == set(FAULT_CLASS)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_shape(shape: Shape) -> None:
    faults = [SpanFault(kind) for kind in shape.unusable]
    report = examine(shape.spans, faults, redelivery=shape.redelivery)
    assert report.status == shape.status
    assert {f.kind: list(f.span_ids) for f in report.faults} == {
        kind: sorted(map(sid, names)) for kind, names in shape.faults.items()
    }
    assert report.redelivered == shape.redelivered
    if shape.kept is not None:
        assert len(report.spans) == shape.kept
    assert [f.kind for f in report.faults] == [kind for kind in FAULT_CLASS if kind in shape.faults]


@given(st.sampled_from(SHAPES), st.randoms(use_true_random=False))
def test_order_of_arrival_changes_nothing(shape: Shape, random: object) -> None:
    shuffled = list(shape.spans)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    faults = [SpanFault(kind) for kind in shape.unusable]
    one = examine(shape.spans, faults, redelivery=shape.redelivery)
    other = examine(shuffled, faults, redelivery=shape.redelivery)
    assert (other.status, other.faults, other.redelivered) == (
        one.status,
        one.faults,
        one.redelivered,
    )
    assert sorted(other.roots) == sorted(one.roots)


@st.composite
def forests(draw: st.DrawFn) -> list[Span]:
    """Any parent links among up to 12 ids, ids repeated now and then."""
    n = draw(st.integers(1, 12))
    links = draw(
        st.lists(
            st.tuples(st.integers(0, n), st.one_of(st.none(), st.integers(0, n))),
            min_size=1,
            max_size=15,
        )
    )
    return [span(child, parent) for child, parent in links]


@given(forests())
def test_fast_path_says_what_the_full_examination_says(spans: list[Span]) -> None:
    """A fault elsewhere sends the same spans down the long way."""
    quick = examine(spans, (), redelivery="collapse")
    full = examine(spans, [SpanFault("missing_id")], redelivery="collapse")
    rest = [fault for fault in full.faults if fault.kind != "missing_id"]
    assert [f for f in quick.faults if f.kind != "no_root"] == rest
    assert (quick.status == "complete") == (not quick.faults)
    assert quick.redelivered == full.redelivered
    assert list(quick.spans) == list(full.spans)


@given(forests())
def test_complete_means_every_span_is_reached_from_the_one_root(spans: list[Span]) -> None:
    report = examine(spans, (), redelivery="collapse")
    reached: set[str] = set()
    level = list(report.roots)
    while level:
        reached.update(level)
        level = [
            child for one in level for child in report.children.get(one, []) if child not in reached
        ]
    whole = len(report.roots) == 1 and reached == {s.span_id for s in spans}
    unique = len(report.spans) == len(report.by_id)
    assert (report.status == "complete") == (whole and unique)


def test_a_thousand_roots_are_counted_and_fifty_listed() -> None:
    report = examine([span(n) for n in range(1000)], (), redelivery="collapse")
    (fault,) = report.faults
    assert (fault.kind, fault.count, len(fault.span_ids)) == ("multiple_roots", 1000, LISTED_IDS)
    assert list(fault.span_ids) == sorted(sid(n) for n in range(1000))[:LISTED_IDS]


@pytest.mark.parametrize("order", [1, -1], ids=["parents first", "children first"])
def test_chain_of_ten_thousand(order: int) -> None:
    spans = [span(n, n - 1 if n else None) for n in range(10_000)][::order]
    assert examine(spans, (), redelivery="collapse").status == "complete"
    ring = [span(n, (n - 1) % 10_000) for n in range(10_000)]
    report = examine(ring, (), redelivery="collapse")
    assert {f.kind: f.count for f in report.faults} == {"cycle": 10_000, "no_root": 1}


@pytest.mark.parametrize("shape", ["chain", "broken chain", "star", "conflicts", "ring"])
def test_cost_grows_with_the_spans(shape: str) -> None:
    """Ten times the spans cost about ten times as much; quadratic would be a hundred."""

    def trace(n: int) -> list[Span]:
        match shape:
            case "chain":
                return [span(i, i - 1 if i else None) for i in range(n)]
            case "broken chain":
                return [span(i, i - 1) for i in range(n)]
            case "star":
                return [span(i, 0 if i else None) for i in range(n)]
            case "conflicts":
                return [span("same", at=1 + i) for i in range(n)]
            case _:
                return [span(i, (i + 1) % n) for i in range(n)]

    few, many = trace(3_000), trace(30_000)
    cost = cpu_seconds(lambda: examine(few, (), redelivery="collapse"))
    assert cpu_seconds(lambda: examine(many, (), redelivery="collapse")) < 40 * cost


def test_pending_says_nothing_of_what_may_still_come() -> None:
    open_trace = examine([span("b", "a")], (), redelivery="collapse")
    assert open_trace.forensics(closed=False).status == "pending"
    assert open_trace.forensics(closed=False).faults == ()
    assert open_trace.forensics(closed=True).status == "incomplete"
    broken = examine([span("b", "b")], (), redelivery="collapse")
    assert broken.forensics(closed=False).status == "rejected"


def test_observation_3_reused_span_ids_are_rejected_not_joined() -> None:
    """Founding text: two sub-agents of one trace count their spans from 1; the join crossed them silently."""
    planner = [
        span(1, "root", 2, service="planner", role="planner"),
        span(2, 1, 3, service="planner", role="tool_call", scores=0.91),
    ]
    retriever = [
        span(1, "root", 2, service="retriever", role="retrieval"),
        span(2, 1, 3, service="retriever", role="retrieval"),
    ]
    report = examine([span("root"), *planner, *retriever], (), redelivery="collapse")
    assert report.status == "rejected"
    (fault,) = report.faults
    assert (fault.kind, set(fault.span_ids)) == ("duplicate_conflicting", {sid(1), sid(2)})
    assert [s.safety_score for s in report.spans if s.span_id == sid(2)] == [
        0.91,
        None,
    ]  # nothing is lost
