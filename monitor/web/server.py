"""Runs the web application for as long as a worker lives."""

from __future__ import annotations

from types import TracebackType

from aiohttp import web


class WebServer:
    """``async with WebServer(app, host, port) as server:`` listens; ``server.port`` is the real one."""

    def __init__(self, app: web.Application, host: str, port: int) -> None:
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=1.0
        )
        self._host, self._port = host, port
        self.port = port

    async def start(self) -> None:
        """Raises OSError where the address is taken, not this machine's, or not ours to use."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError:
            await self.stop()
            raise
        self.port = int(self._runner.addresses[0][1])  # the one that the system chose for port 0

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def __aenter__(self) -> WebServer:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
