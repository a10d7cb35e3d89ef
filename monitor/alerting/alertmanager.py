"""Delivery to every Alertmanager: at once, again while it lasts, and until it is taken.

Delivery is by level, not by event: at any moment there is a set of alerts that fire or were just resolved, and each
Alertmanager is owed those that differ from what it last took, and all of them once an interval. So a process that
starts anew, an Alertmanager that was down, and one that appears need nothing special.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import aiohttp
import structlog

from monitor.alerting.access import Access
from monitor.alerting.alert import Alert, Identity, InvalidAlertError, check
from monitor.alerting.endpoints import Endpoint, UnresolvedError, resolve
from monitor.alerting.replica import TIMEOUT_SECONDS, DeliveryObserver, Replica

RESEND_SECONDS: Final = 45.0  # Alertmanager expects an alert each 30-60 s while it lasts
RESOLVE_SECONDS: Final = (
    30.0  # between two look-ups of dns+ names: a new replica is served within it
)
REST_FACTOR: Final = 4  # in a storm making alerts takes a fifth of the loop: the agent has the rest
SWEEP_SECONDS: Final = 1.0  # how late a quiet alert may be resolved, or one be sent again

_NO_CREDENTIALS: Final = Access()

_log: Final = structlog.get_logger(__name__)

Source = Callable[[int], Iterable[Alert]]
"""now in ms -> all alerts that fire or were just resolved."""


def wall_clock() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Alertmanagers:
    """Delivers what `source` says to every Alertmanager of `urls`, from `start` to `stop`.

    `wake` delivers at once what is new; without it a change is seen within a second. `clock`: ms since 1970.
    """

    def __init__(
        self,
        urls: Sequence[str],
        source: Source,
        *,
        observer: DeliveryObserver,
        access: Access = _NO_CREDENTIALS,
        clock: Callable[[], int] = wall_clock,
        resend_seconds: float = RESEND_SECONDS,
        resolve_seconds: float = RESOLVE_SECONDS,
    ) -> None:
        self._urls = tuple(urls)
        self._source = source
        self._observer = observer
        self._access = access
        self._clock = clock
        self._resend_seconds = resend_seconds
        self._resolve_seconds = resolve_seconds
        self._current: dict[Identity, Alert] = {}
        self._invalid: dict[Identity, Alert] = {}
        self._found: dict[str, list[Endpoint]] = {}  # by configured URL, as last looked up
        self._replicas: dict[Endpoint, Replica] = {}
        self._session: aiohttp.ClientSession | None = None
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(sorted(endpoint.name for endpoint in self._replicas))

    @property
    def owed(self) -> int:
        """Alerts that the Alertmanager which lags most has yet to take; all of them where there is none."""
        if not self._replicas:
            return len(self._current) if self._urls else 0
        return max(len(replica.owed()) for replica in self._replicas.values())

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(
            # No DNS cache: after a restart a name may stand for another address.
            connector=aiohttp.TCPConnector(use_dns_cache=False),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
        )
        await self._look_up()
        self._tasks = [
            asyncio.create_task(self._sweep(), name="alert sweep"),
            asyncio.create_task(self._keep_looking_up(), name="alertmanager look-up"),
        ]

    async def stop(self) -> None:
        """Ends at once: what is owed, the next holder of the table owes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(replica.stop() for replica in self._replicas.values()))
        self._tasks = []
        self._replicas = {}
        if self._session is not None:
            await self._session.close()

    def wake(self) -> None:
        self._changed.set()

    async def _sweep(self) -> None:
        while True:
            self._changed.clear()
            begun = time.monotonic()
            self._refresh()
            await asyncio.sleep(REST_FACTOR * (time.monotonic() - begun))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), SWEEP_SECONDS)

    def _refresh(self) -> None:
        valid: dict[Identity, Alert] = {}
        invalid: dict[Identity, Alert] = {}
        for alert in self._source(self._clock()):
            try:
                check(alert)
            except InvalidAlertError as error:
                invalid[alert.identity] = alert
                if self._invalid.get(alert.identity) != alert:  # once, not once a sweep
                    _log.error("alert not sent", error=str(error))
                    self._observer.invalid(alert)
            else:
                valid[alert.identity] = alert
        self._current, self._invalid = valid, invalid
        for replica in self._replicas.values():
            replica.offer(valid)

    async def _keep_looking_up(self) -> None:
        while True:
            await asyncio.sleep(self._resolve_seconds)
            await self._look_up()

    async def _look_up(self) -> None:
        assert self._session is not None
        for url in self._urls:
            try:
                self._found[url] = await resolve(url)
            except UnresolvedError as error:
                # What was found before stays: a name server that is away does not silence pages.
                _log.warning("alertmanager not found", error=str(error))
        wanted = {endpoint for endpoints in self._found.values() for endpoint in endpoints}
        for endpoint in wanted - self._replicas.keys():
            replica = self._replicas[endpoint] = Replica(
                endpoint,
                self._session,
                clock=self._clock,
                observer=self._observer,
                resend_seconds=self._resend_seconds,
                access=self._access,
            )
            replica.offer(self._current)
            replica.start()
        for endpoint in self._replicas.keys() - wanted:
            await self._replicas.pop(endpoint).stop()
