"""Assigns whole lanes: lane l owns the partitions p with p mod L = l of every topic the stage reads.

The protocol's name holds L, so members that disagree about L cannot form a group. Lanes stay with the
member that has them as far as an even share allows: each says in its subscription what it owns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import structlog
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

log = structlog.get_logger()

_VERSION = 0


class Cluster(Protocol):
    def partitions_for_topic(self, topic: str) -> set[int] | None: ...


def lane_of(partition: int, lanes: int) -> int:
    return partition % lanes


def share_lanes(lanes: Iterable[int], owned: Mapping[str, frozenset[int]]) -> dict[str, list[int]]:
    """Lanes -> members, even to within one, each staying where it is if that allows it. Deterministic."""
    left = sorted(set(lanes))
    members = sorted(owned)
    least, extra = divmod(len(left), len(members))
    shares: dict[str, list[int]] = {member: [] for member in members}
    # Who owns most keeps the larger shares; a lane that two claim (one was away) goes to the first.
    for member in sorted(members, key=lambda name: (-len(owned[name]), name)):
        limit = least + (1 if extra > 0 else 0)
        kept = [lane for lane in left if lane in owned[member]][:limit]
        if len(kept) > least:
            extra -= 1
        shares[member] = kept
        left = [lane for lane in left if lane not in kept]
    for lane in left:
        shares[min(members, key=lambda name: (len(shares[name]), name))].append(lane)
    return {member: sorted(share) for member, share in shares.items()}


def lane_assignor(lanes: int) -> type[AbstractPartitionAssignor]:
    """A new assignor class: it remembers what its one consumer owns, so no two consumers may share it."""

    class LaneAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka is untyped
        name = f"monitor-lanes-{lanes}"
        owned: frozenset[int] = frozenset()

        @classmethod
        def assign(
            cls, cluster: Cluster, members: Mapping[str, Any]
        ) -> dict[str, ConsumerProtocolMemberAssignment]:
            topics = {topic for member in members.values() for topic in member.subscription}
            partitions = {topic: cluster.partitions_for_topic(topic) or set() for topic in topics}
            used = {lane_of(p, lanes) for found in partitions.values() for p in found}
            shares = share_lanes(
                used, {name: _decode(member.user_data) for name, member in members.items()}
            )
            assignments = {}
            for name, member in members.items():
                unread = topics - set(member.subscription)
                if unread and shares[name]:
                    log.warning("lanes.topics_unread", member=name, topics=sorted(unread))
                assignments[name] = ConsumerProtocolMemberAssignment(
                    _VERSION,
                    [
                        (topic, mine)
                        for topic in sorted(member.subscription)
                        if (
                            mine := [
                                p
                                for p in sorted(partitions[topic])
                                if lane_of(p, lanes) in shares[name]
                            ]
                        )
                    ],
                    b"",
                )
            return assignments

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            return ConsumerProtocolMemberMetadata(_VERSION, sorted(topics), _encode(cls.owned))

        @classmethod
        def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
            cls.owned = frozenset(lane_of(tp.partition, lanes) for tp in assignment.partitions())

    return LaneAssignor


def _encode(owned: frozenset[int]) -> bytes:
    return ",".join(map(str, sorted(owned))).encode()


def _decode(user_data: bytes | None) -> frozenset[int]:
    text = (user_data or b"").decode("ascii", errors="replace")
    return frozenset(int(part) for part in text.split(",") if part.isdigit())
