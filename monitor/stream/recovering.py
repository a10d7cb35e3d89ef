"""Watches the recovery of the agents' tables: one that stands still is given its changelogs again."""

from __future__ import annotations

import time
from typing import Any, Final, cast

import faust
from faust.tables.manager import TableManager
from mode import Service

from monitor.errors import MonitorError
from monitor.logs import get_logger

LOOK_SECONDS: Final = 1.0
STALL_SECONDS: Final = 3.0  # without one record; a fetch waits 1.5 s at most
GIVE_UP_SECONDS: Final = 60.0  # a new process begins with nothing in between

_log: Final = get_logger(__name__)


class RecoveryStalledError(MonitorError):
    """The tables were not recovered, and seeking again did not help."""


class RecoveryWatch(Service):
    """While partitions move, Faust can drop changelog records that its fetcher has passed, and then waits for ever."""

    def __init__(self, app: faust.App, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._app = app
        self._last: tuple[int, int] | None = None
        self._moved = time.monotonic()
        self._sought = 0.0

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            await self.sleep(LOOK_SECONDS)
            await self.look(time.monotonic())

    async def look(self, now: float) -> None:
        recovery = cast(TableManager, self._app.tables).recovery
        seen = (self._app.consumer_generation_id, recovery.active_remaining_total())
        if not recovery.in_recovery or seen != self._last:
            self._last, self._moved, self._sought = seen, now, now
            return
        if now - self._moved >= GIVE_UP_SECONDS:
            await self._app.crash(
                RecoveryStalledError(
                    f"table recovery has stood still for {GIVE_UP_SECONDS:g} s with {seen[1]} changelog records "
                    "to go; the worker ends so that a new one begins afresh"
                )
            )
        elif now - self._sought >= STALL_SECONDS:
            self._sought = now
            left = {tp for tp, n in recovery.active_remaining().items() if n > 0}
            _log.warning("recovery stands still, reading the changelogs again", records=seen[1])
            offsets = recovery.active_offsets
            await self._app.consumer.seek_wait({tp: max(0, offsets[tp]) for tp in left})
