from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from monitor.model import Span
from monitor.policy.causal import ByTime, parts
from monitor.policy.flow import tokens, user_request
from monitor.trace.identity import examine
from tests.trace.truth import detail, sid, span
from tests.trace.truth import tokens as packed


@st.composite
def forests(draw: st.DrawFn) -> list[Span]:
    return [
        span(
            n,
            draw(st.none() | st.integers(0, n - 1) | st.just(99)) if n else None,
            draw(st.integers(0, 5)),
        )
        for n in range(draw(st.integers(1, 15)))
    ]


@given(forests(), st.integers(0, 2**32))
def test_order_is_structure_then_time(spans: list[Span], seed: int) -> None:
    trees = parts(examine(spans, (), redelivery="collapse"))
    order = [s.span_id for part in trees for s in part.spans]
    assert sorted(order) == sorted(s.span_id for s in spans)
    for part in trees:
        assert [part.entered[s.span_id] for s in part.spans] == sorted(part.entered.values())
        for one in part.spans:
            enter, leave = part.entered[one.span_id], part.left[one.span_id]
            assert enter < leave
            if one.parent_span_id in part.entered:
                assert part.entered[one.parent_span_id] < enter
                assert leave < part.left[one.parent_span_id]
        siblings: dict[str | None, list[Span]] = {}
        for one in part.spans:
            siblings.setdefault(one.parent_span_id, []).append(one)
        for family in siblings.values():
            for elder, younger in itertools.pairwise(family):
                assert part.left[elder.span_id] < part.entered[younger.span_id]
                assert (elder.start_unix_nano, elder.span_id) <= (
                    younger.start_unix_nano,
                    younger.span_id,
                )
    shuffled = random.Random(seed).sample(spans, len(spans))
    again = parts(examine(shuffled, (), redelivery="collapse"))
    assert [[s.span_id for s in part.spans] for part in again] == [
        [s.span_id for s in part.spans] for part in trees
    ]


def test_real_roots_come_before_parts_without_a_parent() -> None:
    trees = parts(
        examine([span("late", "gone", 0.5), span("root", at=9)], (), redelivery="collapse")
    )
    assert [(part.spans[0].span_id, part.rooted) for part in trees] == [
        (sid("root"), True),
        (sid("late"), False),
    ]


def test_a_chain_of_ten_thousand() -> None:
    (part,) = parts(
        examine([span(n, n - 1 if n else None) for n in range(10_000)], (), redelivery="collapse")
    )
    assert part.depth[sid(9_999)] == 9_999
    assert part.left[sid(9_999)] < part.left[sid(0)]


def test_by_time_a_span_without_an_end_is_left_when_it_starts() -> None:
    track = ByTime([span("b", at=2, end_unix_nano=0), span("a", at=1)])
    assert [s.span_id for s in track.spans] == [sid("a"), sid("b")]
    assert track.left[sid("b")] == track.entered[sid("b")] == 2_000_000_000


def test_tokens_are_sets_of_whole_hashes() -> None:
    assert tokens(None) == tokens(b"") == frozenset()
    assert len(tokens(packed("a", "b", "a"))) == 2
    assert tokens(packed("a") + b"torn") == tokens(packed("a"))


def test_the_request_is_what_the_root_says_or_every_span_of_its_service_below_it() -> None:
    def request(*spans: Span) -> frozenset[int] | None:
        return user_request(parts(examine(spans, (), redelivery="collapse")))

    root = span("root", detail=detail(asked=("a",)))
    bare = span("root")
    below = span("x", "root", 2, detail=detail(asked=("b", "c")))
    beside = span("y", "root", 3, detail=detail(asked=("c", "d")))
    deeper = span("z", "x", 4, detail=detail(asked=("d",)))
    other = span("q", "root", 4, service="other", detail=detail(asked=("e",)))
    orphan = span("o", "gone", 4, detail=detail(asked=("e",)))
    assert request(root, below, deeper) == tokens(packed("a"))
    assert request(bare, below) == request(bare, below, other) == tokens(packed("b", "c"))
    assert request(bare, below, beside) == tokens(packed("c"))
    assert request(bare, below, beside, deeper) == request(bare, other) == frozenset()
    assert request(bare, orphan) is None
    assert request(span("root", detail=detail(asked=())), below) == frozenset()
