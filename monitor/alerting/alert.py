"""One alert as Alertmanager's API takes it: ``POST /api/v2/alerts``, a JSON array of these."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from monitor.errors import MonitorError

_LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_ALERT_BYTES: Final = (
    64_000  # ours stay under 8 kB; what is larger came from a name that escaped its bounds
)


Identity = tuple[tuple[str, str], ...]


class InvalidAlertError(MonitorError):
    """Alertmanager would refuse this alert, and answer 400 for the whole batch it stands in."""


class Alert(msgspec.Struct, frozen=True):
    """``labels`` are the alert's identity: the same for firing and resolved, none empty, `alertname` among them.

    ``ended_ms`` None: it fires. Times are milliseconds since 1970 of our clock. ``count``: incidents it stands for.
    """

    labels: dict[str, str]
    annotations: dict[str, str]
    started_ms: int
    ended_ms: int | None = None
    link: str | None = None
    count: int = 1

    @property
    def identity(self) -> Identity:
        return tuple(sorted(self.labels.items()))


def check(alert: Alert) -> None:
    """Raises InvalidAlertError for what Alertmanager refuses, and for a missing `alertname`, which it takes."""
    if not alert.labels.get("alertname"):
        raise InvalidAlertError(f"alert with labels {alert.labels!r} has no alertname")
    for kind, pairs in (("label", alert.labels), ("annotation", alert.annotations)):
        for name, value in pairs.items():
            if _LABEL_NAME.fullmatch(name) is None:
                raise InvalidAlertError(
                    f"{kind} name {name!r}: only letters, digits and _ may stand in it"
                )
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise InvalidAlertError(
                    f"{kind} {name} is no valid Unicode: {error.reason}"
                ) from None
    empty = [name for name, value in alert.labels.items() if not value]
    if empty:
        raise InvalidAlertError(
            f"labels {', '.join(empty)} are empty: they would vanish and change the alert's identity"
        )
    size = len(msgspec.json.encode(alert))
    if size > _ALERT_BYTES:
        raise InvalidAlertError(f"alert of {size} bytes, over {_ALERT_BYTES}")


def to_api(alert: Alert, *, now_ms: int, lease_ms: int) -> dict[str, Any]:
    """The API's object. A firing alert ends ``lease_ms`` from now unless it is sent again before."""
    ends = alert.ended_ms if alert.ended_ms is not None else now_ms + lease_ms
    body: dict[str, Any] = {
        "labels": alert.labels,
        "annotations": alert.annotations,
        "startsAt": _rfc3339(min(alert.started_ms, ends)),
        "endsAt": _rfc3339(ends),
    }
    if alert.link is not None:
        body["generatorURL"] = alert.link
    return body


def _rfc3339(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
