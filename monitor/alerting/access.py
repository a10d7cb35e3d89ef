"""How a worker shows who it is to an Alertmanager, and how it knows that it talks to one."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import msgspec

from monitor.alerting.endpoints import Endpoint
from monitor.errors import MonitorError


class NoCredentialsError(MonitorError):
    """A file with credentials cannot be read now."""


class Access(msgspec.Struct, frozen=True):
    """``username`` and ``password`` or ``token_file``: for Alertmanagers whose URL carries no user of its own.

    ``tls`` None: certificates are checked against the system's CAs.
    """

    username: str | None = None
    password: str | None = None
    token_file: Path | None = None
    tls: ssl.SSLContext | None = None

    async def authorization(self, endpoint: Endpoint) -> str | None:
        """Value of the Authorization header, None without credentials. Raises NoCredentialsError."""
        if endpoint.username is not None:
            return aiohttp.encode_basic_auth(endpoint.username, endpoint.password or "", "utf-8")
        if self.username is not None:
            return aiohttp.encode_basic_auth(self.username, self.password or "", "utf-8")
        if self.token_file is None:
            return None
        try:
            # Anew each time: tokens of a cluster live for an hour, a worker for weeks.
            token = await asyncio.to_thread(self.token_file.read_text, encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise NoCredentialsError(
                f"MONITOR_ALERTMANAGER_TOKEN_FILE: {self.token_file} cannot be read ({error})"
            ) from error
        if not token.strip().isprintable() or not token.strip():
            raise NoCredentialsError(
                f"MONITOR_ALERTMANAGER_TOKEN_FILE: {self.token_file} must hold one token on one line"
            )
        return f"Bearer {token.strip()}"
