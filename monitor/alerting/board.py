"""All alert groups that this worker speaks for, and the alerts they make at a moment. Pure: the clock comes from outside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from monitor.alerting import content
from monitor.alerting.alert import Alert
from monitor.alerting.content import PageConfig
from monitor.alerting.groups import (
    Channel,
    Episode,
    GroupRow,
    brief_of,
    grown,
    resolves_at,
    state,
)
from monitor.model import Incident, SpanEvidence

ALERT_LIMIT: Final = 200  # a worker pushes so many groups singly: each of 200 services, and more than people can be paged for
GROUP_LIMIT: Final = (
    5_000  # rows a worker keeps, 3-40 kB each: services with made-up names are without end
)
_URGENCY: Final = {"critical": 0, "warning": 1, "info": 2}


class PagingConfig(msgspec.Struct, frozen=True):
    """``scorers``: patterns ``scorer`` or ``service/scorer`` whose incidents page; the others run in shadow."""

    page: PageConfig
    scorers: tuple[str, ...] = ("*",)
    quiet_ms: int = 3_600_000
    max_age_ms: int = 3_600_000


def channel_of(incident: Incident, config: PagingConfig, now_ms: int) -> Channel:
    """Where this revision goes by itself. An absent or future time of cause counts as now.

    Service and time are those of every span that proves it, not of the first one alone, under whose name the
    incident goes for ever: that may be anybody's who writes into the trace.
    """
    proof = [span for span in incident.evidence if _proves(span, incident)]
    services = {incident.service, *(span.service for span in proof)}
    if not any(_accepted(service, incident.scorer, config.scorers) for service in services):
        return "shadow"
    times = (incident.caused_at_ms, *(span.source.timestamp_ms for span in proof))
    if all(0 < caused < now_ms - config.max_age_ms for caused in times):
        return "old"
    return "page"


def _proves(span: SpanEvidence, incident: Incident) -> bool:
    """It is the argmax, the centre of a policy's match, or reached the argmax's threshold as well."""
    argmax = incident.argmax_span_id
    if span.span_id in (argmax, incident.neighbourhood.centre or argmax):
        return True
    score, threshold = span.score, incident.threshold
    return score is not None and threshold is not None and score >= threshold


def _accepted(service: str, scorer: str | None, patterns: tuple[str, ...]) -> bool:
    """Incidents without a scorer (identity, fault) hang on the service alone: no scorer is to be distrusted."""
    for pattern in patterns:
        of, slash, named = pattern.rpartition("/")
        if slash and not fnmatchcase(service, of):
            continue
        if scorer is None or fnmatchcase(scorer, named):
            return True
    return False


_Firing = tuple[bytes, GroupRow, Episode]


class Board:
    """Rows by their table key."""

    def __init__(self, config: PagingConfig) -> None:
        self.config = config
        self._rows: dict[bytes, GroupRow] = {}
        # As made last, with what it was made of: a storm changes few groups a moment, and each is 0.1 ms.
        self._made: dict[bytes, tuple[Episode, Alert]] = {}
        self._past_limit: dict[str, Episode] = {}  # by severity: incidents of groups without a row

    @property
    def full(self) -> bool:
        """No group may be added until some are over."""
        return len(self._rows) >= GROUP_LIMIT

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, key: bytes, row: GroupRow) -> None:
        self._rows[key] = row

    def drop(self, key: bytes) -> None:
        self._rows.pop(key, None)

    def replace(self, rows: Mapping[bytes, GroupRow]) -> None:
        """After partitions moved: these, and no others, are ours to speak for."""
        self._rows = dict(rows)

    def count_past_limit(self, incident: Incident, now_ms: int) -> None:
        """An incident of a group that has no row because the board is full: it is announced with the others so."""
        self._past_limit[incident.severity] = grown(
            self._past_limit.get(incident.severity),
            brief_of(incident),
            now_ms,
            self.config.quiet_ms,
        )

    def rows(self) -> Iterable[tuple[bytes, GroupRow]]:
        return self._rows.items()

    def alerts(self, now_ms: int) -> list[Alert]:
        """All that fires or was resolved less than five minutes ago."""
        quiet = self.config.quiet_ms
        firing: list[_Firing] = []
        alerts: list[Alert] = []
        old: dict[tuple[str, str], list[Episode]] = defaultdict(list)
        for key, row in self._rows.items():
            if row.old is not None and state(row.old, now_ms=now_ms, quiet_ms=quiet) == "firing":
                old[row.group.service, row.group.severity].append(row.old)
            if row.page is None:
                continue
            match state(row.page, now_ms=now_ms, quiet_ms=quiet):
                case "firing":
                    firing.append((key, row, row.page))
                case "resolved":
                    ended = resolves_at(row.page, quiet)
                    alerts.append(
                        content.incident_alert(
                            row.group, row.page, self.config.page, ended_ms=ended
                        )
                    )
        alerts += self._firing(firing, now_ms)
        # They have no resolved form: another worker may still announce the same service and severity,
        # so they end by not being sent again.
        alerts += [
            content.old_alert(
                service, severity, episodes, self.config.page, max_age_ms=self.config.max_age_ms
            )
            for (service, severity), episodes in old.items()
        ]
        return alerts

    def _firing(self, firing: list[_Firing], now_ms: int) -> list[Alert]:
        if len(firing) > ALERT_LIMIT:
            # Those that fire longest stay: what was pushed once is not taken back by newcomers.
            firing.sort(key=lambda it: (_URGENCY.get(it[1].group.severity, 9), it[2].started_ms))
        page = self.config.page
        made: dict[bytes, tuple[Episode, Alert]] = {}
        for key, row, episode in firing[:ALERT_LIMIT]:
            before = self._made.get(key)
            if before is not None and before[0] is episode:
                made[key] = before
            else:
                alert = content.incident_alert(row.group, episode, page, ended_ms=None)
                made[key] = (episode, alert)
        self._made = made
        alerts = [alert for _, alert in made.values()]
        rest: dict[str, list[Episode]] = defaultdict(list)
        services: dict[str, set[str]] = defaultdict(set)
        for _, row, episode in firing[ALERT_LIMIT:]:
            rest[row.group.severity].append(episode)
            services[row.group.severity].add(row.group.service)
        for severity, episode in self._past_limit.items():
            if state(episode, now_ms=now_ms, quiet_ms=self.config.quiet_ms) == "firing":
                rest[severity].append(episode)
        alerts += [
            content.more_alert(severity, services[severity], episodes, page, limit=ALERT_LIMIT)
            for severity, episodes in rest.items()
        ]
        return alerts
