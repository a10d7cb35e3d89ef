"""One Alertmanager and what it is owed: posts, retries with backoff, and what it answered to so far."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, Literal, Protocol

import aiohttp
import msgspec
import structlog
import tenacity

from monitor.alerting.access import Access, NoCredentialsError
from monitor.alerting.alert import Alert, Identity, to_api
from monitor.alerting.endpoints import Endpoint
from monitor.errors import MonitorError

Outcome = Literal["ok", "rejected", "failed"]
"""Of a post: taken; refused for what it holds; anything else, which is tried again."""


class DeliveryObserver(Protocol):
    """Who counts what happens."""

    def posted(self, replica: str, outcome: Outcome) -> None: ...

    def taken(self, alerts: Sequence[Alert]) -> None:
        """An Alertmanager holds these now."""

    def invalid(self, alert: Alert) -> None:
        """It will not be sent: every Alertmanager would refuse it."""


LEASE_INTERVALS: Final = 4  # an alert ends that many intervals after it was last sent: 3 may fail
PAUSE_SECONDS: Final = 0.2  # between two posts: a storm of incidents becomes 5 posts a second
TIMEOUT_SECONDS: Final = 5.0  # of one post; Alertmanager answers in milliseconds
BATCH: Final = 64  # alerts a post: about 150 kB

_FIRST_RETRY: Final = 0.2
_LAST_RETRY: Final = 5.0  # an Alertmanager that comes back gets its pages within this

_log: Final = structlog.get_logger(__name__)


class UndeliveredError(MonitorError):
    """An Alertmanager did not take alerts, for a reason that may pass."""


class _RefusedError(MonitorError):
    """It refused them for what they are: sent again the same way they would be refused again."""


class Replica:
    """Keeps one Alertmanager at the level of `offer`. Runs as a task from `start` to `stop`."""

    def __init__(
        self,
        endpoint: Endpoint,
        session: aiohttp.ClientSession,
        *,
        clock: Callable[[], int],
        observer: DeliveryObserver,
        resend_seconds: float,
        access: Access,
    ) -> None:
        self.endpoint = endpoint
        self._access = access
        self._session = session
        self._clock = clock
        self._observer = observer
        self._resend = resend_seconds
        self._wanted: Mapping[Identity, Alert] = {}
        self._settled: dict[
            Identity, tuple[Alert, float]
        ] = {}  # what it answered to last, and when
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"alertmanager {self.endpoint.name}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def offer(self, wanted: Mapping[Identity, Alert]) -> None:
        """From now on it is owed these alerts, as they are."""
        self._wanted = wanted
        for gone in self._settled.keys() - wanted.keys():
            del self._settled[gone]
        self._wake.set()

    def owed(self) -> list[Alert]:
        """What it has not answered to as it is now, or not for an interval; what is new to it comes first."""
        now = time.monotonic()
        new, changed, again = [], [], []
        for identity, alert in self._wanted.items():
            settled = self._settled.get(identity)
            if settled is None:
                new.append(alert)
            elif settled[0] != alert:
                changed.append(alert)
            elif now - settled[1] >= self._resend:
                again.append(alert)
        return [*new, *changed, *again]

    async def _run(self) -> None:
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(UndeliveredError),
            # Jitter: the workers of a fleet must not come back in step.
            wait=tenacity.wait_random_exponential(multiplier=_FIRST_RETRY, max=_LAST_RETRY),
            before_sleep=self._say_failed,
        )
        while True:
            # Each attempt looks anew at what is owed: an outage ends with the present, not with its history.
            async for attempt in retrying:
                with attempt:
                    await self._deliver(self.owed())
            await asyncio.sleep(PAUSE_SECONDS)
            self._wake.clear()
            if not self.owed():
                await self._wake.wait()

    async def _deliver(self, alerts: Sequence[Alert]) -> None:
        for start in range(0, len(alerts), BATCH):
            await self._deliver_batch(alerts[start : start + BATCH])

    async def _deliver_batch(self, alerts: Sequence[Alert]) -> None:
        try:
            await self._post(alerts)
        except UndeliveredError:
            self._observer.posted(self.endpoint.name, "failed")
            raise
        except _RefusedError as error:
            self._observer.posted(self.endpoint.name, "rejected")
            if len(alerts) > 1:
                # Alertmanager stores the good ones of a refused batch, but says not which they are.
                for alert in alerts:
                    await self._deliver_batch([alert])
                return
            _log.error(
                "alert refused",
                alertmanager=self.endpoint.name,
                labels=alerts[0].labels,
                error=str(error),
            )
            self._settle(alerts)  # until it changes or its interval is over
        else:
            self._settle(alerts)
            self._observer.posted(self.endpoint.name, "ok")
            self._observer.taken(alerts)

    def _settle(self, alerts: Sequence[Alert]) -> None:
        now = time.monotonic()
        for alert in alerts:
            self._settled[alert.identity] = (alert, now)

    async def _post(self, alerts: Sequence[Alert]) -> None:
        now_ms, lease_ms = self._clock(), round(LEASE_INTERVALS * self._resend * 1000)
        body = [to_api(alert, now_ms=now_ms, lease_ms=lease_ms) for alert in alerts]
        headers = {"Content-Type": "application/json"}
        if self.endpoint.host_header is not None:
            headers["Host"] = self.endpoint.host_header
        try:
            authorization = await self._access.authorization(self.endpoint)
            if authorization is not None:
                headers["Authorization"] = authorization
            async with self._session.post(
                self.endpoint.url,
                data=msgspec.json.encode(body),
                headers=headers,
                ssl=self._access.tls if self._access.tls is not None else True,
                server_hostname=self.endpoint.server_name,
                allow_redirects=False,  # a redirected POST arrives as a GET and is lost
            ) as response:
                if response.ok and response.status < HTTPStatus.MULTIPLE_CHOICES:
                    return
                said = (await response.content.read(500)).decode(errors="replace")
        except NoCredentialsError as error:
            raise UndeliveredError(str(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UndeliveredError(
                f"Alertmanager {self.endpoint.name} does not answer: {str(error) or type(error).__name__}"
            ) from error
        problem = f"Alertmanager {self.endpoint.name} answers {response.status}: {said.strip()}"
        if response.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
            raise _RefusedError(problem)
        raise UndeliveredError(problem)

    def _say_failed(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        _log.warning(
            "alerts not delivered, retrying",
            alertmanager=self.endpoint.name,
            attempt=state.attempt_number,
            error=str(error),
        )
