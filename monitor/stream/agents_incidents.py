"""The incident agent: a table of alert groups, and their delivery to every Alertmanager."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

import faust
from mode import Service

from monitor import codec
from monitor.alerting import groups
from monitor.alerting.access import Access
from monitor.alerting.alert import Alert, Identity
from monitor.alerting.alertmanager import Alertmanagers, wall_clock
from monitor.alerting.board import GROUP_LIMIT, Board, PagingConfig, channel_of
from monitor.alerting.content import PageConfig, incident_alert
from monitor.alerting.groups import Channel, GroupKey, GroupRow
from monitor.alerting.replica import DeliveryObserver, Outcome
from monitor.errors import UndecodableRecord
from monitor.logs import get_logger
from monitor.model import Incident
from monitor.settings import Settings, milliseconds, security
from monitor.stream.fence import Lease
from monitor.stream.keyed import KeyedAgent
from monitor.stream.tables import ALERT_GROUPS, fenced_table
from monitor.stream.topics import TopicNames
from monitor.telemetry import Telemetry

ROW_KEEP_MS: Final = (
    86_400_000  # a group's row outlives its alert by a day: long past any commit that lags
)
PURGE_SECONDS: Final = 60.0
GAUGE_SECONDS: Final = 1.0
_AWAITED_LIMIT: Final = (
    100  # incidents of one alert whose way to the page is timed; a storm needs no more
)
_AWAITED_ALERTS: Final = 1000  # alerts that are timed; the one that waits longest may never be sent
_DASHBOARD_PATH: Final = "/d/agent-monitor-incidents"

_log: Final = get_logger(__name__)


def paging_config(settings: Settings) -> PagingConfig:
    dashboard = settings.dashboard_url
    return PagingConfig(
        PageConfig(
            runbooks=settings.runbook_url,
            dashboard=None if dashboard is None else dashboard.rstrip("/") + _DASHBOARD_PATH,
            labels=settings.alert_labels,
        ),
        scorers=settings.page_scorers,
        quiet_ms=milliseconds(settings.incident_quiet),
        max_age_ms=milliseconds(settings.page_max_age),
    )


def alertmanager_access(settings: Settings) -> Access:
    password = settings.alertmanager_password
    return Access(
        settings.alertmanager_username,
        None if password is None else password.get_secret_value(),
        settings.alertmanager_token_file,
        security.alertmanager_ssl_context(settings),
    )


class IncidentAgent(KeyedAgent):
    """Counts each incident once, whatever is redelivered, and wakes the delivery at once."""

    name: ClassVar[str] = "incidents"

    def __init__(
        self,
        app: faust.App,
        settings: Settings,
        telemetry: Telemetry,
        lease: Lease,
        *,
        clock: Callable[[], int] = wall_clock,
    ) -> None:
        self.table = fenced_table(app, settings, ALERT_GROUPS)
        super().__init__(
            app,
            settings,
            telemetry,
            lease,
            topic=TopicNames(settings.topic_prefix).incidents,
            tables=[self.table],
        )
        self._clock = clock
        self.config = paging_config(settings)
        self.board = Board(self.config)
        self._observer = DeliveryMetrics(telemetry, clock)
        self.delivery = Alertmanagers(
            settings.alertmanager_urls,
            self._alerts,
            observer=self._observer,
            access=alertmanager_access(settings),
            clock=clock,
        )

    async def handle(self, message: Any) -> list[asyncio.Future[Any]]:
        incident = codec.decode_output(message.value or b"")
        if not isinstance(incident, Incident):
            raise UndecodableRecord(f"a {type(incident).__name__} is no incident")
        key = message.key or b""
        group = groups.decode_key(key)
        if message.offset <= self.table.fence(key):
            self._count("skipped")
            return []
        payload = self.table.payload(key)
        before = GroupRow(group) if payload is None else groups.decode_row(payload)
        now_ms = self._clock()
        channel = channel_of(incident, self.config, now_ms)
        row = groups.apply(
            before, incident, channel=channel, now_ms=now_ms, quiet_ms=self.config.quiet_ms
        )
        writes: list[asyncio.Future[Any]] = []
        if payload is None and self.board.full:
            lesser = self.board.lesser(row) if row.total else None
            if lesser is None:
                self._past_limit(incident, group, channel, now_ms)
                return []
            self._lease.require()
            self.board.give_up(lesser, now_ms)
            writes.append(self.table.drop(lesser))
        self._lease.require()
        write = self.table.put(message.partition, key, message.offset, groups.encode_row(row))
        self.board.put(key, row)
        counted = groups.channel_in(row, incident)
        if counted is not None and counted != groups.channel_in(before, incident):
            if counted != "page":
                why = "age" if counted == "old" else "shadow"
                self._telemetry.incidents_not_pushed_total.labels(why).inc()
            elif row.page is not None:
                alert = incident_alert(group, row.page, self.config.page, ended_ms=None)
                self._observer.expect(alert, incident)
        self.delivery.wake()
        self._count("applied")
        return [*writes, write]

    def _past_limit(
        self, incident: Incident, group: GroupKey, channel: Channel, now_ms: int
    ) -> None:
        """No row for a group more: counted with others of its severity, while this process lives."""
        if groups.group_of(incident) == group and self.board.count_past_limit(
            incident, channel, now_ms
        ):
            self._telemetry.incidents_not_pushed_total.labels("groups").inc()
        self.delivery.wake()
        self._count("applied")

    async def on_recovered(self) -> None:
        rows = {}
        for key in list(self.table.rows.data):
            payload = self.table.payload(key)
            assert payload is not None
            try:
                rows[key] = groups.decode_row(payload)
            except UndecodableRecord as error:
                _log.error("alert group dropped", key=key[:200], error=str(error))
                self.table.drop(key)
        self.board.replace(rows)
        self.delivery.wake()

    def purge(self) -> int:
        """Drop the rows of groups that have been over for a day, or are over where rows are many; returns how many."""
        if not self._lease.held:
            return 0
        keep_ms = ROW_KEEP_MS if len(self.board) < GROUP_LIMIT // 2 else 0
        gone = [
            key
            for key, row in self.board.rows()
            if groups.over(
                row, now_ms=self._clock(), quiet_ms=self.config.quiet_ms, keep_ms=keep_ms
            )
        ]
        for key in gone:
            self.board.drop(key)
            self.table.drop(key)
        return len(gone)

    def show(self) -> None:
        """Set the gauges."""
        firing: dict[str, int] = defaultdict(int)
        for alert in self._alerts(self._clock()):
            firing[alert.labels["severity"]] += alert.ended_ms is None
        for severity in ("critical", "warning", "info"):
            self._telemetry.alerts_firing.labels(severity).set(firing[severity])
        self._telemetry.delivery_queue.set(self.delivery.owed)

    def _alerts(self, now_ms: int) -> Iterable[Alert]:
        """Nothing while another worker may own the groups: it speaks for them."""
        return self.board.alerts(now_ms) if self._lease.held else ()


class Paging(Service):
    """Runs the delivery, the gauges and the purge beside the agent."""

    def __init__(self, agent: IncidentAgent, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._agent = agent

    async def on_start(self) -> None:
        await self._agent.delivery.start()

    async def on_stop(self) -> None:
        await self._agent.delivery.stop()

    @Service.task
    async def _show(self) -> None:
        async for _ in self.itertimer(GAUGE_SECONDS, name="paging gauges"):
            self._agent.show()

    @Service.task
    async def _purge(self) -> None:
        async for _ in self.itertimer(PURGE_SECONDS, name="alert group purge"):
            self._agent.purge()


class DeliveryMetrics(DeliveryObserver):
    """Counts posts, and times the way from a span's Kafka record to the first Alertmanager's answer."""

    def __init__(self, telemetry: Telemetry, clock: Callable[[], int]) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._awaited: dict[Identity, list[tuple[int, int]]] = {}  # (count, cause in ms)

    def expect(self, alert: Alert, incident: Incident) -> None:
        if incident.caused_at_ms <= 0:
            return
        awaited = self._awaited.setdefault(alert.identity, [])
        if len(self._awaited) > _AWAITED_ALERTS:
            del self._awaited[next(iter(self._awaited))]
        if alert.count == 1:
            awaited.clear()  # another episode
        if len(awaited) < _AWAITED_LIMIT:
            awaited.append((alert.count, incident.caused_at_ms))

    def posted(self, replica: str, outcome: Outcome) -> None:
        self._telemetry.deliveries_total.labels(replica, outcome).inc()
        if outcome == "ok":
            gauge = self._telemetry.delivery_last_success_timestamp_seconds.labels(replica)
            gauge.set(self._clock() / 1000)

    def taken(self, alerts: Sequence[Alert]) -> None:
        now_ms = self._clock()
        for alert in alerts:
            awaited = self._awaited.pop(alert.identity, [])
            late = [(count, cause) for count, cause in awaited if count > alert.count]
            if late:
                self._awaited[alert.identity] = late
            histogram = self._telemetry.span_to_page_seconds.labels(alert.labels["severity"])
            for count, cause in awaited:
                if count <= alert.count:
                    histogram.observe(max(0, now_ms - cause) / 1000)

    def invalid(self, alert: Alert) -> None:
        del alert  # its labels are what is wrong with it
        self._telemetry.deliveries_total.labels("all", "invalid").inc()
