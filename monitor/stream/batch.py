"""Runs the batch loops alone in this process: `python -m monitor.stream.batch`.

For tests and benchmarks of the Kafka spine; the worker runs the same services inside its Faust app.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from mode import Service

from monitor.settings import Settings
from monitor.stream.assemble import AssembleService
from monitor.stream.ingest import IngestService
from monitor.telemetry import Telemetry


def services(settings: Settings, telemetry: Telemetry) -> list[Service]:
    """The stages of MONITOR_STAGES that are batch loops, not started."""
    made: list[Service] = []
    if "ingest" in settings.stages:
        made.append(IngestService(settings, telemetry))
    if "assemble" in settings.stages:
        made.append(AssembleService(settings, telemetry))
    return made


async def run(settings: Settings, telemetry: Telemetry) -> int:
    """Until SIGTERM or SIGINT (0), or until a service has crashed (1)."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    running = services(settings, telemetry)
    for service in running:
        await service.start()
    while not stop.is_set() and not any(service.crashed for service in running):
        try:
            async with asyncio.timeout(0.2):
                await stop.wait()
        except TimeoutError:
            continue
    await asyncio.gather(*(service.stop() for service in running))
    return 1 if any(service.crashed for service in running) else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run(Settings.load(), Telemetry())))
