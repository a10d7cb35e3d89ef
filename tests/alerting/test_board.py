"""Which alerts a worker's groups make, and what they say."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.alerting import board, content, groups
from monitor.alerting.alert import Alert, InvalidAlertError, check, to_api
from monitor.alerting.board import Board, PagingConfig, channel_of
from monitor.alerting.content import PageConfig
from monitor.alerting.groups import GroupRow, group_of
from monitor.alerting.text import ANNOTATION_LIMIT, LABEL_LIMIT, clean, label
from monitor.model import Neighbourhood, Source, SpanEvidence
from tests.alerting.incidents import incident
from tests.alerting.test_words import span

PAGE = PageConfig(
    runbooks="https://runbooks.example/",
    dashboard="https://grafana.example/d/x",
    labels={"env": "eu"},
)
CONFIG = PagingConfig(PAGE, quiet_ms=1000, max_age_ms=60_000)
NOW = 1_800_000_000_000


def row_of(
    *args: object, now: int = NOW, channel: str = "page", **changes: object
) -> tuple[bytes, GroupRow]:
    made = incident(*args, **changes)
    row = groups.apply(
        GroupRow(group_of(made)),
        made,
        channel=channel,
        now_ms=now,
        quiet_ms=1000,  # type: ignore[arg-type]
    )
    return groups.encode_key(row.group), row


def test_an_alert_says_what_the_person_on_call_needs() -> None:
    shown = Board(CONFIG)
    around = span("00f067aa0ba902b7", "tool_call", tool_name="rm", score=0.91)
    shown.put(*row_of("abc123", summary="shell call with a user's string", evidence=(around,)))
    (alert,) = shown.alerts(NOW)
    assert alert.labels == {
        "alertname": "AgentMonitorSpanOverThreshold",
        "service": "shop",
        "reason": "threshold",
        "severity": "critical",
        "env": "eu",
    }
    notes = alert.annotations
    assert notes["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert notes["argmax_span_id"] == "00f067aa0ba902b7"
    assert (notes["argmax_role"], notes["score"], notes["model_version"]) == (
        "tool_call",
        "0.9100",
        "m-1",
    )
    assert notes["show"] == "monitor incidents show abc123"
    assert notes["explain"] == "monitor explain abc123"
    assert notes["neighbourhood"] == "tool_call rm 0.91 (highest)"
    assert "examples" not in notes
    assert notes["runbook_url"] == "https://runbooks.example/AgentMonitorSpanOverThreshold.md"
    assert notes["dashboard"] == "https://grafana.example/d/x?var-service=shop"
    assert "shell call with a user's string" in notes["description"]
    assert notes["summary"] == "shop: 1 incident, worst score 0.91 (guard)"
    check(alert)


@pytest.mark.parametrize("reason", ["threshold", "scalar", "policy", "identity", "fault"])
def test_every_reason_has_an_alert_and_its_labels_survive_the_resolving(reason: str) -> None:
    shown = Board(CONFIG)
    policy = "exfiltration" if reason == "policy" else None
    shown.put(
        *row_of("a", reason=reason, policy=policy, trace_id=None, max_score=None, scorer=None)
    )
    (firing,) = shown.alerts(NOW)
    (resolved,) = shown.alerts(NOW + 1000)
    assert firing.labels == resolved.labels
    assert firing.labels["alertname"] in content.ALERT_NAMES
    assert (firing.ended_ms, resolved.ended_ms) == (None, NOW + 1000)
    assert "trace_id" not in firing.annotations
    assert shown.alerts(NOW + 1000 + groups.RESOLVED_MS) == []


def test_old_incidents_are_announced_by_one_alert_for_a_service_and_severity() -> None:
    shown = Board(CONFIG)
    shown.put(*row_of("a", channel="old", max_score=0.4))
    shown.put(*row_of("b", channel="old", reason="policy", policy="p", max_score=0.8))
    shown.put(*row_of("c", channel="old", service="desk"))
    alerts = {a.labels["service"]: a for a in shown.alerts(NOW)}
    assert set(alerts) == {"shop", "desk"}
    assert alerts["shop"].labels["alertname"] == "AgentMonitorOldIncidents"
    assert alerts["shop"].annotations["summary"] == "shop: at least 2 incidents older than 1 min"
    assert alerts["shop"].annotations["incident_id"] == "b"
    assert shown.alerts(NOW + 1000) == []


def test_a_storm_of_groups_is_cut_and_the_rest_is_one_alert_a_severity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board, "ALERT_LIMIT", 5)
    shown = Board(CONFIG)
    for n in range(8):
        shown.put(*row_of("a", service=f"made-up-{n}", severity="warning", now=NOW + n))
    shown.put(*row_of("a", service="real", severity="critical", now=NOW + 99))
    alerts = shown.alerts(NOW + 100)
    names = [a.labels["alertname"] for a in alerts]
    assert names.count("AgentMonitorSpanOverThreshold") == 5
    assert names.count("AgentMonitorMoreIncidents") == 1
    assert "real" in {a.labels["service"] for a in alerts}
    more = alerts[-1]
    assert (more.labels["severity"], more.annotations["count"]) == ("warning", "4")


@pytest.mark.parametrize(
    ("patterns", "service", "scorer", "expected"),
    [
        (("*",), "shop", "guard", "page"),
        ((), "shop", "guard", "shadow"),
        (("guard",), "shop", "guard", "page"),
        (("guard",), "shop", "other", "shadow"),
        (("shop/guard",), "desk", "guard", "shadow"),
        (("shop/*",), "shop", "anything", "page"),
        (("shop/guard",), "shop", None, "page"),
        (("shop/guard",), "desk", None, "shadow"),
        (("gu*",), "desk", "guard", "page"),
    ],
)
def test_page_scorers(
    patterns: tuple[str, ...], service: str, scorer: str | None, expected: str
) -> None:
    config = PagingConfig(PAGE, scorers=patterns)
    assert channel_of(incident(service=service, scorer=scorer), config, NOW) == expected


@pytest.mark.parametrize(
    ("age", "expected"),
    [(0, "page"), (60_000, "page"), (60_001, "old"), (-5, "page"), (NOW, "page")],
)
def test_page_age_counts_from_the_causing_records_time(age: int, expected: str) -> None:
    """Absent (0) or in the future counts as now."""
    assert channel_of(incident(caused_at_ms=NOW - age), CONFIG, NOW) == expected


def at(span_id: str, service: str, score: float, *, age: int = 0) -> SpanEvidence:
    return span(
        span_id, service=service, score=score, source=Source("agent-spans", 0, 1, 0, NOW - age)
    )


SCRIPTS = {
    "an old time stamp first": (
        PagingConfig(PAGE, quiet_ms=1000, max_age_ms=60_000),
        {"caused_at_ms": NOW - 90_000, "evidence": (at("a", "attacker", 0.3, age=90_000),)},
        {"caused_at_ms": NOW, "evidence": (at("b", "payments", 0.99),)},
    ),
    "another service first": (
        PagingConfig(PAGE, scorers=("payments/*",), quiet_ms=1000),
        {"evidence": (at("a", "attacker", 0.3),)},
        {"evidence": (at("b", "payments", 0.99),)},
    ),
    "other scorers first, so that the page is named other": (
        PagingConfig(PAGE, scorers=("judge",), quiet_ms=1000),
        {"scorer": "made-up-33", "evidence": (at("a", "attacker", 0.3),)},
        {"scorer": "judge", "evidence": (at("b", "payments", 0.99),)},
    ),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_comes_first_in_a_trace_keeps_no_page_from_coming(script: str) -> None:
    config, first, then = SCRIPTS[script]
    common = {"service": "attacker", "threshold": 0.3}
    sent = [
        incident("i", argmax_span_id="a", max_score=0.3, **common, **first),
        incident("i", revision=2, argmax_span_id="b", max_score=0.99, **common, **then),
        # At the close, with an argmax of the attacker's once more.
        incident("i", revision=3, argmax_span_id="a", max_score=0.995, **common, **first),
    ]
    shown = Board(config)
    row = GroupRow(group_of(sent[0]))
    alerts = []
    for made in [sent[0], sent[0], sent[1], sent[1], sent[2]]:
        channel = channel_of(made, config, NOW)
        row = groups.apply(row, made, channel=channel, now_ms=NOW, quiet_ms=1000)
        row = groups.decode_row(groups.encode_row(row))
        shown.put(b"k", row)
        alerts.append([(a.labels["alertname"], a.annotations["count"]) for a in shown.alerts(NOW)])
    page = [("AgentMonitorSpanOverThreshold", "1")]
    assert page[0] not in alerts[0]
    assert alerts[2:] == [page, page, page]


def test_every_span_that_proves_an_incident_has_a_say_and_no_other() -> None:
    config = PagingConfig(PAGE, scorers=("payments/*",), max_age_ms=60_000)
    mine = at("a", "attacker", 1.0, age=90_000)
    made = {"service": "attacker", "argmax_span_id": "a", "caused_at_ms": NOW - 90_000}

    def channel(*evidence: SpanEvidence, **changes: Any) -> str:
        return channel_of(incident(evidence=evidence, **made, **changes), config, NOW)

    assert channel(mine) == "shadow"
    assert channel(mine, at("b", "payments", 0.29)) == "shadow"
    assert channel(mine, at("b", "payments", 0.30)) == "page"
    assert channel(mine, at("b", "payments", 0.30, age=90_000)) == "old"
    around = Neighbourhood("partial", "b")
    assert channel(mine, at("b", "payments", 0.1), neighbourhood=around) == "page"


def test_a_storm_is_one_alert_with_its_count_the_worst_and_other_examples() -> None:
    """10,000 incidents of one service: one alert, its size and the row's do not grow, the count is right."""
    row = GroupRow(group_of(incident()))
    for n in range(10_000):
        score = 0.99 if n == 4_321 else 0.5
        made = incident(f"i-{n}", trace_id=f"{n:032x}", max_score=score)
        row = groups.apply(row, made, channel="page", now_ms=NOW + n, quiet_ms=1000)
        if n == 999:
            early = len(groups.encode_row(row))
    shown = Board(CONFIG)
    shown.put(b"k", row)
    (alert,) = shown.alerts(NOW + 10_000)
    assert alert.annotations["count"] == "10000"
    assert alert.annotations["incident_id"] == "i-4321"
    assert alert.annotations["examples"] == (
        f"last i-9999 (trace {9_999:032x}), first i-0 (trace {0:032x})"
    )
    assert len(groups.encode_row(row)) < early + 100


def test_made_up_services_are_a_bounded_number_of_rows_and_alerts_and_all_are_counted() -> None:
    """10,000 incidents of 10,000 services, as the agent handles them."""
    shown = Board(CONFIG)
    refused = 0
    for n in range(10_000):
        made = incident(f"i-{n}", service=f"made-up-{n}", max_score=0.4 + n / 20_000)
        if shown.full:
            refused += 1
            assert shown.count_past_limit(made, "page", NOW)
        else:
            shown.put(*row_of(f"i-{n}", service=f"made-up-{n}", max_score=made.max_score))
    assert len(shown) == board.GROUP_LIMIT == 10_000 - refused
    alerts = shown.alerts(NOW)
    assert len(alerts) == board.ALERT_LIMIT + 1
    assert sum(int(alert.annotations["count"]) for alert in alerts) == 10_000
    more = alerts[-1]
    assert more.labels["alertname"] == "AgentMonitorMoreIncidents"
    assert more.annotations["incident_id"] == "i-9999"  # the worst of all, though it has no row
    assert "made-up-" in more.annotations["description"]
    check(more)
    assert shown.alerts(NOW + 1000 + groups.RESOLVED_MS) == []


def orphan(n: int, **changes: Any) -> tuple[bytes, GroupRow]:
    service = f"made-up-{n}"
    fields = {"service": service, "reason": "identity", "trace_id": None, "max_score": 0.31}
    return row_of(f"o-{n}", **{**fields, **changes})


def services_of(alerts: list[Alert]) -> list[str]:
    return [alert.labels["service"] for alert in alerts]


def test_orphans_of_made_up_services_displace_nobody_with_a_trace() -> None:
    shown = Board(CONFIG)
    for n in range(1000):
        shown.put(*orphan(n, max_score=1.0, now=NOW - 500))
    for n in range(board.ALERT_LIMIT - board.ALERT_LIMIT // board.ORPHAN_SHARE):
        shown.put(*row_of("a", service=f"real-{n}", severity="warning", max_score=0.4))
    alerts = shown.alerts(NOW)
    services = services_of(alerts)
    assert sum(service.startswith("real") for service in services) == 180
    assert sum(service.startswith("made-up") for service in services) == 20
    assert sum(int(alert.annotations["count"]) for alert in alerts) == 1180


def test_slots_go_to_named_services_then_by_severity_then_by_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board, "ALERT_LIMIT", 3)
    shown = Board(PagingConfig(PAGE, scorers=("*", "payments/*", "de*/*"), quiet_ms=1000))
    for n in range(9):
        shown.put(*row_of("a", service=f"made-up-{n}", max_score=0.31, now=NOW - 500))
    shown.put(*row_of("a", service="grave", severity="warning", max_score=1.0))
    shown.put(*row_of("a", service="desk", max_score=0.99))
    shown.put(*row_of("a", service="payments", severity="info", max_score=0.3))
    shown.put(*row_of("a", service="de*", severity="info", max_score=0.3))
    shown.put(*row_of("a", service="monitor", reason="fault", max_score=None, trace_id=None))
    assert services_of(shown.alerts(NOW))[:3] == ["payments", "monitor", "desk"]


def test_a_full_board_gives_up_its_least_row_for_a_better_one_and_counts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board, "GROUP_LIMIT", 5)
    shown = Board(CONFIG)
    shown.put(*row_of("a", service="first", max_score=0.31))
    for n in range(4):
        shown.put(*orphan(n, max_score=0.5 + n / 10))
    assert shown.full
    assert shown.lesser(orphan(9, max_score=0.4)[1]) is None
    key, row = row_of("p", service="payments", max_score=0.99)
    least = shown.lesser(row)
    assert least == orphan(0)[0]
    shown.give_up(least, NOW)
    shown.put(key, row)
    # It got graver after it was put: another one is the least.
    shown.put(*orphan(1, max_score=0.95))
    assert shown.lesser(row) == orphan(2)[0]
    alerts = shown.alerts(NOW)
    assert {"payments", "first", "other"} <= set(services_of(alerts))
    assert sum(int(alert.annotations["count"]) for alert in alerts) == 6
    again = Board(CONFIG)
    again.replace(dict(shown.rows()))
    assert again.lesser(row) == orphan(2)[0]


def test_an_incident_past_the_limit_is_counted_once_and_its_page_is_not_lost() -> None:
    shown = Board(CONFIG)
    assert not shown.count_past_limit(incident("a", max_score=0.3), "shadow", NOW)
    assert shown.alerts(NOW) == []
    graver = incident("a", revision=2, max_score=0.99)
    assert shown.count_past_limit(graver, "page", NOW)
    assert not shown.count_past_limit(graver, "page", NOW)
    (more,) = shown.alerts(NOW)
    assert (more.annotations["count"], more.annotations["score"]) == ("1", "0.9900")


def test_an_alert_says_what_its_row_says_now() -> None:
    shown = Board(CONFIG)
    key, row = row_of("a")
    shown.put(key, row)
    assert shown.alerts(NOW)[0].annotations["count"] == "1"
    assert shown.alerts(NOW)[0] is shown.alerts(NOW)[0]  # nothing is made again for nothing
    row = groups.apply(row, incident("b"), channel="page", now_ms=NOW, quiet_ms=1000)
    shown.put(key, row)
    assert shown.alerts(NOW)[0].annotations["count"] == "2"
    shown.drop(key)
    assert shown.alerts(NOW) == []


def test_no_flapping_an_alert_that_fires_again_and_again_within_quiet_fires_once() -> None:
    row = GroupRow(group_of(incident()))
    shown = Board(CONFIG)
    started = set()
    for n in range(50):
        row = groups.apply(
            row, incident(f"i-{n}"), channel="page", now_ms=NOW + n * 999, quiet_ms=1000
        )
        shown.put(b"k", row)
        for later in (0, 998):
            (alert,) = shown.alerts(NOW + n * 999 + later)
            assert alert.ended_ms is None
            started.add(alert.started_ms)
    assert started == {NOW}
    (alert,) = shown.alerts(NOW + 49 * 999 + 1000)
    assert alert.ended_ms == NOW + 49 * 999 + 1000


HOSTILE = (
    "<!channel> pay up",
    "<img src=x onerror=alert(1)>",
    "a\nb\r\nc",
    "\"quoted\" 'twice' \\",
    "\u202egnp.exe",
    "{{ .Labels }}{% for x in y %}${HOME}#{x}",
    "`rm -rf /` $(reboot)",
    "[sign in](https://evil.example)",
    "@everyone @here @channel @all",
    "🔥👩‍👩‍👧🏳️‍🌈" * 50,
    "x" * 10_240,
    "é" * 10_240,
    "\ud800",
    "\x00",
    "\x1b[31m",
    " ",
    "",
)
hostile = st.text(alphabet=st.characters(), max_size=400) | st.sampled_from(HOSTILE)


def hostile_alert(service: str, policy: str, scorer: str, trace: str) -> Alert:
    shown = Board(CONFIG)
    around = span("a", tool_name=trace, tags=(policy,), name=service)
    made = incident(
        trace.encode("utf-8", "replace").decode(),
        service=service,
        policy=policy,
        scorer=scorer,
        trace_id=trace,
        argmax_role=service,
        summary=scorer,
        model_version=policy,
        evidence=(around,),
    )
    row = groups.apply(GroupRow(group_of(made)), made, channel="page", now_ms=NOW, quiet_ms=1000)
    shown.put(b"k", row)
    (alert,) = shown.alerts(NOW)
    return alert


@given(hostile, hostile, hostile, hostile)
def test_law_hostile_names_make_a_valid_bounded_alert(
    service: str, policy: str, scorer: str, trace: str
) -> None:
    alert = hostile_alert(service, policy, scorer, trace)
    check(alert)
    for value in alert.labels.values():
        assert 0 < len(value) <= LABEL_LIMIT
    forbidden = r"[\x00-\x1f<>`\u202a-\u202e\u2066-\u2069\u200b\ud800-\udfff]|\{\{|\{%|\$\{|\]\(|@(everyone|here|channel|all)\b"
    for name, value in (*alert.labels.items(), *alert.annotations.items()):
        assert not re.search(forbidden, value), name
        assert len(value) < 3 * ANNOTATION_LIMIT + 400


def test_ordinary_names_stay_as_they_are() -> None:
    for name in (
        "claude-3-5-sonnet@20240620",
        "shop/checkout",
        "a.b:c",
        "naïve café",
        "配送",
        "{x}",
    ):
        assert clean(name) == name == label(name)


def test_long_labels_that_differ_stay_different() -> None:
    assert label("x" * 200 + "a") != label("x" * 200 + "b")
    assert label("") == label("  ") == "unknown"
    assert clean("a\u202eb") == "a\\u202eb"


def test_what_alertmanager_would_refuse_is_found_before() -> None:
    good = Alert({"alertname": "A", "service": "s"}, {}, NOW)
    check(good)
    for labels, notes in (
        ({"service": "s"}, {}),
        ({"alertname": "A", "bad-name": "x"}, {}),
        ({"alertname": "A", "empty": ""}, {}),
        ({"alertname": "A"}, {"x": "\ud800"}),
        ({"alertname": "A"}, {"x": "y" * 70_000}),
    ):
        with pytest.raises(InvalidAlertError):
            check(Alert(labels, notes, NOW))


def test_a_firing_alert_ends_a_lease_from_now_and_a_resolved_one_when_it_ended() -> None:
    alert = Alert({"alertname": "A"}, {}, NOW)
    sent = to_api(alert, now_ms=NOW + 5000, lease_ms=180_000)
    assert sent["startsAt"] == "2027-01-15T08:00:00.000+00:00"
    assert sent["endsAt"] == "2027-01-15T08:03:05.000+00:00"
    ended = to_api(Alert({"alertname": "A"}, {}, NOW, NOW + 1000), now_ms=NOW + 5000, lease_ms=1)
    assert ended["endsAt"] == "2027-01-15T08:00:01.000+00:00"
