"""Kafka security: what does not fit together is refused, what fits becomes aiokafka's arguments."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from monitor.errors import InvalidSettings
from monitor.settings import Settings


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    where = tmp_path_factory.mktemp("tls")
    cert, key = where / "cert.pem", where / "key.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-subj",
                "/CN=kafka",
                "-days",
                "1",
            ),
            *("-out", str(cert), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ({"security_protocol": "SASL_SSL"}, ["MONITOR_SASL_MECHANISM"]),
        ({"sasl_mechanism": "PLAIN"}, ["MONITOR_SASL_MECHANISM"]),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512"},
            ["MONITOR_SASL_USERNAME", "MONITOR_SASL_PASSWORD"],
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"},
            ["MONITOR_SASL_OAUTH_TOKEN_FILE"],
        ),
        ({"ssl_cafile": "/etc/hostname"}, ["MONITOR_SSL_CAFILE"]),
        ({"security_protocol": "SSL", "ssl_cafile": "/none"}, ["MONITOR_SSL_CAFILE"]),
    ],
)
def test_what_does_not_fit_together_is_refused(values: dict[str, str], missing: list[str]) -> None:
    with pytest.raises(InvalidSettings) as caught:
        Settings(**values)
    assert [line.split(":")[0].split(" ")[0] for line in str(caught.value).splitlines()] == missing


def test_scram_over_tls(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    args = Settings(
        security_protocol="SASL_SSL",
        ssl_cafile=str(cert),
        ssl_certfile=str(cert),
        ssl_keyfile=str(key),
        ssl_check_hostname="false",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="monitor",
        sasl_password_file=str(password),
    ).kafka_client_args()
    context = args.pop("ssl_context")
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert not context.check_hostname
    assert args == {
        "bootstrap_servers": ["localhost:9092"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "monitor",
        "sasl_plain_password": "hunter2",
    }


async def test_aiokafka_takes_the_arguments_of_every_mechanism(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    oauth = Settings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_file=str(token),
    )
    provider = oauth.kafka_client_args()["sasl_oauth_token_provider"]
    assert await provider.token() == "first"
    await asyncio.to_thread(token.write_text, "second\n")
    assert await provider.token() == "second"  # read anew: somebody else keeps it fresh
    plain = Settings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="u",
        sasl_password="p",
    )
    for settings in (oauth, plain, Settings()):
        AIOKafkaProducer(**settings.kafka_client_args())


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("no certificate")
    with pytest.raises(InvalidSettings, match="certificate files do not load"):
        Settings(security_protocol="SSL", ssl_cafile=str(path))
