"""The private names of Faust that we lean on, and what our overrides make of them.

If the first tests fail after an update of Faust or aiokafka: read the changed functions again, decide whether our overrides
still cure what they cure, and only then pin them anew.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import aiokafka
import faust
import pytest
from faust.app.base import App
from faust.stores import memory
from faust.tables.base import Collection
from faust.tables.recovery import Recovery
from faust.transport import consumer as base
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from monitor.stream.faust_overrides import (
    ExactCommitConsumer,
    OverriddenApp,
    ReadCommittedThread,
    Transport,
)

PINNED: dict[Callable[..., Any], str] = {
    driver.AIOKafkaConsumerThread._create_worker_consumer: "c2701bfc3e6f",
    driver.Consumer._new_consumer_thread: "0870ec53dea7",
    driver.Consumer._to_message: "7c24f6511b2f",
    base.Consumer.perform_seek: "0e8c130ff4b0",
    driver.AIOKafkaConsumerThread._commit: "932852ce7a23",
    driver.AIOKafkaConsumerThread._seek_wait: "9d221e816d94",
    Recovery.active_remaining: "0dcc38568ad5",
    base.Consumer.ack: "5fcf41cf4515",
    base.Consumer._add_gap: "4df2573ded7c",
    base.Consumer._new_offset: "1d2c7ea89a7a",
    base.Consumer._filter_committable_offsets: "dc5e9baf5d99",
    base.Consumer._should_commit: "5ce941793947",
    base.Consumer._drain_messages: "44a2500309e8",
    base.Consumer.on_partitions_revoked: "d04b7ae72c6f",
    base.Consumer.getmany: "4b168d84882a",
    App._new_transport: "42db531312dd",
    App._create_directories: "a9f571c3b04a",
    App.on_init_dependencies: "7621a70a9b01",
    App._on_partitions_revoked: "d5c895bbe57d",
    App._on_partitions_assigned: "de932b7927db",
    memory.Store.apply_changelog_batch: "71863e3cd727",
    memory.Store.on_recovery_completed: "a00bef343e13",
    Collection.send_changelog: "3dd3884e1b5f",
    Recovery.on_recovery_completed: "6ef567acf072",
    Recovery.on_rebalance: "aa4d997a1795",
}


@pytest.mark.parametrize("function", PINNED, ids=lambda f: f.__qualname__)
def test_contract_what_we_override_or_lean_on_is_as_it_was_read(
    function: Callable[..., Any],
) -> None:
    assert digest(function) == PINNED[function], (
        f"{function.__qualname__} of faust-streaming {faust.__version__} has changed: read it, see the docstring above"
    )


def digest(function: Callable[..., Any]) -> str:
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:12]


def test_contract_the_isolation_level_can_still_be_set_after_construction() -> None:
    assert "self._isolation_level = isolation_level" in inspect.getsource(
        aiokafka.AIOKafkaConsumer.__init__
    )
    assert "isolation_level=self._isolation_level" in inspect.getsource(
        aiokafka.AIOKafkaConsumer.start
    )


def test_contract_an_app_is_wired_through_to_our_consumer() -> None:
    app = OverriddenApp("t", broker="kafka://localhost:1", store="memory://")
    assert isinstance(app.transport, Transport)
    assert Transport.Consumer is ExactCommitConsumer
    assert issubclass(ReadCommittedThread, driver.AIOKafkaConsumerThread)


# --- the commit ---------------------------------------------------------------------------------------

TP0 = TP("t", 0)


class Message:
    def __init__(self, offset: int, generation: int = 1) -> None:
        self.tp, self.topic, self.offset, self.generation_id, self.acked = (
            TP0,
            "t",
            offset,
            generation,
            False,
        )


def consumer() -> Any:
    made = object.__new__(ExactCommitConsumer)
    made._acked, made._acked_index = defaultdict(list), defaultdict(set)
    made._committed_offset = defaultdict(lambda: None)
    made._unacked_messages, made._n_acked, made._waiting_for_ack = WeakSet(), 0, None
    made.flow_active = True
    made.app = SimpleNamespace(
        consumer_generation_id=1, topics=SimpleNamespace(acks_enabled_for=lambda _: True)
    )
    return made


@given(st.lists(st.integers(1, 3), min_size=1, max_size=40), st.data())
def test_law_a_commit_never_passes_an_unacked_message_and_reaches_the_last(
    gaps: list[int], data: st.DataObject
) -> None:
    """Offsets with holes (markers, aborted records), acked in any order, a commit after each ack."""
    offsets = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    made = consumer()
    messages = [Message(offset) for offset in offsets]
    for message in messages:
        made._unacked_messages.add(message)
    committed = 0
    left = set(offsets)
    for message in data.draw(st.permutations(messages)):
        assert made.ack(message)
        left.discard(message.offset)
        offset = made._new_offset(TP0)
        if offset is not None:
            assert not left or offset <= min(left)
            committed = max(committed, offset)
            made._committed_offset[TP0] = committed
    assert committed == offsets[-1] + 1
    assert len(made._acked[TP0]) <= 1  # the books do not grow


async def test_gaps_are_not_kept() -> None:
    made = consumer()
    made._gap = defaultdict(list)
    await made._add_gap(TP0, 1, 10**9)
    assert made._gap == {}


@pytest.mark.parametrize(("generation", "flowing"), [(0, True), (1, False)])
def test_an_ack_from_before_the_rebalance_does_not_count(generation: int, flowing: bool) -> None:
    made = consumer()
    made.flow_active = flowing
    stale = Message(100, generation)
    made._unacked_messages.add(stale)
    assert not made.ack(stale)
    assert stale.acked
    assert made._new_offset(TP0) is None
    assert len(made._unacked_messages) == 0


# --- what comes first after a seek -------------------------------------------------------------------------


class Feed:
    """`super().getmany` and `super().seek_wait` of a consumer whose log holds these offsets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, offsets: list[int]) -> None:
        self.offsets, self.position, self.stale = offsets, 0, list[int]()
        self.made = consumer()
        self.made._sought, self.made._looked = {}, float("-inf")
        feed = self

        async def getmany(_: Any, timeout: float) -> Any:
            batch, feed.stale = feed.stale, []
            if not batch:
                batch = [o for o in feed.offsets if o >= feed.position][:3]
                feed.position = batch[-1] + 1 if batch else feed.position
            for offset in batch:
                yield TP0, Message(offset)

        async def seek_wait(_: Any, partitions: dict[TP, int]) -> None:
            feed.position = partitions[TP0]

        async def position(_: Any, tp: Any) -> int:
            return feed.position

        monkeypatch.setattr(driver.Consumer, "position", position)
        monkeypatch.setattr(driver.Consumer, "assignment", lambda _: {TP0})
        monkeypatch.setattr(ExactCommitConsumer, "_is_changelog_tp", lambda _, __: False)
        monkeypatch.setattr(driver.Consumer, "getmany", getmany)
        monkeypatch.setattr(driver.Consumer, "seek_wait", seek_wait)

    async def all(self) -> list[int]:
        return [m.offset for _ in range(20) async for _, m in self.made.getmany(1.0)]


@pytest.mark.parametrize("place", [0, 3, 4, 8])
@pytest.mark.parametrize("stale", [[], [9], [8, 9, 12], [12, 13], [0, 1]])
async def test_records_fetched_before_a_seek_skip_nothing(
    monkeypatch: pytest.MonkeyPatch, place: int, stale: list[int]
) -> None:
    """The log has holes; a batch of an older position comes first after the seek."""
    log = [0, 1, 2, 5, 6, 7, 8, 9, 12, 13]
    feed = Feed(monkeypatch, log)
    await feed.made.seek_wait({TP0: place})
    feed.stale = list(stale)
    read: list[int] = []
    for offset in await feed.all():  # as Faust does: what lies before the last read is dropped
        if not read or offset > read[-1]:
            read.append(offset)
    wanted = [o for o in log if o >= place]
    assert [o for o in read if o >= place] == wanted


async def test_nothing_is_taken_between_the_assignment_and_the_first_seek(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed = Feed(monkeypatch, [0, 1, 2])
    feed.made._sought = {TP0: None}
    assert await feed.all() == []
    await feed.made.seek_wait({TP0: 0})
    assert await feed.all() == [0, 1, 2]


async def test_the_last_records_are_read_though_their_fetch_was_dropped_after_the_seek(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The position stands past them and nothing comes behind them: nobody else would notice."""
    feed = Feed(monkeypatch, [4, 5])
    await feed.made.seek_wait({TP0: 4})
    feed.position = 6
    assert await feed.all() == [4, 5]


async def test_a_position_that_moved_past_markers_is_sought_anew_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed = Feed(monkeypatch, [])
    await feed.made.seek_wait({TP0: 4})
    feed.position = 6
    monkeypatch.setattr("monitor.stream.faust_overrides.LOOK_SECONDS", 0.0)
    assert await feed.all() == []
    feed.position = 7
    assert await feed.all() == []
    assert feed.position == 7


@pytest.mark.parametrize(("owned", "committed"), [(set(), False), ({TP0}, True)])
async def test_a_commit_without_a_partition_of_ours_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, owned: set[TP], committed: bool
) -> None:
    async def commit(_: Any, offsets: dict[TP, int]) -> bool:
        return True

    monkeypatch.setattr(driver.AIOKafkaConsumerThread, "_commit", commit)
    monkeypatch.setattr(ReadCommittedThread, "assignment", lambda _: owned)
    thread = object.__new__(ReadCommittedThread)
    assert await thread._commit({TP0: 3}) is committed


def test_the_watermark_of_a_partition_that_was_taken_away_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that stood still fetches for what it owned until then: cure 6."""

    def not_assigned(_self: object, _tp: TP) -> int:
        raise AssertionError("Partition is not assigned")

    monkeypatch.setattr(driver.AIOKafkaConsumerThread, "highwater", not_assigned)
    thread = ReadCommittedThread.__new__(ReadCommittedThread)
    assert thread.highwater(TP("t", 0)) == 0
