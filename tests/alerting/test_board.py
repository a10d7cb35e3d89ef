"""Which alerts a worker's groups make, and what they say."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.alerting import board, content, groups
from monitor.alerting.alert import Alert, InvalidAlertError, check, to_api
from monitor.alerting.board import Board, PagingConfig, channel_of
from monitor.alerting.content import PageConfig
from monitor.alerting.groups import GroupRow, group_of
from monitor.alerting.text import ANNOTATION_LIMIT, LABEL_LIMIT, clean, label
from tests.alerting.incidents import incident

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
    shown.put(*row_of("abc123", summary="shell call with a user's string"))
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


hostile = st.text(alphabet=st.characters(), max_size=400) | st.sampled_from(
    [
        "<!channel> pay up",
        "a\nb",
        "\u202egnp.exe",
        "{{ .Labels }}",
        "`rm -rf /`",
        "x" * 5000,
        "\ud800",
        "\x00",
        " ",
    ]
)


@given(hostile, hostile, hostile, hostile)
def test_law_hostile_names_make_a_valid_bounded_alert(
    service: str, policy: str, scorer: str, trace: str
) -> None:
    shown = Board(CONFIG)
    made = incident(
        trace.encode("utf-8", "replace").decode(),
        service=service,
        policy=policy,
        scorer=scorer,
        trace_id=trace,
        summary=scorer,
        model_version=policy,
    )
    row = groups.apply(GroupRow(group_of(made)), made, channel="page", now_ms=NOW, quiet_ms=1000)
    shown.put(b"k", row)
    (alert,) = shown.alerts(NOW)
    check(alert)
    for value in alert.labels.values():
        assert 0 < len(value) <= LABEL_LIMIT
    for value in (*alert.labels.values(), *alert.annotations.values()):
        assert not re.search(r"[\x00-\x1f<>`\u202a-\u202e\u2066-\u2069\u200b\ud800-\udfff]", value)
        assert len(value) < 3 * ANNOTATION_LIMIT + 400


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
