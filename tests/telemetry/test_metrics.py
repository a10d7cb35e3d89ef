"""The declarations themselves: names, words, and how many series there can be."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from monitor.drift.report import GateState
from monitor.intake.reasons import REASONS
from monitor.telemetry import Telemetry
from monitor.telemetry.known import (
    AGENT_REASONS,
    FOLD_EVENTS,
    FRAGMENT_REASONS,
    INPUT_REASONS,
    OPEN_LABELS,
)
from tests.telemetry.records import (
    dead_letter,
    drift_report,
    incident,
    mix_report,
    reduction,
    verdict,
)


def filled() -> Telemetry:
    telemetry = Telemetry()
    for service in range(3):
        telemetry.observe_outputs(
            [verdict(service=f"s-{service}", cut=True, redelivered=1), incident(), dead_letter()]
        )
        telemetry.observe_report(
            drift_report(service=f"s-{service}", decision="drift", ticket=True)
        )
    return telemetry


def test_every_metric_is_declared_with_all_that_an_operator_asks() -> None:
    specs = Telemetry().specs
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        assert spec.name.startswith("agent_monitor_")
        assert (spec.kind == "counter") == spec.name.endswith("_total"), spec.name
        assert spec.help.endswith(".")
        assert spec.unit
        assert spec.by
        assert not {"trace_id", "span_id", "incident_id"} & set(spec.labels)


def test_the_registry_holds_what_is_declared_and_nothing_else() -> None:
    telemetry = filled()
    declared = {name for spec in telemetry.specs for name in spec.series_names()}
    families = list(text_string_to_metric_families(generate_latest(telemetry.registry).decode()))
    exposed = {sample.name for family in families for sample in family.samples}
    assert exposed <= declared
    by_name = {name: spec for spec in telemetry.specs for name in spec.series_names()}
    for family in families:
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(by_name[sample.name].labels), sample.name


def test_what_can_be_known_beforehand_stands_at_zero() -> None:
    """A series that is born with its first burst shows Prometheus no increase."""
    telemetry = Telemetry()
    telemetry.declare_inputs(["agent-spans"])
    telemetry.declare_policies(["exfil"])
    there = {
        sample.name
        for family in telemetry.registry.collect()
        for sample in family.samples
        if not sample.value
    }
    for spec in telemetry.specs:
        if spec.kind != "gauge" and not OPEN_LABELS & set(spec.labels):
            assert set(spec.series_names()) <= there, spec.name


def test_every_reason_of_a_dead_letter_stands_in_the_one_list() -> None:
    """What intake refuses has its own list; the fold's and the shell's reasons are read from their source."""
    root = Path(__file__).parents[2] / "monitor"
    source = "\n".join(
        path.read_text("utf-8")
        for part in ("trace", "stream")
        for path in (root / part).glob("*.py")
    )
    letters = re.findall(r"DeadLetter\(\s*reason=\"(\w+)\"", source)
    letters += re.findall(r"_refused_score\(\"(\w+)\"", source)
    letters += re.findall(r"_dead_letter\(message, \"(\w+)\"", source)
    listed = {*INPUT_REASONS, *FRAGMENT_REASONS, *AGENT_REASONS} - set(REASONS)
    assert set(letters) == listed
    assert len(letters) == len(listed) == 6


def test_promtool_finds_nothing_to_say(promtool: Path) -> None:
    body = generate_latest(filled().registry)
    done = subprocess.run(
        [promtool, "check", "metrics"], input=body, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_a_large_estate_stays_under_thirty_thousand_series_and_renders_quickly() -> None:
    """200 services x 3 scorers x 2 versions, all roles, on 32 partitions."""
    telemetry = Telemetry()
    roles = ("planner", "retrieval", "tool_call", "completion", "unknown")
    for service in range(200):
        for version in ("m-1", "m-2"):
            reductions = tuple(
                reduction(f"scorer-{n}", **dict.fromkeys(roles, 0.4)) for n in range(3)
            )
            telemetry.observe_verdict(
                verdict(service=f"s-{service}", model_version=version, reductions=reductions)
            )
        for reason in ("threshold", "policy", "identity"):
            for severity in ("critical", "warning"):
                telemetry.observe_incident(
                    incident(service=f"s-{service}", reason=reason, severity=severity)
                )
        for scorer in range(3):
            key = {"service": f"s-{service}", "scorer": f"scorer-{scorer}"}
            for role in roles:
                telemetry.observe_report(drift_report(**key, role=role))
            telemetry.observe_report(mix_report(**key))
            telemetry.observe_gate(GateState(**key, state="unknown", why="", source_offset=1))
    for partition in map(str, range(32)):
        for gauge in (
            telemetry.open_lives,
            telemetry.closed_lives,
            telemetry.open_bytes,
            telemetry.closed_bytes,
        ):
            gauge.labels(partition).set(1)
        for topic in ("monitor.fragments", "agent-spans"):
            telemetry.consumer_lag_seconds.labels("assemble", topic, partition).set(0)
            telemetry.consumer_lag_records.labels("assemble", topic, partition).set(0)
    before = time.perf_counter()
    body = generate_latest(telemetry.registry).decode()
    assert (
        time.perf_counter() - before < 3.0
    )  # off the loop; twenty times what it takes on a laptop
    series = sum(not line.startswith("#") for line in body.splitlines())
    assert 15_000 < series < 30_000


def test_every_event_of_the_fold_has_its_meaning() -> None:
    source = "\n".join(
        path.read_text("utf-8")
        for path in (Path(__file__).parents[2] / "monitor/trace").glob("*.py")
    )
    assert set(re.findall(r"\.count\(\s*\"(\w+)\"", source)) == set(FOLD_EVENTS)
