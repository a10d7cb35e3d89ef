"""Fences, the lease, and tables that keep the value with the higher fence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import faust
import pytest
from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import UndecodableRecord
from monitor.settings import Settings
from monitor.stream.fence import Lease, LeaseLostError, fence_of, payload_of, seal, steady_clock
from monitor.stream.tables import TABLES, FencedTable, changelog_specs, fenced_table


@given(st.integers(0, 2**62), st.binary(max_size=50))
def test_law_a_sealed_value_opens(offset: int, payload: bytes) -> None:
    value = seal(offset, payload)
    assert (fence_of(value), payload_of(value)) == (offset, payload)


def test_a_value_too_short_for_a_fence_is_refused() -> None:
    with pytest.raises(UndecodableRecord, match="7 bytes"):
        fence_of(b"1234567")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_lease_is_held_from_the_assignment_while_the_stamp_is_young() -> None:
    clock = Clock()
    lease = Lease(10.0, clock)
    assert not lease.held
    assert not lease.beat()  # beating alone gives no right to write
    lease.renew()
    for _ in range(100):
        clock.now += 4.9
        assert lease.held
        assert lease.beat()


def test_after_a_standstill_the_lease_stays_lost_until_the_group_gives_the_partitions_anew() -> (
    None
):
    clock = Clock()
    lease = Lease(10.0, clock)
    lease.renew()
    clock.now += 5.0
    assert not lease.held  # also before the next beat
    with pytest.raises(LeaseLostError, match=r"5\.0 s"):
        lease.require()
    assert not lease.beat()
    clock.now += 0.1
    assert not lease.beat()
    assert not lease.held
    lease.renew()
    lease.require()


def test_the_clock_only_goes_forward() -> None:
    first = steady_clock()
    assert steady_clock() >= first


# --- tables -------------------------------------------------------------------------------------------


class Table(FencedTable):
    """Keeps what it would send to the changelog."""

    def send_changelog(self, partition: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        self.__dict__.setdefault("sent", []).append((partition, key, value))


def table() -> Any:
    app = faust.App("t", broker="kafka://localhost:1", store="memory://")
    return Table(app, name="x", partitions=4, key_type=bytes, value_type=bytes)


def event(key: bytes, value: bytes | None, partition: int = 0) -> Any:
    return SimpleNamespace(
        key=key, value=value, message=SimpleNamespace(value=value, partition=partition)
    )


def test_put_holds_the_row_and_sends_it() -> None:
    made = table()
    made.put(2, b"k", 7, b"payload")
    assert made.payload(b"k") == b"payload"
    assert made.fence(b"k") == 7
    assert made.sent == [(2, b"k", seal(7, b"payload"))]
    assert made.highest_fences() == {2: 7}
    assert (made.fence(b"other"), made.payload(b"other")) == (-1, None)
    made.drop(b"k")
    assert made.sent[-1] == (2, b"k", None)
    assert made.payload(b"k") is None


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 9)), max_size=30),
    st.integers(1, 7),
)
async def test_law_recovery_keeps_the_higher_fence_in_any_batches_and_heals_the_log(
    log: list[tuple[bytes, int]], size: int
) -> None:
    made = table()
    events = [event(key, seal(fence, b"%d" % n)) for n, (key, fence) in enumerate(log)]
    for start in range(0, len(events), size):
        made.apply_changelog_batch(events[start : start + size])
    await made.data.on_recovery_completed({TP("x", 0)}, set())
    sent = made.__dict__.get("sent", [])
    for key in (b"a", b"b"):
        fences = [fence for k, fence in log if k == key]
        assert made.fence(key) == max(fences, default=-1)
        last_in_log = [*fences, *(fence_of(v) for _, k, v in sent if k == key)]
        assert not fences or last_in_log[-1] == max(fences)  # what compaction keeps


async def test_a_tombstone_removes_and_rows_of_lost_partitions_go() -> None:
    made = table()
    made.apply_changelog_batch(
        [event(b"a", seal(5, b"x")), event(b"a", None), event(b"b", seal(1, b"y"), 1)]
    )
    made.put(2, b"mine", 3, b"z")
    assert made.payload(b"a") is None
    await made.data.on_recovery_completed({TP("x", 2)}, set())
    assert made.payload(b"b") is None
    assert made.payload(b"mine") == b"z"


async def test_memory_newer_than_the_logs_tail_wins() -> None:
    """A partition that stays with its owner over a rebalance is read again from where recovery ended before."""
    made = table()
    for offset in range(5):
        made.put(0, b"a", offset, b"%d" % offset)
    made.sent.clear()
    made.apply_changelog_batch([event(b"a", seal(n, b"%d" % n)) for n in range(5)])
    await made.data.on_recovery_completed({TP("x", 0)}, set())
    assert made.payload(b"a") == b"4"
    assert made.sent == []


def test_changelogs_are_compact_and_never_delete() -> None:
    specs = changelog_specs(Settings())
    assert [s.name for s in specs] == [f"monitor.{name}-changelog" for name in TABLES]
    assert all(s.needed == {"cleanup.policy": "compact"} and s.partitions == 8 for s in specs)
    app = faust.App("t", broker="kafka://localhost:1", store="memory://")
    made = fenced_table(app, Settings(), TABLES[0])
    assert made.changelog_topic_name == specs[0].name
    assert app.tables.changelog_topics == {specs[0].name}
