"""Virtual time and timers: what passes time, and what happens at which moment in which order."""

from __future__ import annotations

import pytest

from monitor.codec import encode_fold_record
from monitor.drift.delta import ScoreDelta
from monitor.model import Tick, Verdict
from monitor.trace.fold import PartitionFold
from monitor.trace.timers import VirtualTime, next_multiple
from tests.trace.folding import START, Log, scored, settings_of

TICK = encode_fold_record(Tick())


@pytest.mark.parametrize(
    ("stamps", "vt"),
    [
        ([100], 0),  # time begins at the first record
        ([100, 350, 350], 250),
        ([0, 5_000], 5_000),
        ([0, 5_001], 5_000),  # an outage of everybody passes no time
        (
            [0, 3_600_000, 3_601_000],
            6_000,
        ),  # a record an hour ahead does not freeze or fire anything
        ([0, 3_600_000, 1_000, 2_000], 6_000),  # and when the clock comes back time goes on at once
        ([20_000, 10_000, 10_500], 500),  # ten seconds back
    ],
)
def test_virtual_time_is_the_sum_of_clamped_steps(stamps: list[int], vt: int) -> None:
    fold = PartitionFold(0)
    for offset, stamp in enumerate(stamps):
        fold.apply(offset, START + stamp, TICK)
    assert fold.vt == vt
    assert fold.last_ts == START + stamps[-1]


def test_a_record_of_another_time_type_passes_no_time_and_is_counted() -> None:
    fold = PartitionFold(0)
    for offset, stamp in enumerate([START, None, START + 700]):
        fold.apply(offset, stamp, TICK)
    assert fold.vt == 700
    assert fold.counters["not_log_append_time"] == 1


def test_dates_come_from_the_log() -> None:
    time = VirtualTime()
    for stamp in (START, START + 8_000, START + 7_000, START + 9_000):
        time.advance(stamp)
    assert time.vt == 7_000
    assert time.date(time.vt) == START + 9_000
    assert time.date(6_500) == START + 8_500


def test_a_timer_runs_at_its_own_deadline_whenever_its_record_comes() -> None:
    log = Log(settings_of(root_grace_ms=2_000, delta_flush_ms=60_000))
    log.spans("a", scored(0), at=0)
    out = log.put(Tick(), at=4.7)
    assert [r.closed_at_ms for r in out] == [START + 2_000]


def test_timers_run_by_deadline_then_flushes_evictions_closings_then_birth() -> None:
    """At 4 s: both flushes, the eviction of `old`, and the closings of `b` and `c` in the order of their birth,
    though `c`'s timer was set first."""
    log = Log(
        settings_of(
            root_grace_ms=1_000,
            idle_ms=3_000,
            late_window_ms=3_000,
            revision_flush_ms=4_000,
            delta_flush_ms=4_000,
        )
    )
    log.spans("old", scored(0), at=0)  # closes at 1 s, leaves at 4 s
    log.spans("b", scored(1, "absent"), at=0.5)
    log.spans("c", scored(2, "absent"), at=1.0)
    log.spans("b", scored(3, 1), at=1.0)
    log.spans("old", scored(4, 0), at=1.2)
    log.spans("c", scored(5, 2), at=1.0)
    log.records.clear()
    log.put(Tick(), at=4.0)
    assert [
        (type(r), getattr(r, "revision", None), getattr(r, "life", None)) for r in log.records
    ] == [(Verdict, 2, 1), (ScoreDelta, None, None), (Verdict, 1, 2), (Verdict, 1, 3)]
    assert log.fold.closed_lives == 2  # `old` is gone


def test_a_closing_that_a_later_span_put_off_does_not_happen() -> None:
    log = Log(settings_of(root_grace_ms=2_000))
    log.spans("a", scored(0), at=0)
    log.spans("a", scored(1, 0), at=1.9)
    log.until(3.8)
    assert log.verdicts == []
    log.until(3.9)
    assert [v.span_count for v in log.verdicts] == [2]


@pytest.mark.parametrize(("now", "at"), [(0, 5_000), (4_999, 5_000), (5_000, 10_000)])
def test_flushes_stand_at_multiples_of_virtual_time(now: int, at: int) -> None:
    assert next_multiple(5_000, now) == at


def test_deltas_leave_at_multiples_of_a_minute() -> None:
    log = Log()
    log.spans("a", scored(0), at=5)
    log.until(59.9)
    assert log.deltas == []
    log.until(60)
    assert len(log.deltas) == 1
    log.spans("b", scored(0), at=61)
    log.until(119)
    assert len(log.deltas) == 1
    log.until(120)
    assert len(log.deltas) == 2
