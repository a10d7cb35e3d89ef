"""How settings are spelled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.settings.values import (
    InputSpec,
    check_alertmanager_urls,
    check_bootstrap,
    parse_duration,
    parse_groups,
    parse_inputs,
    parse_keep,
    parse_labels,
    parse_size,
    parse_start,
    show_duration,
    show_groups,
    show_keep,
    without_userinfo,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("5 min", 300),
        ("1h", 3600),
        ("500ms", 0.5),
        ("7d", 604800),
        ("30", 30),
        ("1.5h", 5400),
        (0, 0),
    ],
)
def test_durations_are_read_as_written(text: object, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "ten", "-5s", "5 parsecs", "1h30", "nan", "inf", "1e3"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as"):
        parse_duration(text)


@given(st.integers(0, 10**10))
def test_a_shown_duration_reads_back_to_itself(ms: int) -> None:
    value = timedelta(milliseconds=ms)
    assert parse_duration(show_duration(value)) == value


def test_sizes() -> None:
    assert parse_size("32MB") == 32_000_000
    assert parse_size("1 MiB") == 1_048_576
    assert parse_size("512") == 512
    with pytest.raises(ValueError, match="a size such as"):
        parse_size("32 megs")


def test_inputs_keep_their_order_and_say_what_is_wrong() -> None:
    assert parse_inputs(" a=json , otlp_spans=otlp_proto/traces ") == (
        InputSpec("a", "json"),
        InputSpec("otlp_spans", "otlp_proto/traces"),
    )
    for wrong in ("a", "a=yaml", "=json", "a b=json", "a=json,a=json"):
        with pytest.raises(ValueError, match="topic"):
            parse_inputs(wrong)


def test_alert_labels_may_not_replace_those_of_the_monitor() -> None:
    assert parse_labels("namespace=prod, env=eu=1") == {"namespace": "prod", "env": "eu=1"}
    for wrong in ("severity=info", "a-b=c", "a=", "a", "a=1,a=2"):
        with pytest.raises(ValueError, match=r"label|name"):
            parse_labels(wrong)


def test_groups_and_keep_are_shown_as_they_are_read() -> None:
    groups = parse_groups("g=a|b,h=c")
    assert groups == {"a": "g", "b": "g", "c": "h"}
    assert show_groups(groups) == "g=a|b,h=c"
    with pytest.raises(ValueError, match="in two"):
        parse_groups("g=a,h=a")
    keep = parse_keep("service.name=b,service.name=a,env=prod")
    assert keep == {"service.name": frozenset({"a", "b"}), "env": frozenset({"prod"})}
    assert parse_keep(show_keep(keep)) == keep


def test_a_start_time_needs_its_zone() -> None:
    assert parse_start("2026-11-30T10:00:00+02:00") == datetime(2026, 11, 30, 8, tzinfo=UTC)
    for wrong in ("2026-11-30T10:00:00", "noon", "LATEST"):
        with pytest.raises(ValueError, match="latest"):
            parse_start(wrong)


def test_addresses() -> None:
    assert check_bootstrap(("k1:9092", "[::1]:9093")) == ("k1:9092", "[::1]:9093")
    for wrong in ((), ("k1",), ("k1:port",), (":9092",), ("k1:99999",)):
        with pytest.raises(ValueError, match="host:port"):
            check_bootstrap(wrong)
    check_alertmanager_urls(("http://am:9093", "dns+https://am-headless:9093"))
    with pytest.raises(ValueError, match="URLs such as"):
        check_alertmanager_urls(("am:9093",))


def test_a_password_in_a_url_is_not_shown() -> None:
    assert (
        without_userinfo("http://me:secret@am:9093/x,https://b") == "http://***@am:9093/x,https://b"
    )
