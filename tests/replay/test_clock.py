from __future__ import annotations

from monitor.replay.clock import JUMP_MS, FileClock

T = 1_800_000_000_000


def test_own_time_stamp_wins_and_may_go_back() -> None:
    clock = FileClock()
    assert clock.at(T, T + 50, None) == T
    assert clock.at(T - 10, None, None) == T - 10


def test_without_one_it_is_the_highest_end_so_far() -> None:
    clock = FileClock()
    assert [clock.at(None, end, end) for end in (T, T + 5, T + 2)] == [T, T + 5, T + 5]


def test_a_line_without_any_time_has_the_time_before_it() -> None:
    clock = FileClock()
    clock.at(None, T, T)
    assert clock.at(None, None, T) == T


def test_a_far_jump_counts_only_if_the_next_line_agrees() -> None:
    year = 365 * 24 * JUMP_MS
    lone = FileClock()
    assert [lone.at(None, T, T), lone.at(None, T + year, T + 1), lone.at(None, T + 1, None)] == [
        T,
        T,
        T + 1,
    ]
    both = FileClock()
    assert [both.at(None, T, T), both.at(None, T + year, T + year + 1)] == [T, T + year]
    last = FileClock()
    assert [last.at(None, T, T), last.at(None, T + year, None)] == [T, T]


def test_a_first_line_from_the_future_is_not_believed() -> None:
    clock = FileClock()
    assert clock.at(None, T + 2 * JUMP_MS, T) == T


def test_just_an_hour_ahead_is_no_jump() -> None:
    clock = FileClock()
    clock.at(None, T, T)
    assert clock.at(None, T + JUMP_MS, T) == T + JUMP_MS
