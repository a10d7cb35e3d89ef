"""The Faust app: agents, their tables, and the services of this worker's other stages."""

from __future__ import annotations

import ssl
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from faust import auth
from mode import Service
from mode.types import ServiceT

from monitor.logs import get_logger
from monitor.settings import Settings
from monitor.stream.agents_drift import DriftAgent
from monitor.stream.agents_incidents import IncidentAgent, Paging
from monitor.stream.agents_sessions import SessionAgent, SessionsShown
from monitor.stream.clients import HEARTBEAT_MS, SESSION_TIMEOUT_MS, group_id
from monitor.stream.faust_overrides import OverriddenApp
from monitor.stream.fence import BEAT_SECONDS, Lease
from monitor.stream.keyed import AGENTS, KeyedAgent
from monitor.stream.recovering import RecoveryWatch
from monitor.stream.tables import ROW_LIMIT
from monitor.telemetry import Telemetry

COMMIT_SECONDS: Final = (
    1.0  # what comes again after a crash; every message is fenced, so it may be much
)
REQUEST_SECONDS: Final = 40.0  # aiokafka's own default; Faust's 90 would hold a rebalance that long
REJOIN_SECONDS: Final = 10.0  # between two requests to be given our partitions anew
LAG_SECONDS: Final = 2.0
BUFFER_MESSAGES: Final = 256  # of a stream; thousands slow Faust fivefold (measured)

_log: Final = get_logger(__name__)


class MonitorApp(OverriddenApp):
    """``services`` start before Faust's own and do not wait for the recovery of tables."""

    lease: Lease
    keyed: tuple[KeyedAgent, ...] = ()
    services: tuple[ServiceT, ...] = ()

    def on_init_dependencies(self) -> Iterable[ServiceT]:
        return [*self.services, *super().on_init_dependencies()]

    def _create_directories(self) -> None:
        """None: the tables are in memory."""

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """What keeps the agents from being ready; nothing: joined, and every table recovered."""
        if not self.keyed:
            return ()
        if self.rebalancing or self.rebalancing_count == 0:
            return ("the agents' partitions",)
        return () if self.tables.actives_ready else ("the agents' tables",)


def create_app(
    settings: Settings, telemetry: Telemetry, *, services: Sequence[ServiceT] = ()
) -> MonitorApp:
    """An app that has not started. ``services``: the worker's other stages, which live and die with it."""
    app = MonitorApp(
        group_id(settings, AGENTS),
        # Faust reads BROKER_URL, WEB_PORT and the like from the environment: this monitor has one prefix only.
        env=_Nothing(),
        broker=[f"kafka://{server}" for server in settings.bootstrap_servers],
        broker_credentials=_credentials(settings.kafka_client_args()),
        broker_client_id=group_id(settings, AGENTS),
        broker_commit_interval=COMMIT_SECONDS,
        broker_session_timeout=SESSION_TIMEOUT_MS / 1000,
        broker_heartbeat_interval=HEARTBEAT_MS / 1000,
        broker_request_timeout=REQUEST_SECONDS,
        consumer_group_instance_id=f"{settings.instance}-{AGENTS}" if settings.instance else None,
        # A group without commits, or whose commits were lost: all that is there; fences skip what was applied.
        consumer_auto_offset_reset="earliest",
        processing_guarantee="at_least_once",
        cython_optimizations=False,  # its streams ack past our consumer's own books
        stream_wait_empty=False,
        stream_buffer_maxsize=BUFFER_MESSAGES,
        producer_acks=-1,
        producer_max_request_size=ROW_LIMIT,
        store="memory://",
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        topic_partitions=settings.partitions,
        web_enabled=False,
        datadir=Path(tempfile.gettempdir()) / "agent-monitor",  # named, never made
    )
    app.services = tuple(services)
    app.lease = Lease(SESSION_TIMEOUT_MS / 1000)
    if AGENTS not in settings.stages:
        app.producer_only = True
        return app
    incidents = IncidentAgent(app, settings, telemetry, app.lease)
    sessions = SessionAgent(app, settings, telemetry, app.lease)
    app.keyed = (incidents, DriftAgent(app, settings, telemetry, app.lease), sessions)
    app.services = (
        *app.services,
        Paging(incidents),
        SessionsShown(sessions),
        LeaseKeeper(app, telemetry),
        RecoveryWatch(app),
    )
    return app


class LeaseKeeper(Service):
    """Sets the stamp; when it comes too late, asks the group for our partitions anew."""

    def __init__(self, app: MonitorApp, telemetry: Telemetry, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._app = app
        self._telemetry = telemetry
        self._assigned = False
        self._asked = 0.0
        app.on_partitions_assigned.connect(cast(Any, self._on_assigned))

    async def _on_assigned(self, app: Any, assigned: Any, **_: Any) -> None:
        del app, assigned
        self._app.lease.renew()
        self._assigned = True

    @Service.task
    async def _beat(self) -> None:
        while not self.should_stop:
            held = self._app.lease.beat()
            self._telemetry.beat(AGENTS)
            if self._assigned and not held and not self._app.rebalancing:
                await self._rejoin()
            await self.sleep(BEAT_SECONDS)

    async def _rejoin(self) -> None:
        now = time.monotonic()
        if now - self._asked < REJOIN_SECONDS:
            return
        self._asked = now
        _log.warning("this process stood still: asking for its partitions anew")
        topics = {keyed.topic for keyed in self._app.keyed} | set(self._app.tables.changelog_topics)
        # A new subscription makes the member join again, even to the same topics.
        await self._app.consumer.subscribe(topics)

    @Service.task
    async def _lag(self) -> None:
        while not self.should_stop:
            await self.sleep(LAG_SECONDS)
            if self._app.lease.held and not self._app.rebalancing:
                for keyed in self._app.keyed:
                    await keyed.show_lag()


class _Nothing(dict[str, str]):
    """An environment in which nothing is set; true, since Faust takes an empty one for none."""

    def __bool__(self) -> bool:
        return True


def _credentials(args: dict[str, Any]) -> auth.Credentials | None:
    """aiokafka's security arguments as Faust takes them."""
    context = cast(ssl.SSLContext | None, args.get("ssl_context"))
    if "sasl_oauth_token_provider" in args:
        return auth.OAuthCredentials(
            oauth_cb=args["sasl_oauth_token_provider"], ssl_context=context
        )
    if "sasl_mechanism" in args:
        return auth.SASLCredentials(
            username=args["sasl_plain_username"],
            password=args["sasl_plain_password"],
            mechanism=args["sasl_mechanism"],
            ssl_context=context,
        )
    return None if context is None else auth.SSLCredentials(context)
