"""The real services, started once for a test session, and names that keep tests apart on them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monitor.stack import (
    Alertmanager,
    KafkaBroker,
    MissingBinaryError,
    WebhookReceiver,
    find_binary,
)

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real inputs that lie beside every checkout; the README there says what they are."""
    return REPOSITORY.parent / "shared" / "data"


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """One broker for the session. A test that stops, pauses or re-configures a broker starts its own."""
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def require_binary() -> Callable[[str], Path]:
    """Path of a program of the stack. Missing, it skips the test here and fails it in CI."""
    return _require_binary


@pytest.fixture(scope="session")
def prometheus_binary() -> Path:
    return _require_binary("prometheus")


@pytest.fixture(scope="session")
def webhook() -> Iterator[WebhookReceiver]:
    """Gets what the session's `alertmanager` sends; tests tell their own alerts apart by a label."""
    with WebhookReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def alertmanager(webhook: WebhookReceiver) -> Iterator[Alertmanager]:
    """One Alertmanager for the session, which sends every alert to `webhook` at once."""
    _require_binary("alertmanager")
    with Alertmanager(receiver_url=webhook.url) as server:
        yield server


@pytest.fixture
def unique() -> str:
    """Of this test alone: begins the names of its topics, groups and transactional ids."""
    return unique_name()


def unique_name(prefix: str = "t") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def _require_binary(name: str) -> Path:
    try:
        return find_binary(name)
    except MissingBinaryError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must run every test: {error}")
        pytest.skip(str(error))
