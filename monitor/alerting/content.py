"""What a page says: labels that route and group it, annotations for the one who is woken by it.

Labels are the alert group and the operator's own; everything of a single trace is an annotation.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import msgspec

from monitor.alerting.alert import Alert
from monitor.alerting.groups import Brief, Episode, GroupKey
from monitor.alerting.text import clean, label

ALERT_OF_REASON: Final = {
    "threshold": "AgentMonitorSpanOverThreshold",
    "scalar": "AgentMonitorTraceScalarOverThreshold",
    "policy": "AgentMonitorPolicyMatched",
    "identity": "AgentMonitorIdentityBroken",
    "fault": "AgentMonitorFault",
}
OTHER_REASON: Final = "AgentMonitorIncident"
OLD_INCIDENTS: Final = "AgentMonitorOldIncidents"
MORE_INCIDENTS: Final = "AgentMonitorMoreIncidents"

ALERT_NAMES: Final = (
    *ALERT_OF_REASON.values(),
    OTHER_REASON,
    OLD_INCIDENTS,
    MORE_INCIDENTS,
)
"""Every alert that the incident agent can push: each has a runbook."""

_HEADLINES: Final = {
    "threshold": "a span's safety score reached its role's threshold",
    "scalar": "the mean safety score of a trace reached its threshold",
    "policy": "spans that are harmless alone compose an attack",
    "identity": "span identity is broken: the forensic record is rejected, not repaired",
    "fault": "the monitor itself lost or could not judge something",
}
_SERVICES_NAMED: Final = 10  # of those that are announced together
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class PageConfig(msgspec.Struct, frozen=True):
    """``labels`` are added to every alert. ``dashboard`` None: pages carry no dashboard link."""

    runbooks: str
    dashboard: str | None = None
    labels: dict[str, str] = {}


def incident_alert(
    group: GroupKey, episode: Episode, config: PageConfig, *, ended_ms: int | None
) -> Alert:
    """The alert of one group. ``ended_ms`` None: it fires."""
    name = ALERT_OF_REASON.get(group.reason, OTHER_REASON)
    labels = _labels(name, group.service, group.severity, config)
    labels["reason"] = label(group.reason)
    if group.policy:
        labels["policy"] = label(group.policy)
    worst = episode.worst
    subject = f"policy {clean(group.policy)}" if group.policy else clean(worst.scorer or "")
    score = "" if worst.max_score is None else f", worst score {worst.max_score:.2f}"
    headline = _HEADLINES.get(group.reason, group.reason)
    annotations = {
        "summary": f"{clean(group.service)}: {_incidents(episode.count)}{score}"
        + (f" ({subject})" if subject else ""),
        "description": f"{headline[0].upper()}{headline[1:]}. {clean(worst.summary, 500)}".strip(),
        "count": str(episode.count),
        **_evidence(worst),
        **_examples(episode),
        "first_seen": _date(episode.started_ms),
        "last_seen": _date(episode.handled_ms),
        **_links(name, group.service, config),
    }
    return Alert(
        labels,
        annotations,
        episode.started_ms,
        ended_ms,
        annotations.get("dashboard"),
        episode.count,
    )


def old_alert(
    service: str, severity: str, episodes: list[Episode], config: PageConfig, *, max_age_ms: int
) -> Alert:
    """One alert for all incidents of a service and severity that were too old to page, on this worker's partitions."""
    count = sum(e.count for e in episodes)
    minutes = max_age_ms // 60_000
    return _together(
        OLD_INCIDENTS,
        service,
        severity,
        episodes,
        config,
        summary=f"{clean(service)}: at least {_incidents(count)} older than {minutes} min",
        why=(
            f"They were caused more than {minutes} min before the monitor got to them (backlog, redrive or a "
            "replayed queue), so they are announced together and not one by one. All are recorded: "
            "`monitor incidents list` shows them."
        ),
    )


def more_alert(
    severity: str,
    services: Collection[str],
    episodes: list[Episode],
    config: PageConfig,
    *,
    limit: int,
) -> Alert:
    """One alert for the groups past the limit of alerts that a worker pushes singly."""
    named = [clean(service, 60) for service in sorted(services)[:_SERVICES_NAMED]]
    among = f"Among them: {', '.join(named)}{', …' if len(services) > len(named) else ''}. "
    return _together(
        MORE_INCIDENTS,
        "other",
        severity,
        episodes,
        config,
        summary=f"more alert groups fire than the {limit} that are pushed singly: {_incidents(sum(e.count for e in episodes))}",
        why=(
            "So many services, reasons and policies at once are an outage or names made up by a sender. "
            f"{among if named else ''}All incidents are recorded: `monitor incidents list` shows them."
        ),
    )


def _together(
    name: str,
    service: str,
    severity: str,
    episodes: list[Episode],
    config: PageConfig,
    *,
    summary: str,
    why: str,
) -> Alert:
    worst = max((e.worst for e in episodes), key=lambda b: (b.max_score or 0.0, b.incident_id))
    count = sum(e.count for e in episodes)
    annotations = {
        "summary": summary,
        "description": why,
        "count": str(count),
        **_evidence(worst),
        **_links(name, service, config),
    }
    started = min(e.started_ms for e in episodes)
    labels = _labels(name, service, severity, config)
    return Alert(labels, annotations, started, None, annotations.get("dashboard"), count)


def _labels(name: str, service: str, severity: str, config: PageConfig) -> dict[str, str]:
    extra = {key: label(value) for key, value in config.labels.items()}
    return {
        **extra,
        "alertname": name,
        "service": label(service),
        "severity": label(severity),
    }


def _evidence(brief: Brief) -> dict[str, str]:
    """Of the worst incident: only what is known, so that a page has no empty line."""
    facts = {
        "incident_id": brief.incident_id,
        "trace_id": brief.trace_id,
        "argmax_span_id": brief.argmax_span_id,
        "argmax_role": brief.argmax_role,
        "score": None if brief.max_score is None else f"{brief.max_score:.4f}",
        "threshold": None if brief.threshold is None else f"{brief.threshold:.4f}",
        "scorer": brief.scorer,
        "policy_class": brief.policy_class,
        "model_version": brief.model_version,
        "forensics": brief.forensics,
        "show": f"monitor incidents show {_argument(brief.incident_id)}",
        "explain": f"monitor explain {_argument(brief.incident_id)}",
    }
    told = {name: clean(value) for name, value in facts.items() if value}
    if brief.neighbourhood:
        told["neighbourhood"] = clean(brief.neighbourhood, 500)
    return told


def _examples(episode: Episode) -> dict[str, str]:
    """Other incidents than the worst, which stands in full: where one is explained, the next to look at."""
    others = {
        brief.incident_id: f"{said} {clean(brief.incident_id)} (trace {clean(brief.trace_id or 'none')})"
        for said, brief in (("last", episode.last), ("first", episode.first))
        if brief.incident_id != episode.worst.incident_id
    }
    return {"examples": ", ".join(others.values())} if others else {}


def _links(name: str, service: str, config: PageConfig) -> dict[str, str]:
    links = {"runbook_url": f"{config.runbooks.rstrip('/')}/{name}.md"}
    if config.dashboard is not None:
        service_variable = quote(service.encode(errors="replace")[:200])
        links["dashboard"] = f"{config.dashboard.rstrip('/')}?var-service={service_variable}"
    return links


def _argument(text: str) -> str:
    """``text`` as it may be pasted into a shell."""
    return text if _PLAIN_ID.fullmatch(text) else shlex.quote(clean(text))


def _incidents(count: int) -> str:
    return "1 incident" if count == 1 else f"{count} incidents"


def _date(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
