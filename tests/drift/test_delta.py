"""Contributions and their sums: exact, free of order, retractable, splittable."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.drift.bins import BINS, CUT_BINS, SCALE, UPPERS, J, bin_of
from monitor.drift.delta import (
    MAX_HELD,
    UNSCORED,
    BaselineControl,
    DeltaAccumulator,
    ScoreDelta,
    TracePart,
    decode_message,
    delta_key,
    encode_message,
    trace_part,
)
from monitor.drift.part import MAX_PLACES, MAX_UNSCORED, OTHER
from monitor.drift.values import total_key
from monitor.errors import UndecodableRecord
from monitor.model import ROLES, Score, Span


def part(scores: list[float], *, role: str = "planner", incident: bool = False, model: str = "m1"):
    spans = [
        Span(f"{i:016x}", role, (Score("guard", "1", v),), service="svc", model_version=model)
        for i, v in enumerate(scores)
    ]
    return trace_part(
        spans,
        verdict_service="svc",
        verdict_model_version=model,
        threshold_of=lambda *_: 0.3,
        incident=incident,
    )


scores = st.floats(0, 1) | st.integers(0, 1000).map(lambda k: k / 1000)
spans = st.lists(
    st.builds(
        Span,
        span_id=st.uuids().map(lambda u: u.hex[:16]),
        role=st.sampled_from(["planner", "tool_call", "unknown"]),
        scores=st.lists(
            st.builds(
                Score, scorer=st.sampled_from("ab"), version=st.sampled_from("12"), value=scores
            ),
            max_size=2,
            unique_by=lambda s: (s.scorer, s.version),
        ).map(tuple),
        service=st.sampled_from(["s1", "s2"]),
        model_version=st.sampled_from(["m1", "m2"]),
    ),
    min_size=1,
    max_size=40,
)


def part_of(members: list[Span], incident: bool = False, service: str = "s1"):
    return trace_part(
        members,
        verdict_service=service,
        verdict_model_version="m1",
        threshold_of=lambda *_: 0.3,
        incident=incident,
    )


parts = st.lists(
    st.tuples(st.integers(0, 2), st.builds(part_of, spans, st.booleans())), min_size=1, max_size=6
)


def span_of(i: int, service: str, model: str, scorers: list[str], role: str = "planner") -> Span:
    scores = tuple(Score(name, "1", 0.5) for name in scorers)
    return Span(f"{i:016x}", role, scores, service=service, model_version=model)


def groups_of(p: TracePart) -> set[tuple[str, str, str, str, str]]:
    return {
        (
            p.names[g.service],
            p.names[g.scorer],
            p.names[g.scorer_version],
            p.names[g.role],
            p.names[g.model_version],
        )
        for g in p.groups
    }


@pytest.mark.parametrize("scorers", [1, 32, 1000])
@pytest.mark.parametrize("places", ["services", "versions"])
def test_a_traces_contribution_is_no_larger_than_the_trace(places: str, scorers: int) -> None:
    """Every span of a service or model version of its own, long names, all scorers seen early."""
    members = [
        span_of(
            i,
            f"s{i}" * 20 if places == "services" else "svc",
            f"m{i}" * 20 if places == "versions" else "m",
            [f"scorer-{i}" * 8] if i < scorers else [],
            ROLES[i % 5],
        )
        for i in range(2000)
    ]
    p = part_of(members)
    given = sum(len(s.scores) for s in members)
    assert len(p.groups) <= given + MAX_UNSCORED
    size = len(msgspec.msgpack.encode(members))
    assert len(msgspec.msgpack.encode(p)) < size
    pairs = {(service, model) for service, _, _, _, model in groups_of(p)}
    assert len(pairs) <= MAX_PLACES + 1
    scored = sum(len(g.bins) // 2 for g in p.groups)
    assert scored == given  # what is past the bound counts under another name, not nowhere
    assert sum(p.role_counts) == len(members)


def test_the_first_places_of_a_trace_keep_their_names_when_more_come_late() -> None:
    early = [span_of(i, f"s{i}", "m", ["g"]) for i in range(MAX_PLACES + 3)]
    late = [span_of(99, "a-new-one", "m", ["g"]), span_of(98, "s0", "m", ["g"])]
    before, after = groups_of(part_of(early)), groups_of(part_of(early + late))
    assert before == after
    services = {service for service, *_ in after}
    # Beside them the trace's own service, which is s1 here, has places of its own.
    assert services == {f"s{i}" for i in range(MAX_PLACES + 1)} | {OTHER}


def test_made_up_versions_of_another_service_do_not_push_out_the_traces_own() -> None:
    made_up = [span_of(i, "evil", f"m{i}", ["g"]) for i in range(3 * MAX_PLACES)]
    own = [span_of(900, "svc", "gpt-x", ["g"])]
    part = part_of(made_up + own, service="svc")
    assert ("svc", "gpt-x") in {(service, model) for service, _, _, _, model in groups_of(part)}


def test_which_scorers_count_as_missing_is_in_order_of_arrival() -> None:
    """Not in the order of a hash, which every process has its own of."""
    members = [span_of(0, "svc", "m", [f"g{i}" for i in range(200)])]
    members += [span_of(1, "svc", "m", [], "tool_call"), span_of(2, "svc", "m", [], "retrieval")]
    p = part_of(members)
    missing = [(p.names[g.role], p.names[g.scorer]) for g in p.groups if not g.bins]
    assert missing[:200] == [("tool_call", f"g{i}") for i in range(200)]
    assert missing[200:] == [("retrieval", f"g{i}") for i in range(MAX_UNSCORED - 200)]


@given(st.floats(0, 1))
def test_bin_is_the_least_with_the_score_at_or_under_its_upper_end(value: float) -> None:
    k = bin_of(value)
    assert value <= UPPERS[k]
    assert k == 0 or value > UPPERS[k - 1]


def test_rounded_decimals_sit_on_upper_ends() -> None:
    for k in range(1000):
        assert bin_of(round(k * 0.001, 3)) == k
        assert bin_of(math.nextafter(k / 1000, 2)) == k + 1
        assert k == 0 or bin_of(math.nextafter(k / 1000, -1)) == k
    assert bin_of(1.0) == BINS - 1
    assert bin_of(math.nextafter(1.0, 0)) == BINS - 2
    assert bin_of(-0.0) == 0
    assert bin_of(5e-324) == 1


@given(st.lists(scores, min_size=1, max_size=300))
def test_sums_of_one_trace_follow_the_formulas(values: list[float]) -> None:
    acc = DeltaAccumulator()
    acc.add(7, part(values), 1)
    (delta,) = acc.flush()
    (entry,) = delta.entries
    n = len(values)
    bins = sorted(bin_of(v) for v in values)
    reached = [(2 * SCALE * sum(b <= k for b in bins) + n) // (2 * n) for k in range(BINS)]
    dense = [0] * BINS
    counts = [0] * BINS
    for b, w, c in zip(entry.bins, entry.weights, entry.counts, strict=True):
        dense[b], counts[b] = w, c
    assert sum(dense) == SCALE
    assert [sum(dense[: k + 1]) for k in (*CUT_BINS, 1001)] == [
        reached[k] for k in (*CUT_BINS, 1001)
    ]
    assert counts == [bins.count(k) for k in range(BINS)]
    squares = [0] * J
    for j, q in zip(entry.cuts, entry.squares, strict=True):
        squares[j] = q
    assert [sum(squares[: j + 1]) for j in range(J)] == [
        (reached[k] ** 2 + SCALE // 2) // SCALE for k in CUT_BINS
    ]
    assert (entry.traces, entry.spans, entry.spans2) == (1, n, n * n)
    assert entry.tails == ((0.3, 1, int(max(values) >= 0.3)),)
    assert entry.length == entry.own == int(math.log2(n))


@given(parts, st.randoms(use_true_random=False))
def test_any_order_and_any_grouping_gives_equal_bytes(items, rng: random.Random) -> None:
    one = DeltaAccumulator()
    for window, p in items:
        one.add(window, p, 1)
    shuffled = items[:]
    rng.shuffle(shuffled)
    two, three = DeltaAccumulator(), DeltaAccumulator()
    for i, (window, p) in enumerate(shuffled):
        (two if i % 2 else three).add(window, p, 1)
    for delta in three.state():
        two.merge(delta)
    assert [encode_message(d) for d in one.flush()] == [encode_message(d) for d in two.flush()]
    assert not one


@given(parts, st.builds(part_of, spans))
def test_a_retraction_leaves_no_trace(items, extra) -> None:
    plain, disturbed = DeltaAccumulator(), DeltaAccumulator()
    disturbed.add(1, extra, 1)
    for window, p in items:
        plain.add(window, p, 1)
        disturbed.add(window, p, 1)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(extra), type=type(extra))
    disturbed.add(1, stored, -1)
    assert disturbed.flush() == plain.flush()


@given(parts)
def test_state_round_trip(items) -> None:
    acc = DeltaAccumulator()
    for window, p in items:
        acc.add(window, p, 1)
    raw = msgspec.msgpack.encode(acc.state())
    again = DeltaAccumulator.from_state(msgspec.msgpack.decode(raw, type=list[ScoreDelta]))
    assert again.state() == acc.state()
    again.add(*items[0], 1)
    acc.add(*items[0], 1)
    assert again.flush() == acc.flush()


@given(parts, st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1, -1])), max_size=12))
def test_size_is_that_of_what_is_not_zero_and_survives_a_restore(items, moves) -> None:
    acc = DeltaAccumulator()
    for at, sign in moves:
        acc.add(*items[at % len(items)], sign)
        again = DeltaAccumulator.from_state(acc.state())
        assert len(again) == len(acc) == sum(len(d.entries) + len(d.mix) for d in acc.state())
        assert bool(acc) == bool(len(acc))


def test_services_that_are_made_up_fill_it() -> None:
    acc = DeltaAccumulator()
    for n in range(MAX_HELD // 2):
        assert not acc.full
        acc.add(0, part_of([span_of(0, f"s{n}", "m", ["g"])], service=f"s{n}"), 1)
    assert acc.full
    assert sum(len(d.entries) + len(d.mix) for d in acc.flush()) == MAX_HELD
    assert not acc.full


def test_a_retraction_alone_is_a_negative_delta() -> None:
    acc = DeltaAccumulator()
    acc.add(3, part([0.1, 0.2], incident=True), -1)
    (delta,) = acc.flush()
    assert delta.entries[0].traces == -1
    assert delta.mix[0].traces == delta.mix[0].incidents == -1
    acc.merge(delta)
    acc.add(3, part([0.1, 0.2], incident=True), 1)
    assert acc.flush() == []


def test_flush_splits_at_the_limit_and_loses_nothing() -> None:
    rng = random.Random(5)
    acc = DeltaAccumulator()
    for i in range(300):
        acc.add(i % 40, part([rng.random() for _ in range(rng.randint(1, 60))]), 1)
    whole = acc.state()
    pieces = acc.flush(limit=20_000)
    assert len(pieces) > 3
    assert all(len(encode_message(p)) <= 20_000 for p in pieces)
    assert DeltaAccumulator.from_state(pieces).state() == whole


def test_mix_shares_sum_to_one_and_squares_follow() -> None:
    members = [
        Span(f"{i:016x}", r, (Score("g", "1", 0.1),))
        for i, r in enumerate(["planner"] * 4 + ["unknown"] * 3)
    ]
    acc = DeltaAccumulator()
    acc.add(0, part_of(members), 1)
    (svc, other) = acc.flush()  # spans carry service "unknown", the verdict "s1"
    assert (svc.service, other.service) == ("s1", "unknown")
    (mix,) = svc.mix
    assert sum(mix.shares) == SCALE
    assert Fraction(mix.shares[0], SCALE) == Fraction(4, 7)
    assert mix.squares[0] == (mix.shares[0] ** 2 + SCALE // 2) // SCALE
    assert (mix.traces, mix.sum_n, mix.sum_n2, mix.length) == (1, 7, 49, 2)


def test_squares_of_the_mix_are_kept_where_all_else_cancels_out() -> None:
    def of(*roles: str) -> TracePart:
        return part_of([span_of(i, "s1", "m1", ["g"], r) for i, r in enumerate(roles)])

    acc = DeltaAccumulator()
    acc.add(0, of("planner", "tool_call"), 1)
    acc.add(0, of("planner", "tool_call"), 1)
    acc.add(0, of("planner", "planner"), -1)  # of an earlier flush, as the next
    acc.add(0, of("tool_call", "tool_call"), -1)
    (mix,) = [m for d in acc.flush() for m in d.mix]
    assert (mix.traces, mix.sum_n, set(mix.shares)) == (0, 0, {0})
    assert sum(mix.squares) == -SCALE


def test_roles_that_a_scorer_left_out_count_as_unscored() -> None:
    members = [
        Span("a", "planner", (Score("g", "1", 0.1),), service="s"),
        Span("b", "tool_call", (), service="s"),
        Span("c", "tool_call", (), service="elsewhere"),
    ]
    acc = DeltaAccumulator()
    acc.add(0, part_of(members), 1)
    entries = {e.role: e for d in acc.flush() if d.service == "s" for e in d.entries}
    assert entries["planner"].traces == 1
    assert entries["tool_call"].own == UNSCORED
    assert (entries["tool_call"].unscored, entries["tool_call"].traces) == (1, 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-9, 1.0000001])
def test_impossible_scores_never_enter(bad: float) -> None:
    p = part([0.2, bad, 0.4])
    assert len(p.groups[0].bins) == 4
    assert part([bad]).groups == ()


def test_messages_decode_by_tag_and_name_what_is_wrong() -> None:
    control = BaselineControl("svc", "guard", "pin", "m1", "ann", 5, "release")
    assert decode_message(encode_message(control)) == control
    assert control.key == b"svc|guard"
    for raw in (b"", b"\xc1", b"{}", msgspec.msgpack.encode(["other", 1])):
        with pytest.raises(UndecodableRecord):
            decode_message(raw)


def test_names_that_hold_the_keys_separator_share_no_sums() -> None:
    assert delta_key("svc", "guard") == b"svc|guard"
    names = ["a", "a|b", "b", "b|a", "a\\", "\\|a", "|", "\\"]
    keys = {delta_key(service, scorer) for service in names for scorer in names}
    assert len(keys) == len(names) ** 2
    totals = {total_key(b"k", version, model) for version in names for model in names}
    assert len(totals) == len(names) ** 2
