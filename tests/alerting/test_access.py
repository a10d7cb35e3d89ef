"""Authentication and TLS: to a real Alertmanager that asks for both, and refuses what it should."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from monitor.alerting.access import Access, NoCredentialsError
from monitor.alerting.endpoints import resolve
from monitor.errors import InvalidSettings
from monitor.settings import Settings
from monitor.stack import Alertmanager, WebhookReceiver
from monitor.stack.process import ChildProcess
from monitor.stream.agents_incidents import alertmanager_access
from tests.alerting.test_alertmanager import FalseAlertmanager, alert, delivering, until

PASSWORD = "hunter2"
HASH = "$2b$04$abcdefghijklmnopqrstuuV3duMsC0HpUex6N9qapiuOHHWkwRXVm"  # bcrypt of it


class Pki:
    """A CA, a server's certificate for localhost and a client's, all good for a day."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl(
            *(
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "1",
                "-subj",
                "/CN=test CA",
            ),
            *("-out", self.file("ca.pem"), "-keyout", self.file("ca.key")),
        )
        self._issue("server", "subjectAltName=DNS:localhost")
        self._issue("client", "extendedKeyUsage=clientAuth")

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def _issue(self, name: str, extension: str) -> None:
        self._openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-out", self.file(f"{name}.csr"), "-keyout", self.file(f"{name}.key")),
        )
        Path(self.file(f"{name}.ext")).write_text(extension)
        self._openssl(
            *("x509", "-req", "-days", "1", "-in", self.file(f"{name}.csr"), "-CAcreateserial"),
            *("-CA", self.file("ca.pem"), "-CAkey", self.file("ca.key")),
            *("-extfile", self.file(f"{name}.ext"), "-out", self.file(f"{name}.pem")),
        )

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True)


class Guarded(Alertmanager):
    """Takes TLS with a client certificate, and one user's password."""

    def __init__(self, pki: Pki, **options: Any) -> None:
        super().__init__(**options)
        self._pki = pki

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def _prepare(self) -> Sequence[str | Path]:
        web = self.data_dir / "web.yml"
        web.write_text(
            f"tls_server_config:\n  cert_file: {self._pki.file('server.pem')}\n"
            f"  key_file: {self._pki.file('server.key')}\n  client_auth_type: RequireAndVerifyClientCert\n"
            f"  client_ca_file: {self._pki.file('ca.pem')}\nbasic_auth_users:\n  monitor: {HASH}\n"
        )
        return (*super()._prepare(), f"--web.config.file={web}")

    def _is_ready(self, child: ChildProcess) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return child.running
        return False


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def guarded(pki: Pki, require_binary: Any, webhook: WebhookReceiver) -> Iterator[Guarded]:
    require_binary("alertmanager")
    with Guarded(pki, receiver_url=webhook.url) as server:
        yield server


def settings_of(pki: Pki, url: str, **changes: str | None) -> Settings:
    values = {
        "alertmanager_urls": url,
        "alertmanager_username": "monitor",
        "alertmanager_password": PASSWORD,
        "alertmanager_cafile": pki.file("ca.pem"),
        "alertmanager_certfile": pki.file("client.pem"),
        "alertmanager_keyfile": pki.file("client.key"),
        **changes,
    }
    return Settings(**{name: value for name, value in values.items() if value is not None})


async def delivers(settings: Settings, unique: str) -> dict[str, int]:
    """Outcomes of the posts until the first that was taken, or the second that was not."""
    async with delivering(
        settings.alertmanager_urls,
        [alert("X", test=unique)],
        access=alertmanager_access(settings),
    ) as (_, seen):
        await until(lambda: seen.posts["ok"] or seen.posts["failed"] >= 2)
        return dict(seen.posts)


@pytest.mark.parametrize("prefix", ["", "dns+"])
async def test_a_page_goes_through_tls_certificate_and_password(
    guarded: Guarded, pki: Pki, webhook: WebhookReceiver, unique: str, tmp_path: Path, prefix: str
) -> None:
    """By an address that was looked up too: the certificate is compared with the name."""
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    settings = settings_of(
        pki,
        prefix + guarded.url,
        alertmanager_password=None,
        alertmanager_password_file=str(password),
    )
    # `localhost` may also stand for ::1, where nobody listens.
    assert (await delivers(settings, unique))["ok"] >= 1
    await asyncio.to_thread(webhook.wait_for, lambda a: a.labels.get("test") == unique, timeout=10)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"alertmanager_password": "wrong"}, id="another password"),
        pytest.param({"alertmanager_username": None, "alertmanager_password": None}, id="no user"),
        pytest.param({"alertmanager_cafile": None}, id="the system's CAs"),
        pytest.param(
            {"alertmanager_certfile": None, "alertmanager_keyfile": None}, id="no certificate"
        ),
    ],
)
async def test_without_one_of_them_nothing_is_taken(
    guarded: Guarded, pki: Pki, unique: str, changes: dict[str, str | None]
) -> None:
    posts = await delivers(settings_of(pki, guarded.url, **changes), unique)
    assert posts["failed"] >= 1  # how often it is tried again depends on the machine
    assert not posts.get("ok")


async def test_a_certificate_of_another_host_is_refused_unless_told_otherwise(
    guarded: Guarded, pki: Pki, unique: str
) -> None:
    url = f"https://127.0.0.1:{guarded.port}"  # the certificate says localhost
    assert (await delivers(settings_of(pki, url), unique))["failed"] == 2
    insecure = settings_of(
        pki, url, alertmanager_cafile=None, alertmanager_insecure_skip_verify="true"
    )
    assert (await delivers(insecure, unique))["ok"] >= 1
    (note,) = insecure.notes()
    assert "MONITOR_ALERTMANAGER_INSECURE_SKIP_VERIFY" in note
    assert settings_of(pki, url).notes() == ()


async def test_a_token_is_read_anew_for_each_post(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    alerts = [alert("A")]
    async with FalseAlertmanager() as server:
        settings = Settings(alertmanager_urls=server.url, alertmanager_token_file=str(token))
        async with delivering(
            settings.alertmanager_urls, alerts, access=alertmanager_access(settings)
        ) as (delivery, seen):
            await until(lambda: server.headers)
            token.unlink()  # as while it is replaced
            alerts.append(alert("B"))
            delivery.wake()
            await until(lambda: seen.posts["failed"])
            token.write_text("second")
            await until(lambda: "AgentMonitorB" in server.names)
    assert [h["Authorization"] for h in server.headers] == ["Bearer first", "Bearer second"]


async def test_a_user_in_the_url_goes_before_the_one_of_the_settings(tmp_path: Path) -> None:
    access = Access("all", "secret")
    (own,) = await resolve("http://me:p%C3%A4ss@am.example:9093")
    (plain,) = await resolve("http://am.example:9093")
    assert await access.authorization(own) == "Basic bWU6cMOkc3M="
    assert await access.authorization(plain) == "Basic YWxsOnNlY3JldA=="
    assert await Access().authorization(plain) is None
    for text in ("", "two\nlines", "tökén"):
        (tmp_path / "token").write_text(text)
        with pytest.raises(NoCredentialsError, match="MONITOR_ALERTMANAGER_TOKEN_FILE"):
            await Access(token_file=tmp_path / "token").authorization(plain)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"alertmanager_username": "me"}, "MONITOR_ALERTMANAGER_PASSWORD"),
        ({"alertmanager_password": PASSWORD}, "MONITOR_ALERTMANAGER_USERNAME"),
        (
            {
                "alertmanager_username": "me",
                "alertmanager_password": PASSWORD,
                "alertmanager_token_file": "token",
            },
            "allowed: one of the two",
        ),
        ({"alertmanager_keyfile": "server.key"}, "MONITOR_ALERTMANAGER_CERTFILE: not set"),
        (
            {"alertmanager_cafile": "ca.pem", "alertmanager_urls": "http://am:9093"},
            "MONITOR_ALERTMANAGER_CAFILE: has no effect",
        ),
        (
            {"alertmanager_insecure_skip_verify": "true", "alertmanager_urls": "http://am:9093"},
            "MONITOR_ALERTMANAGER_INSECURE_SKIP_VERIFY: has no effect",
        ),
        ({"alertmanager_cafile": "absent.pem"}, "absent.pem: no such file"),
        ({"alertmanager_cafile": "token"}, "MONITOR_ALERTMANAGER_*: the certificate files"),
        ({"alertmanager_token_file": "absent"}, "MONITOR_ALERTMANAGER_TOKEN_FILE: "),
    ],
)
def test_what_does_not_fit_together_is_told(pki: Pki, values: dict[str, str], told: str) -> None:
    Path(pki.file("token")).write_text("t")
    files = {
        name: pki.file(value) if name.endswith("file") else value for name, value in values.items()
    }
    with pytest.raises(InvalidSettings) as caught:
        Settings(**{"alertmanager_urls": "https://am:9093", **files})
    assert told in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_the_password_is_masked_where_settings_are_shown(pki: Pki) -> None:
    shown = settings_of(pki, "https://me:hush@am:9093").effective()
    assert shown["MONITOR_ALERTMANAGER_PASSWORD"] == "***"
    assert shown["MONITOR_ALERTMANAGER_URLS"] == "https://***@am:9093"
    assert PASSWORD not in str(shown) + repr(settings_of(pki, "https://am:9093"))
