"""Virtual time, made of the log's own timestamps, and the timers that hang on it."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

# The longest step that one record can make. A record that lies an hour ahead (a clock step, a new leader)
# must not close everything at once, and an outage of everybody passes no time.
MAX_STEP_MS: Final = 5_000

# Order of timers with one deadline.
FLUSH: Final = 0
EVICTION: Final = 1
CLOSING: Final = 2

# In the place of a birth's number: revisions before deltas, so that a revision's sums leave with this flush.
REVISIONS: Final = -2
DELTAS: Final = -1


class VirtualTime:
    """``vt += clamp(ts - last_ts, 0, 5 s); last_ts = ts``: never runs backwards, never jumps.

    vt       milliseconds of virtual time since the fold began (0 at its first record)
    last_ts  LogAppendTime of the last record that had one, None before the first
    """

    __slots__ = ("last_ts", "vt")

    def __init__(self, vt: int = 0, last_ts: int | None = None) -> None:
        self.vt = vt
        self.last_ts = last_ts

    def advance(self, timestamp_ms: int) -> None:
        last = self.last_ts
        if last is not None:
            step = timestamp_ms - last
            if step > 0:
                self.vt += min(MAX_STEP_MS, step)
        self.last_ts = timestamp_ms

    def date(self, at: int) -> int:
        """Milliseconds since 1970 of the moment ``at`` of virtual time, as the log dates it."""
        return at + (self.last_ts or 0) - self.vt


class Timers:
    """A heap of (deadline, order, number of the birth). Nothing is ever taken out: whoever pops an entry asks its
    owner whether it still holds, so moving a deadline back costs nothing until it comes."""

    __slots__ = ("heap",)

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, int]] = []

    def push(self, deadline: int, order: int, nth: int) -> None:
        heappush(self.heap, (deadline, order, nth))

    def due(self, vt: int) -> bool:
        heap = self.heap
        return bool(heap) and heap[0][0] <= vt

    def pop(self) -> tuple[int, int, int]:
        return heappop(self.heap)


def next_multiple(period: int, now: int) -> int:
    """The first multiple of ``period`` after ``now``: flushes do not depend on when something came."""
    return (now // period + 1) * period
