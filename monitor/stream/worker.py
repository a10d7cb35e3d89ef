"""One worker process: its stages, the agents and the web server, from start to a clean stop.

It ends by itself only for a fault of the whole worker: topics that differ from what is needed, a Kafka that stays away,
a bug outside a single message. A bad partition, message or alert is not one.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from typing import Any, Final, cast

from aiokafka.errors import KafkaError

from monitor import logs
from monitor.chatter import taken
from monitor.errors import InvalidSettings, MonitorError
from monitor.logs import get_logger
from monitor.settings import Settings
from monitor.stream import clients, topics
from monitor.stream.app import MonitorApp, create_app
from monitor.stream.assemble import AssembleService
from monitor.stream.ingest import IngestService
from monitor.stream.keyed import AGENTS
from monitor.stream.tables import changelog_specs
from monitor.stream.topics import TopicNames
from monitor.telemetry import Telemetry
from monitor.telemetry.known import AGENT_REASONS, FRAGMENT_REASONS
from monitor.trace.records import FRAGMENTS_TOPIC
from monitor.web import Readiness, WebServer, create_web

OK: Final = 0
FAULT: Final = 1
MISFIT: Final = 2
"""The cluster's topics, or the settings, do not fit: a restart will not help."""

STOP_SECONDS: Final = 20.0  # for all parts together: below the 30 s that Kubernetes grants
_FIRST_CONNECT_SECONDS: Final = 1.0  # between two tries to reach Kafka at start, doubling
_LAST_CONNECT_SECONDS: Final = 30.0

_log: Final = get_logger(__name__)


def run_worker(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns the process's exit code: OK, FAULT or MISFIT."""
    logs.configure(settings.log_level, settings.log_format)
    return asyncio.run(_run(settings))


async def _run(settings: Settings) -> int:
    return await Worker(settings).run()


async def ensure_topics(settings: Settings) -> None:
    """All topics of this worker's stages are there and as needed. Raises TopicMismatch, KafkaError."""
    async with clients.admin(settings) as admin:
        largest = await topics.largest_input(admin, [spec.topic for spec in settings.inputs])
        wanted = topics.specs(settings, largest_input=largest)
        if AGENTS in settings.stages:
            wanted = (*wanted, *changelog_specs(settings))
        await topics.ensure(admin, wanted)


def _show_at_zero(telemetry: Telemetry, settings: Settings) -> None:
    """Whatever these settings let be counted: a series that is born with its first burst shows no increase."""
    names = TopicNames(settings.topic_prefix)
    telemetry.declare_inputs([spec.topic for spec in settings.inputs])
    telemetry.declare_dead_letters({FRAGMENTS_TOPIC, names.fragments}, FRAGMENT_REASONS)
    telemetry.declare_dead_letters((names.incidents, names.score_deltas), AGENT_REASONS)
    telemetry.declare_policies(policy.name for policy in settings.fold_settings().policies)


class Worker:
    """`run` is the whole life; `port` is the web server's once it runs."""

    def __init__(self, settings: Settings, telemetry: Telemetry | None = None) -> None:
        self._settings = settings
        self.telemetry = telemetry if telemetry is not None else Telemetry()
        _show_at_zero(self.telemetry, settings)
        self.stages = tuple(
            stage(settings, self.telemetry)
            for stage in (IngestService, AssembleService)
            if stage.stage in settings.stages
        )
        self.app: MonitorApp | None = None
        self.web = WebServer(
            create_web(self.telemetry, readiness=self.readiness, faults=self.faults),
            settings.web_host,
            settings.web_port,
        )
        self._servers = ",".join(settings.bootstrap_servers)
        self._stop = asyncio.Event()

    def readiness(self) -> Readiness:
        if self.app is None:
            return Readiness((f"Kafka at {self._servers}",))
        stages = [f"the lanes of {stage.stage}" for stage in self.stages if not stage.ready]
        return Readiness((*stages, *self.app.waiting_for))

    def faults(self) -> Sequence[str]:
        if self.app is not None and self.app.crashed:
            return (f"crashed: {self.app.crash_reason!r}",)
        return ()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self.stop)
        try:
            await self._listen()
            _log.info("worker started", stages=list(self._settings.stages), web_port=self.web.port)
            for note in self._settings.notes():
                _log.warning(note)
            return await self._serve() if await self._prepare() else OK
        except MonitorError as error:
            _log.error("worker does not fit", error=str(error))
            return MISFIT
        except Exception:  # noqa: BLE001 - the last place that can say why the process ends
            _log.exception("worker failed")
            return FAULT
        finally:
            await self.web.stop()
            for signum in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(signum)

    async def _listen(self) -> None:
        """Open the web server: before anything else, so that probes and scrapes see a worker that waits."""
        try:
            await self.web.start()
        except OSError as error:
            host, port = self._settings.web_host, self._settings.web_port
            raise InvalidSettings(
                f"MONITOR_WEB_PORT: cannot listen on port {port} of MONITOR_WEB_HOST {host} ({error.strerror or error}); "
                "take another port, or 0 for a free one"
            ) from error

    async def _prepare(self) -> bool:
        """Kafka answers and the topics are as needed. False: told to stop meanwhile. Raises TopicMismatch."""
        delay = _FIRST_CONNECT_SECONDS
        while not self._stop.is_set():
            with taken("aiokafka") as said:
                refusal = await self._ensure_topics()
            if refusal is None:
                if said:
                    _log.warning("some of MONITOR_BOOTSTRAP_SERVERS do not answer", said=said)
                return True
            _log.warning(
                "waiting for Kafka: is MONITOR_BOOTSTRAP_SERVERS right, and MONITOR_SECURITY_PROTOCOL?",
                servers=self._servers,
                error=clients.why(refusal, said),
                again_in=delay,
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay)
            delay = min(2 * delay, _LAST_CONNECT_SECONDS)
        return False

    async def _ensure_topics(self) -> KafkaError | None:
        try:
            await ensure_topics(self._settings)
        except KafkaError as error:
            return error
        return None

    async def _serve(self) -> int:
        if AGENTS in self._settings.stages and not self._settings.alertmanager_urls:
            _log.warning(
                "no page will be sent: MONITOR_ALERTMANAGER_URLS is not set; incidents are recorded only"
            )
        self.app = app = create_app(self._settings, self.telemetry, services=self.stages)
        starting = asyncio.create_task(app.start(), name="start")
        ending = asyncio.create_task(self._told_or_crashed(app), name="end")
        try:
            await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()  # raises what start() raised
                await ending
            if app.crashed:
                _log.error("worker crashed", error=repr(app.crash_reason))
                return FAULT
            _log.info("worker stops")
            return OK
        finally:
            for task in (starting, ending):
                task.cancel()
            await self._stop_app(app)

    async def _told_or_crashed(self, app: MonitorApp) -> None:
        await app.wait_for_stopped(cast(Any, self._stop))  # mode's own Event type does as much

    async def _stop_app(self, app: MonitorApp) -> None:
        try:
            await asyncio.wait_for(app.stop(), STOP_SECONDS)
        except TimeoutError:
            # Nothing is lost: what was not committed is done again by the next owner.
            _log.warning("not all parts stopped in time", seconds=STOP_SECONDS)
