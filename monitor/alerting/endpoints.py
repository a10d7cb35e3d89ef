"""Where the Alertmanagers are: the configured URLs, and for ``dns+…`` ones every address that the name has now."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from monitor.errors import MonitorError

DNS_PREFIX = "dns+"
_DEFAULT_PORTS = {"http": 80, "https": 443}


class UnresolvedError(MonitorError):
    """A name of an Alertmanager URL has no address now."""


class Endpoint(msgspec.Struct, frozen=True):
    """One Alertmanager. ``name``: host and port, for metrics and logs, never credentials.

    ``host_header``, ``server_name``: of the configured name where ``url`` holds one of its addresses.
    """

    name: str
    url: str
    host_header: str | None = None
    server_name: str | None = None
    username: str | None = None
    password: str | None = None


async def resolve(url: str) -> list[Endpoint]:
    """The Alertmanagers behind one configured URL, sorted. Raises UnresolvedError.

    A plain URL is one Alertmanager (its name is looked up at each connection); a ``dns+`` URL is as many as its
    name has addresses, as a headless Kubernetes service gives them.
    """
    parts = urlsplit(url.removeprefix(DNS_PREFIX))
    host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
    if not url.startswith(DNS_PREFIX):
        return [_endpoint(parts, host, port)]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnresolvedError(
            f"Alertmanager {host}:{port} of MONITOR_ALERTMANAGER_URLS cannot be looked up: {error}"
        ) from error
    addresses = sorted({str(address[4][0]) for address in found})
    return [
        _endpoint(parts, address, port, host_header=_authority(host, port), server_name=host)
        for address in addresses
    ]


def _endpoint(
    parts: SplitResult,
    host: str,
    port: int,
    *,
    host_header: str | None = None,
    server_name: str | None = None,
) -> Endpoint:
    authority = _authority(host, port)
    return Endpoint(
        name=authority,
        url=f"{parts.scheme}://{authority}{parts.path.rstrip('/')}/api/v2/alerts",
        host_header=host_header,
        server_name=server_name if parts.scheme == "https" else None,
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
    )


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
