"""What moves which metric."""

from __future__ import annotations

import re

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from monitor.model import Fault, Forensics, Scalar
from monitor.telemetry import OTHER, Telemetry
from tests.telemetry.records import (
    dead_letter,
    drift_report,
    gate,
    incident,
    mix_report,
    reduction,
    verdict,
)


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(now=lambda: 1000.0)


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return telemetry.registry.get_sample_value(f"agent_monitor_{name}", labels)


def test_a_trace_counts_once_however_often_it_is_revised(telemetry: Telemetry) -> None:
    first = verdict(
        forensics=Forensics("rejected", (Fault("cycle", ("a",), 1), Fault("self_parent", (), 70)))
    )
    telemetry.observe_outputs([first, msgspec.structs.replace(first, revision=2)])
    assert value(telemetry, "verdicts_total", service="shop", closed_by="root_complete") == 1
    assert value(telemetry, "verdict_revisions_total") == 1
    assert value(telemetry, "forensics_total", status="rejected") == 1
    assert value(telemetry, "identity_faults_total", kind="self_parent") == 70
    assert value(telemetry, "trace_spans_sum", model_version="m-1") == 41


def test_the_score_histogram_holds_each_roles_maximum_and_no_sum(telemetry: Telemetry) -> None:
    telemetry.observe_verdict(
        verdict(reductions=(reduction(tool_call=0.91, retrieval=0.3, planner=None),))
    )
    of_tool = {"scorer": "judge", "role": "tool_call", "model_version": "m-1", "method": "max"}
    assert value(telemetry, "trace_score_count", **of_tool) == 1
    assert value(telemetry, "trace_score_bucket", **of_tool, le="0.9") == 0
    assert value(telemetry, "trace_score_bucket", **of_tool, le="0.95") == 1
    of_retrieval = {**of_tool, "role": "retrieval"}
    assert value(telemetry, "trace_score_bucket", **of_retrieval, le="0.3") == 1  # right-closed
    assert value(telemetry, "trace_score_bucket", **of_retrieval, le="0.2") == 0
    assert value(telemetry, "trace_score_count", **{**of_tool, "role": "planner"}) is None
    for text in (generate_latest(telemetry.registry), generate_openmetrics(telemetry.registry)):
        assert b"agent_monitor_trace_score_bucket" in text
        assert b"agent_monitor_trace_score_sum" not in text


def test_more_score_keys_than_the_limit_become_other(telemetry: Telemetry) -> None:
    for scorer in range(40):
        for version in range(20):
            telemetry.observe_verdict(
                verdict(
                    model_version=f"m-{version}",
                    reductions=(reduction(f"s-{scorer}", planner=0.5),),
                )
            )
    others = {"scorer": OTHER, "role": "planner", "model_version": OTHER, "method": "max"}
    assert value(telemetry, "trace_score_count", **others) == 300
    assert value(telemetry, "labels_folded_total", label="trace_score") == 300


def test_means_are_counted_by_the_condition_that_forbids_them(telemetry: Telemetry) -> None:
    refused = Scalar(0.1, 4, False, ("scores_independent", "cardinality_stationary"))
    telemetry.observe_verdict(verdict(reductions=(reduction("pii", refused, planner=0.1),)))
    telemetry.observe_verdict(
        verdict(reductions=(reduction("pii", Scalar(0.1, 4, True), planner=0.1),))
    )
    telemetry.observe_verdict(verdict(reductions=(reduction("judge", None, planner=0.1),)))
    assert value(telemetry, "scalars_total", scorer="pii") == 1
    assert (
        value(telemetry, "scalars_suppressed_total", scorer="pii", condition="scores_independent")
        == 1
    )
    assert (
        value(
            telemetry, "scalars_suppressed_total", scorer="pii", condition="cardinality_stationary"
        )
        == 1
    )
    assert (
        value(
            telemetry, "scalars_suppressed_total", scorer="judge", condition="policy_decomposable"
        )
        == 1
    )


def test_incidents_and_dead_letters(telemetry: Telemetry) -> None:
    telemetry.observe_outputs(
        [
            incident(),
            incident(revision=2),
            incident(reason="policy", policy="exfil", severity="warning"),
            dead_letter(),
            dead_letter(),
        ]
    )
    assert (
        value(telemetry, "incidents_total", service="shop", reason="threshold", severity="critical")
        == 1
    )
    assert value(telemetry, "incident_revisions_total") == 1
    assert value(telemetry, "policy_incidents_total", policy="exfil", severity="warning") == 1
    assert value(telemetry, "dead_letters_total", reason="not_json", topic="agent-spans") == 2
    exemplar = f'# {{trace_id="{"a" * 32}"}} 1.0'.encode()
    assert exemplar in generate_openmetrics(telemetry.registry)
    assert exemplar not in generate_latest(telemetry.registry)


def test_counters_of_a_restored_fold_are_not_counted_twice(telemetry: Telemetry) -> None:
    telemetry.observe_fold_counters(3, {"ticks": 100})
    telemetry.observe_fold_counters(3, {"ticks": 107, "cut": 2})
    assert value(telemetry, "fold_events_total", event="ticks") == 7
    assert value(telemetry, "fold_events_total", event="cut") == 2  # first seen after the mark
    telemetry.forget_partition("assemble", "monitor.fragments", 3)
    telemetry.observe_fold_counters(3, {"ticks": 200})
    assert value(telemetry, "fold_events_total", event="ticks") == 7


def test_a_comparison_has_one_decision_and_no_stale_number(telemetry: Telemetry) -> None:
    key = {
        "service": "shop",
        "scorer": "judge",
        "scorer_version": "1",
        "role": "planner",
        "comparison": "versions",
        "reference": "m-1",
        "current": "m-2",
    }
    telemetry.observe_report(drift_report(decision="not_yet", ticket=True))
    assert value(telemetry, "drift_ticket", **key) == 1
    telemetry.observe_report(drift_report(decision="drift", d=0.2, log_e=8.0))
    assert value(telemetry, "drift_decision", **key, decision="drift") == 1
    assert value(telemetry, "drift_decision", **key, decision="not_yet") is None
    assert value(telemetry, "drift_ticket", **key) is None
    assert value(telemetry, "drift_distance", **key) == 0.2
    assert value(telemetry, "drift_log_threshold", **key) == 7.4
    telemetry.observe_report(drift_report(decision="not_comparable", log_e=None))
    assert value(telemetry, "drift_log_e", **key) is None
    assert value(telemetry, "drift_reports_total", kind="drift", decision="drift") == 1


def test_a_mix_report_shows_its_evidence_and_the_share_it_explains(telemetry: Telemetry) -> None:
    key = {
        "service": "shop",
        "scorer": "judge",
        "comparison": "versions",
        "reference": "m-1",
        "current": "m-2",
    }
    telemetry.observe_report(mix_report())
    assert value(telemetry, "composition_share", **key) == 0.9
    assert value(telemetry, "mix_log_e", **key, what="length") == 9.0
    assert value(telemetry, "mix_log_e", **key, what="roles") is None
    telemetry.observe_report(mix_report(composition=None))
    assert value(telemetry, "composition_share", **key) is None
    assert value(telemetry, "drift_reports_total", kind="mix", decision="shifted") == 2


def test_a_drift_key_that_moved_away_leaves_the_scrape(telemetry: Telemetry) -> None:
    """Two workers that both show a decision would keep an alert firing that one of them has cleared."""
    for service in ("shop", "help"):
        telemetry.observe_report(drift_report(service=service, decision="drift", ticket=True))
        telemetry.observe_report(mix_report(service=service))
        telemetry.observe_gate(gate(service))
    telemetry.forget_drift(lambda service, scorer: (service, scorer) == ("shop", "judge"))
    text = generate_latest(telemetry.registry).decode()
    assert [line for line in text.splitlines() if 'service="shop"' in line] == []
    assert (
        value(telemetry, "cardinality_gate", service="help", scorer="judge", state="shifted") == 1
    )
    assert sum('service="help"' in line for line in text.splitlines()) == 8


def test_comparisons_past_the_bounds_are_counted_and_not_shown(telemetry: Telemetry) -> None:
    for number in range(205):
        telemetry.observe_report(drift_report(service=f"s-{number}"))
        telemetry.observe_report(mix_report(service=f"s-{number}"))
        telemetry.observe_gate(gate(f"s-{number}"))
    text = generate_latest(telemetry.registry).decode()
    assert text.count("agent_monitor_drift_distance{") == 200
    assert text.count("agent_monitor_cardinality_gate{") == 200
    assert OTHER not in re.findall(r'service="([^"]*)"', text)
    assert value(telemetry, "labels_folded_total", label="drift_key") == 15


def test_an_overlong_trace_id_is_no_exemplar_and_no_fault(telemetry: Telemetry) -> None:
    telemetry.observe_incident(incident(trace_id="a" * 500))
    assert (
        value(telemetry, "incidents_total", service="shop", reason="threshold", severity="critical")
        == 1
    )


def test_the_gate_has_one_state(telemetry: Telemetry) -> None:
    telemetry.observe_gate(gate(state="unknown"))
    telemetry.observe_gate(gate(state="stationary"))
    assert (
        value(telemetry, "cardinality_gate", service="shop", scorer="judge", state="unknown")
        is None
    )
    assert (
        value(telemetry, "cardinality_gate", service="shop", scorer="judge", state="stationary")
        == 1
    )


def test_lag_in_seconds_is_the_age_of_what_waits(telemetry: Telemetry) -> None:
    place = {"stage": "assemble", "topic": "t", "partition": "0"}
    telemetry.observe_lag("assemble", "t", 0, records=5, position_ms=940_000)
    assert value(telemetry, "consumer_lag_seconds", **place) == 60  # now is 1000 s
    assert value(telemetry, "consumer_lag_records", **place) == 5
    telemetry.observe_lag("assemble", "t", 0, records=0, position_ms=940_000)
    assert value(telemetry, "consumer_lag_seconds", **place) == 0  # an old record, but the last


def test_spans_and_traces_that_no_scorer_looked_at(telemetry: Telemetry) -> None:
    telemetry.observe_verdict(verdict(reductions=()))
    telemetry.observe_verdict(
        verdict(reductions=(reduction("judge", planner=0.1, tool_call=None),))
    )
    assert value(telemetry, "unscored_traces_total", service="shop") == 1
    assert value(telemetry, "scored_spans_total", scorer="judge") == 1
    assert value(telemetry, "unscored_spans_total", scorer="judge") == 1


def test_series_of_a_partition_leave_with_it(telemetry: Telemetry) -> None:
    telemetry.open_lives.labels("3").set(5)
    telemetry.consumer_lag_seconds.labels("assemble", "monitor.fragments", "3").set(5)
    telemetry.consumer_lag_seconds.labels("assemble", "monitor.fragments", "4").set(5)
    telemetry.forget_partition("assemble", "monitor.fragments", 3)
    telemetry.forget_partition("assemble", "monitor.fragments", 3)  # once more does no harm
    assert value(telemetry, "open_lives", partition="3") is None
    assert (
        value(
            telemetry,
            "consumer_lag_seconds",
            stage="assemble",
            topic="monitor.fragments",
            partition="3",
        )
        is None
    )
    assert (
        value(
            telemetry,
            "consumer_lag_seconds",
            stage="assemble",
            topic="monitor.fragments",
            partition="4",
        )
        == 5
    )


def test_inputs_show_zero_before_the_first_record(telemetry: Telemetry) -> None:
    """`increase(...) == 0` needs a series: an input that never spoke must alert, too."""
    telemetry.declare_inputs(["agent-spans"])
    assert value(telemetry, "input_records_total", topic="agent-spans") == 0
    refused = {"reason": "not_json", "topic": "agent-spans"}
    assert value(telemetry, "dead_letters_total", **refused) == 0


def test_a_loop_that_went_round_says_when(telemetry: Telemetry) -> None:
    telemetry.beat("ingest")
    assert value(telemetry, "heartbeat_timestamp_seconds", stage="ingest") == 1000.0


def test_a_worker_says_when_it_started(telemetry: Telemetry) -> None:
    assert value(telemetry, "started_timestamp_seconds") == 1000.0
