"""Prometheus rules: right by promtool, in step with the metrics and the runbooks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from dashboards.counting import increase
from tests.promql import RULES, alerts, faults, plain_counting, rules

CASES = sorted((RULES.parent / "tests").glob("*.yml"))
RUNBOOKS = RULES.parents[2] / "docs/runbooks"


def run(*arguments: str | Path) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_promtool_takes_the_rules_and_the_configuration(promtool: Path) -> None:
    run(promtool, "check", "rules", "--lint=all", "--lint-fatal", *sorted(RULES.glob("*.yml")))
    run(promtool, "check", "config", RULES.parent / "prometheus.yml")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_cases_come_out_as_written(promtool: Path, path: Path) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", path)


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    fires, quiet = set(), set()
    for path in CASES:
        for case in yaml.safe_load(path.read_text("utf-8"))["tests"]:
            for expected in case["alert_rule_test"]:
                (fires if expected["exp_alerts"] else quiet).add(expected["alertname"])
    names = {rule["alert"] for rule in alerts()}
    assert fires == names
    assert quiet == names - {"AgentMonitorHeartbeat"}  # fires always: that is its work


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_what_the_monitor_has(rule: dict[str, str]) -> None:
    assert faults(rule["expr"]) == []


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_counts_the_first_sample_of_a_series(rule: dict[str, str]) -> None:
    """A burst under a label not seen before makes a series that is born at 60: no `increase` has seen it grow."""
    assert plain_counting(rule["expr"]) == []


def test_the_check_itself_finds_a_counter_that_misses_the_first_sample() -> None:
    for function in ("rate", "increase"):
        assert plain_counting(f"sum({function}(agent_monitor_spans_total[5m]))") == [
            "agent_monitor_spans_total"
        ]
    good = increase("agent_monitor_spans_total", "5m")
    assert plain_counting(f"sum {good}") == []
    assert plain_counting(f"sum {good} + sum(increase(agent_monitor_spans_total[5m]))") != []


def test_the_check_itself_finds_a_slip_of_the_pen() -> None:
    assert faults("sum by (stage) (rate(agent_monitor_spans_total[5m]))") == [
        "nothing here has the label stage"
    ]
    assert faults('agent_monitor_spans_total{kind="a"}') == [
        "agent_monitor_spans_total has no label kind"
    ]
    assert faults("agent_monitor_span_total") == ["no metric is called agent_monitor_span_total"]
    assert faults("rate(agent_monitor_trace_score_sum[5m])") == [
        "no metric is called agent_monitor_trace_score_sum"
    ]
    assert faults("agent_monitor_lanes / on (topic) agent_monitor_lanes") == [
        "nothing here has the label topic"
    ]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_one_needs_at_night(rule: dict[str, dict[str, str]]) -> None:
    name = str(rule["alert"])
    assert re.fullmatch(r"AgentMonitor[A-Z]\w+", name)
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    notes = rule["annotations"]
    assert len(notes["summary"]) < 160
    assert notes["description"]
    assert notes["runbook_url"].endswith(f"/docs/runbooks/{name}.md")
    # A template may use only the labels that the expression leaves.
    recorded = {item["record"]: item["expr"] for item in rules() if "record" in item}
    asked = " ".join(
        [str(rule["expr"]), *(expr for key, expr in recorded.items() if key in str(rule["expr"]))]
    )
    for label in re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]):
        assert label in asked, f"{name}: nothing in the expression keeps {label}"


def test_alerts_and_runbooks_are_in_step() -> None:
    from monitor.alerting.content import ALERT_NAMES

    wanted = {rule["alert"] for rule in alerts()} | set(ALERT_NAMES)
    assert {path.stem for path in RUNBOOKS.glob("AgentMonitor*.md")} == wanted
    for name in wanted:
        text = (RUNBOOKS / f"{name}.md").read_text("utf-8")
        assert text.startswith(f"# {name}\n")
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings == [
            "Meaning",
            "Impact",
            "First three commands",
            "Likely causes",
            "How to silence",
        ]
        commands = re.search(r"```sh\n(.+?)```", text, re.DOTALL)
        assert commands is not None
        assert len(commands[1].strip().splitlines()) == 3, name


def test_every_command_that_an_alert_or_runbook_names_exists() -> None:
    """`monitor topics dump …` in a runbook at 3 a.m. must be a command of this build."""
    from typer.main import get_command

    from monitor.cli.main import app

    root = get_command(app)
    texts = {path.name: path.read_text("utf-8") for path in RUNBOOKS.glob("*.md")}
    texts |= {rule["alert"]: " ".join(rule["annotations"].values()) for rule in alerts()}
    for where, text in texts.items():
        for words in re.findall(r"(?:^|`|\| )monitor ([a-z][a-z -]*)", text, re.MULTILINE):
            command = root
            for word in words.split():
                below = getattr(command, "commands", None)
                if below is None or word.startswith("-"):
                    break
                assert word in below, f"{where}: there is no command `monitor {words}`"
                command = below[word]
