"""What the security settings mean to clients: of Kafka (the same for the batch loops, Faust and the CLI) and of Alertmanager."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any, Final

from aiokafka.abc import AbstractTokenProvider

from monitor.settings.sections import PagingSection, SecuritySection


class FileTokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is untyped
    """Bearer token out of a file that somebody else keeps fresh; read anew for each connection."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        return (await asyncio.to_thread(self._path.read_text, encoding="utf-8")).strip()


def faults_of(section: SecuritySection) -> list[str]:
    """What does not fit together, a line each; empty when all does."""
    faults = []
    sasl = section.security_protocol.startswith("SASL_")
    tls = section.security_protocol.endswith("SSL")
    mechanism = section.sasl_mechanism
    if sasl and mechanism is None:
        faults.append(
            f"MONITOR_SASL_MECHANISM: not set, but MONITOR_SECURITY_PROTOCOL is {section.security_protocol}; "
            "allowed: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"
        )
    if mechanism is not None and not sasl:
        faults.append(
            f"MONITOR_SASL_MECHANISM: {mechanism} has no effect with MONITOR_SECURITY_PROTOCOL="
            f"{section.security_protocol}; allowed with it: SASL_PLAINTEXT, SASL_SSL"
        )
    if sasl and mechanism == "OAUTHBEARER" and section.sasl_oauth_token_file is None:
        faults.append(
            "MONITOR_SASL_OAUTH_TOKEN_FILE: not set, but MONITOR_SASL_MECHANISM is OAUTHBEARER"
        )
    if sasl and mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        if section.sasl_username is None:
            faults.append(
                f"MONITOR_SASL_USERNAME: not set, but MONITOR_SASL_MECHANISM is {mechanism}"
            )
        if section.sasl_password is None:
            faults.append(
                f"MONITOR_SASL_PASSWORD (or MONITOR_SASL_PASSWORD_FILE): not set, but MONITOR_SASL_MECHANISM is {mechanism}"
            )
    if not tls:
        faults.extend(
            f"MONITOR_{name.upper()}: has no effect with MONITOR_SECURITY_PROTOCOL={section.security_protocol}; "
            "allowed with it: SSL, SASL_SSL"
            for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile")
            if getattr(section, name) is not None
        )
    if section.ssl_keyfile is not None and section.ssl_certfile is None:
        faults.append("MONITOR_SSL_CERTFILE: not set, but MONITOR_SSL_KEYFILE is")
    return faults


def ssl_context(section: SecuritySection) -> ssl.SSLContext | None:
    """None without TLS. Raises OSError (ssl.SSLError is one) when a file is missing or no PEM."""
    if not section.security_protocol.endswith("SSL"):
        return None
    context = ssl.create_default_context(cafile=section.ssl_cafile)
    context.check_hostname = section.ssl_check_hostname
    if section.ssl_certfile is not None:
        password = section.ssl_key_password
        context.load_cert_chain(
            section.ssl_certfile,
            section.ssl_keyfile,
            # An empty one instead of None: OpenSSL would else ask on the terminal and hang a worker.
            password=password.get_secret_value() if password is not None else "",
        )
    return context


def client_args(section: SecuritySection) -> dict[str, Any]:
    """``security_protocol``, ``ssl_context`` and ``sasl_*`` as aiokafka's clients take them."""
    args: dict[str, Any] = {"security_protocol": section.security_protocol}
    context = ssl_context(section)
    if context is not None:
        args["ssl_context"] = context
    if section.sasl_mechanism is not None:
        args["sasl_mechanism"] = section.sasl_mechanism
        if section.sasl_mechanism == "OAUTHBEARER":
            assert section.sasl_oauth_token_file is not None  # checked when loaded
            args["sasl_oauth_token_provider"] = FileTokenProvider(section.sasl_oauth_token_file)
        else:
            assert section.sasl_password is not None
            args["sasl_plain_username"] = section.sasl_username
            args["sasl_plain_password"] = section.sasl_password.get_secret_value()
    return args


def alertmanager_faults_of(section: PagingSection) -> list[str]:
    """What does not fit together of the way to Alertmanager, a line each."""
    faults = []
    if section.alertmanager_username is not None and section.alertmanager_token_file is not None:
        faults.append(
            "MONITOR_ALERTMANAGER_TOKEN_FILE: set together with MONITOR_ALERTMANAGER_USERNAME; allowed: one of the two"
        )
    if section.alertmanager_username is not None and section.alertmanager_password is None:
        faults.append(
            "MONITOR_ALERTMANAGER_PASSWORD (or MONITOR_ALERTMANAGER_PASSWORD_FILE): not set, but "
            "MONITOR_ALERTMANAGER_USERNAME is"
        )
    if section.alertmanager_password is not None and section.alertmanager_username is None:
        faults.append(
            "MONITOR_ALERTMANAGER_USERNAME: not set, but MONITOR_ALERTMANAGER_PASSWORD is"
        )
    if section.alertmanager_keyfile is not None and section.alertmanager_certfile is None:
        faults.append("MONITOR_ALERTMANAGER_CERTFILE: not set, but MONITOR_ALERTMANAGER_KEYFILE is")
    if not _any_https(section):
        faults.extend(
            f"MONITOR_{name.upper()}: has no effect, no URL of MONITOR_ALERTMANAGER_URLS is https"
            for name in _ALERTMANAGER_TLS
            if getattr(section, name)
        )
    return faults


_ALERTMANAGER_TLS: Final = (
    "alertmanager_cafile",
    "alertmanager_certfile",
    "alertmanager_keyfile",
    "alertmanager_insecure_skip_verify",
)


def _any_https(section: PagingSection) -> bool:
    return any(url.removeprefix("dns+").startswith("https:") for url in section.alertmanager_urls)


def alertmanager_ssl_context(section: PagingSection) -> ssl.SSLContext | None:
    """None where no URL is https. Raises OSError (ssl.SSLError is one) when a file is missing or no PEM."""
    if not _any_https(section):
        return None
    context = ssl.create_default_context(cafile=section.alertmanager_cafile)
    if section.alertmanager_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if section.alertmanager_certfile is not None:
        context.load_cert_chain(
            section.alertmanager_certfile,
            section.alertmanager_keyfile,
            password="",  # OpenSSL would else ask on the terminal for that of a locked key
        )
    return context
