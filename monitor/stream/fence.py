"""What makes Faust's at-least-once exact: a fence inside each table value, and a lease on writing them.

*Fence*: every value begins with the offset of the last message that is in it. A message at or under it is there
already, and recovery keeps the value with the higher one. *Lease*: a process that was stopped for longer than its
session has lost its partitions without knowing. It must not write its old values behind the new owner's, so agents
write only while a stamp that is set twice a second is younger than half the session; after that they drop what they
hold until the group has given them their partitions anew.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Final

from monitor.errors import MonitorError, UndecodableRecord

BEAT_SECONDS: Final = 0.5

_HEADER: Final = struct.Struct(">q")


class LeaseLostError(MonitorError):
    """This process may no longer own its partitions: what it was about to write must not be written."""


def seal(offset: int, payload: bytes) -> bytes:
    """A table value: ``payload`` as it is after the message at ``offset``."""
    return _HEADER.pack(offset) + payload


def fence_of(value: bytes) -> int:
    """Offset of the last message in a table value. Raises UndecodableRecord."""
    if len(value) < _HEADER.size:
        raise UndecodableRecord(f"table value of {len(value)} bytes is too short to hold a fence")
    return int(_HEADER.unpack_from(value)[0])


def payload_of(value: bytes) -> bytes:
    return value[_HEADER.size :]


def steady_clock() -> float:
    """Seconds that pass while the process is stopped and, where the system can tell, while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Lease:
    """Held from `renew` (partitions assigned) until a beat comes too late. Not thread-safe: of one event loop."""

    def __init__(self, session_seconds: float, clock: Callable[[], float] = steady_clock) -> None:
        self._limit = session_seconds / 2
        self._clock = clock
        self._stamp = clock()
        self._lost = True

    def renew(self) -> None:
        """The group has given us our partitions just now."""
        self._stamp = self._clock()
        self._lost = False

    def beat(self) -> bool:
        """Set the stamp, unless the last one is too old. Returns whether the lease is held."""
        now = self._clock()
        if now - self._stamp >= self._limit:
            self._lost = True
        if not self._lost:
            self._stamp = now
        return not self._lost

    @property
    def held(self) -> bool:
        return not self._lost and self._clock() - self._stamp < self._limit

    def require(self) -> None:
        """Right before a write, with no await between. Raises LeaseLostError."""
        if not self.held:
            raise LeaseLostError(
                f"no sign of life for {self._clock() - self._stamp:.1f} s: partitions may have another owner"
            )
