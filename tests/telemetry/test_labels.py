"""Labels from outside stay few, short and printable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from monitor.telemetry import OTHER, BoundedLabel, Telemetry, clean


@given(st.text(alphabet=st.characters(), max_size=400))
def test_a_clean_label_is_printable_short_and_stable(value: str) -> None:
    shown = clean(value)
    assert 0 < len(shown) <= 128
    assert shown.isprintable()
    assert shown.encode()  # no lone surrogate
    assert clean(shown) == shown


def test_two_long_names_stay_two() -> None:
    assert clean("a" * 10_000) != clean("a" * 10_001)
    assert clean("") == "unknown"
    assert clean("a\nb\x00c") == "a b c"


def test_after_the_limit_every_new_value_is_other_and_counted() -> None:
    folded: list[int] = []
    label = BoundedLabel(2, lambda: folded.append(1))
    assert [label.fold(name) for name in ("a", "b", "c", "a", "d", "c")] == [
        "a",
        "b",
        OTHER,
        "a",
        OTHER,
        OTHER,
    ]
    assert len(folded) == 3
    assert len(label) == 2


def test_hostile_names_come_back_whole_from_a_scrape() -> None:
    telemetry = Telemetry()
    names = [
        'quote"s',
        "back\\slash",
        "new\nline",
        "<script>",
        "{{ .Labels }}",
        "😀" * 5_000,
        "\ud800",
        "} 1\nfake 2",
    ]
    for name in names:
        telemetry.unknown_roles_total.labels(telemetry.raw_roles.fold(name)).inc()
    text = generate_latest(telemetry.registry).decode()
    samples = {
        sample.labels["raw"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "agent_monitor_unknown_roles_total"
    }
    assert samples == {clean(name): 1.0 for name in names}
