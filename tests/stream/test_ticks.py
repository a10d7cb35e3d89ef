"""Time passes on a quiet partition only when ingest has nothing left for it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from monitor.stream import ticks
from monitor.stream.commits import Commit
from monitor.stream.ticks import Ticker, caught_up

A, B = TopicPartition("in", 0), TopicPartition("in", 1)


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ({A: Commit(10), B: Commit(20)}, True),
        ({A: Commit(12), B: Commit(25)}, True),
        ({A: Commit(9), B: Commit(20)}, False),  # behind
        ({A: Commit(10)}, False),  # one partition without a commit will be begun
        ({}, False),  # nothing is known of the agents
        ({A: Commit(10), B: Commit(2)}, True),  # outside of the log: refused, with its own alert
        ({A: Commit(10), B: Commit(99)}, True),  # a topic made anew: refused
    ],
)
def test_caught_up(commits: dict[TopicPartition, Commit], expected: bool) -> None:
    firsts, then, now = {A: 0, B: 5}, {A: 10, B: 20}, {A: 30, B: 30}
    assert caught_up(commits, firsts, now, then) is expected


class Watch:
    caught_up = True


class Counting(Ticker):
    def __init__(self, watch: Watch) -> None:
        super().__init__("fragments", cast("Any", watch))
        self.sent: list[int] = []

    async def _send(self, partition: int) -> None:
        self.sent.append(partition)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(ticks.time, "monotonic", lambda: now[0])
    return now


async def test_one_tick_a_quiet_second(clock: list[float]) -> None:
    ticker = Counting(Watch())
    for _ in range(30):
        await ticker.look(3, last_record=100.0, at_end=True, empty=False)
        clock[0] += 0.1
    assert ticker.sent == [3, 3]


async def test_none_where_state_is_empty_or_the_end_is_not_reached(clock: list[float]) -> None:
    ticker = Counting(Watch())
    clock[0] += 50
    assert await ticker.look(3, last_record=100.0, at_end=True, empty=True) == 0.0
    assert await ticker.look(3, last_record=100.0, at_end=False, empty=False) == 0.0
    assert ticker.sent == []


async def test_while_ingest_is_behind_time_stands_still_and_the_hold_is_told(
    clock: list[float],
) -> None:
    watch = Watch()
    watch.caught_up = False
    ticker = Counting(watch)
    clock[0] += 2
    assert await ticker.look(3, last_record=100.0, at_end=True, empty=False) == 0.0
    clock[0] += 400
    assert await ticker.look(3, last_record=100.0, at_end=True, empty=False) == 400.0
    assert ticker.sent == []
    watch.caught_up = True
    assert await ticker.look(3, last_record=100.0, at_end=True, empty=False) == 0.0
    assert ticker.sent == [3]
