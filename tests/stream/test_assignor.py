"""Lanes are assigned whole, evenly, and stay where they are."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from monitor.stream.assignor import lane_assignor, share_lanes

LANES = st.sets(st.integers(0, 63), min_size=1)
OWNED = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=4),
    st.frozensets(st.integers(0, 63)),
    min_size=1,
    max_size=9,
)


@given(LANES, OWNED)
def test_every_lane_has_one_owner_and_shares_differ_by_one_at_most(
    lanes: set[int], owned: dict[str, frozenset[int]]
) -> None:
    shares = share_lanes(lanes, owned)
    assert Counter(lane for share in shares.values() for lane in share) == Counter(lanes)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1


@given(LANES, st.integers(1, 9))
def test_the_same_members_keep_what_they_have(lanes: set[int], count: int) -> None:
    members: dict[str, frozenset[int]] = {f"m{n}": frozenset() for n in range(count)}
    first = share_lanes(lanes, members)
    again = share_lanes(lanes, {name: frozenset(share) for name, share in first.items()})
    assert again == first


@given(LANES, st.integers(1, 8))
def test_a_member_that_joins_takes_no_more_than_its_share(lanes: set[int], count: int) -> None:
    first = share_lanes(lanes, {f"m{n}": frozenset() for n in range(count)})
    owned = {name: frozenset(share) for name, share in first.items()}
    after = share_lanes(lanes, {**owned, "new": frozenset()})
    moved = sum(len(owned[name] - set(after[name])) for name in owned)
    assert moved == len(after["new"])


def _assign(lanes: int, partitions: dict[str, int], members: dict[str, list[str]]):
    assignor = lane_assignor(lanes)
    cluster = SimpleNamespace(
        partitions_for_topic=lambda topic: (
            set(range(partitions[topic])) if topic in partitions else None
        )
    )
    asked = {
        name: SimpleNamespace(subscription=topics, user_data=b"")
        for name, topics in members.items()
    }
    return {
        name: dict(assignment.assignment)
        for name, assignment in assignor.assign(cluster, asked).items()
    }


def test_a_lane_holds_its_partitions_of_every_topic() -> None:
    found = _assign(4, {"a": 8, "b": 6}, {"x": ["a", "b"], "y": ["a", "b"]})
    for topics in found.values():
        lanes = {p % 4 for p in topics["a"]}
        assert {p % 4 for p in topics["b"]} == lanes
        assert topics["a"] == [p for p in range(8) if p % 4 in lanes]
    assert sorted(p for topics in found.values() for p in topics["b"]) == list(range(6))


def test_a_missing_topic_is_left_out_and_too_many_members_get_nothing() -> None:
    found = _assign(2, {"a": 2}, {"x": ["a", "gone"], "y": ["a", "gone"], "z": ["a", "gone"]})
    assert sorted(map(str, found.values())) == sorted(["{'a': [0]}", "{'a': [1]}", "{}"])


def test_a_topic_that_a_member_does_not_read_goes_to_nobody_else() -> None:
    found = _assign(2, {"a": 2, "b": 2}, {"old": ["a"], "new": ["a", "b"]})
    assert found["old"]["a"] != found["new"]["a"]
    assert found["new"]["b"] == found["new"]["a"]


def test_members_that_disagree_about_the_number_of_lanes_speak_other_protocols() -> None:
    assert lane_assignor(8).name != lane_assignor(4).name


def test_what_is_owned_is_said_at_the_next_join() -> None:
    assignor = lane_assignor(4)
    assert assignor.metadata(["a"]).user_data == b""
    assignor.on_assignment(
        SimpleNamespace(partitions=lambda: [SimpleNamespace(partition=p) for p in (1, 5, 2)])
    )
    assert assignor.metadata(["a"]).user_data == b"1,2"
