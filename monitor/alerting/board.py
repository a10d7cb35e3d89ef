"""All alert groups that this worker speaks for, and the alerts they make at a moment. Pure: the clock comes from outside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from monitor.alerting import content
from monitor.alerting.alert import Alert
from monitor.alerting.content import PageConfig
from monitor.alerting.groups import (
    Channel,
    Episode,
    GroupKey,
    GroupRow,
    channel_in,
    count,
    grown,
    resolves_at,
    state,
)
from monitor.model import Incident, SpanEvidence

ALERT_LIMIT: Final = 200  # a worker pushes so many groups singly: each of 200 services, and more than people can be paged for
ORPHAN_SHARE: Final = (
    10  # of the slots, a tenth for spans without a usable trace: one costs a sender one message
)
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

_Worth = tuple[bool, bool, bool, int, float, int]
"""What a row is kept and pushed singly for, least first: it pages, its service is named, not an orphan, urgency, score, age."""


def _orphan(group: GroupKey, episode: Episode) -> bool:
    """Only of spans that belong to no trace, which anybody makes up at no cost."""
    briefs = (episode.first, episode.last, episode.worst)
    return group.reason == "identity" and all(brief.trace_id is None for brief in briefs)


def _named(patterns: tuple[str, ...]) -> frozenset[str]:
    """Services that patterns spell out. A wildcard names none: a sender makes up what matches it."""
    services = (pattern.rpartition("/")[0] for pattern in patterns)
    return frozenset(service for service in services if service and not set(service) & set("*?["))


class Board:
    """Rows by their table key."""

    def __init__(self, config: PagingConfig) -> None:
        self.config = config
        self._rows: dict[bytes, GroupRow] = {}
        # As made last, with what it was made of: a storm changes few groups a moment, and each is 0.1 ms.
        self._made: dict[bytes, tuple[Episode, Alert]] = {}
        self._past_limit: dict[str, GroupRow] = {}  # by severity: incidents of groups without a row
        self._services = _named(config.scorers)
        self._worths: dict[bytes, _Worth] = {}
        self._least: list[tuple[_Worth, bytes]] = []  # a heap, with outdated entries

    @property
    def full(self) -> bool:
        """No group may be added until some are over."""
        return len(self._rows) >= GROUP_LIMIT

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, key: bytes, row: GroupRow) -> None:
        self._rows[key] = row
        worth = self._worth(row)
        if self._worths.get(key) == worth:
            return
        self._worths[key] = worth
        heappush(self._least, (worth, key))
        if len(self._least) > 2 * GROUP_LIMIT:
            self._order()

    def drop(self, key: bytes) -> None:
        self._rows.pop(key, None)
        self._worths.pop(key, None)

    def replace(self, rows: Mapping[bytes, GroupRow]) -> None:
        """After partitions moved: these, and no others, are ours to speak for."""
        self._rows = dict(rows)
        self._worths = {key: self._worth(row) for key, row in rows.items()}
        self._order()

    def lesser(self, row: GroupRow) -> bytes | None:
        """Key of the row that a full board gives up for this one: the least. None: this one is no better."""
        while self._least:
            worth, key = self._least[0]
            if self._worths.get(key) == worth:
                return key if worth < self._worth(row) else None
            heappop(self._least)
        return None

    def give_up(self, key: bytes, now_ms: int) -> None:
        """Drop a row; what it says is announced with the others that have none."""
        row = self._rows[key]
        self.drop(key)
        for episode in (row.page, row.old):
            if (
                episode is None
                or state(episode, now_ms=now_ms, quiet_ms=self.config.quiet_ms) != "firing"
            ):
                continue
            held = self._held_past_limit(row.group.severity)
            grown_by = grown(held.page, episode.worst, now_ms, self.config.quiet_ms)
            whole = msgspec.structs.replace(grown_by, count=grown_by.count + episode.count - 1)
            self._past_limit[row.group.severity] = msgspec.structs.replace(held, page=whole)

    def count_past_limit(self, incident: Incident, channel: Channel, now_ms: int) -> bool:
        """An incident of a group that has no row because the board is full: it is announced with the others so.

        Whether it was not announced before.
        """
        held = self._held_past_limit(incident.severity)
        row = count(held, incident, channel=channel, now_ms=now_ms, quiet_ms=self.config.quiet_ms)
        self._past_limit[incident.severity] = row
        counted = channel_in(row, incident)
        return counted not in (None, "shadow", channel_in(held, incident))

    def _held_past_limit(self, severity: str) -> GroupRow:
        group = GroupKey("other", "", None, severity)
        return self._past_limit.get(severity) or GroupRow(group)

    def _worth(self, row: GroupRow) -> _Worth:
        group, page = row.group, row.page
        named = group.service in self._services
        urgency = -_URGENCY.get(group.severity, 9)
        if page is None:
            return (False, named, True, urgency, 0.0, 0)
        # Without a score (a fault of the monitor itself) it was not given one by a sender either.
        score = 1.0 if page.worst.max_score is None else page.worst.max_score
        traced = named or not _orphan(group, page)
        return (True, named, traced, urgency, score, -page.started_ms)

    def _order(self) -> None:
        self._least = [(worth, key) for key, worth in self._worths.items()]
        heapify(self._least)

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
        singly, others = self._slots(firing)
        page = self.config.page
        made: dict[bytes, tuple[Episode, Alert]] = {}
        for key, row, episode in singly:
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
        for _, row, episode in others:
            rest[row.group.severity].append(episode)
            services[row.group.severity].add(row.group.service)
        for severity, row in self._past_limit.items():
            rest_of = [episode for episode in (row.page, row.old) if episode is not None]
            rest[severity] += [
                episode
                for episode in rest_of
                if state(episode, now_ms=now_ms, quiet_ms=self.config.quiet_ms) == "firing"
            ]
        alerts += [
            content.more_alert(severity, services[severity], episodes, page, limit=ALERT_LIMIT)
            for severity, episodes in rest.items()
            if episodes
        ]
        return alerts

    def _slots(self, firing: list[_Firing]) -> tuple[list[_Firing], list[_Firing]]:
        """Those that are pushed singly, and the others. Of equals those that fire longest stay."""
        if len(firing) <= ALERT_LIMIT:
            return firing, []
        firing.sort(key=lambda it: self._worths[it[0]], reverse=True)
        traced = [it for it in firing if self._worths[it[0]][2]]
        orphans = [it for it in firing if not self._worths[it[0]][2]]
        share = min(len(orphans), ALERT_LIMIT // ORPHAN_SHARE)
        room = ALERT_LIMIT - share
        return traced[:room] + orphans[:share], traced[room:] + orphans[share:]
