from __future__ import annotations

import json

import jsonschema
import pytest

from monitor.cli import main as cli
from monitor.cli.explain import NothingKnown
from monitor.errors import InvalidSettings, MissingProgram, MonitorError, TopicMismatch
from monitor.settings import Settings
from monitor.stack import MissingBinaryError
from tests.replay.test_replay import run, span


def test_every_wrong_setting_is_named_at_once_and_exit_code_is_2() -> None:
    done = run("config", LANES="none", TRESHOLD__PLANNER="0.2", IDLE="soon")
    assert done.returncode == 2
    for name in (
        "MONITOR_LANES",
        "MONITOR_TRESHOLD__PLANNER",
        "MONITOR_IDLE",
        "MONITOR_THRESHOLD__PLANNER",
    ):
        assert name in done.stderr
    assert "Traceback" not in done.stderr


def test_config_masks_secrets() -> None:
    done = run("config", "--json", TOKEN_KEY="k" * 40)
    assert json.loads(done.stdout)["MONITOR_TOKEN_KEY"] == "***"
    assert "k" * 40 not in done.stdout + done.stderr


def test_config_lists_every_setting_and_marks_those_that_are_set() -> None:
    done = run("config", GROUP="mine", INSTANCE="")
    rows = {row.split()[0]: row for row in done.stdout.splitlines() if row.strip()}
    assert set(Settings.variables()) <= set(rows)
    assert "(unset)" in rows["MONITOR_SASL_USERNAME"]
    assert "(unset)" in rows["MONITOR_INSTANCE"]
    assert [name for name, row in rows.items() if "environment" in row] == ["MONITOR_GROUP"]
    values = json.loads(run("config", "--json", GROUP="mine").stdout)
    assert set(values) == set(Settings.variables())
    assert values["MONITOR_SASL_USERNAME"] is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("INPUT", "did you mean MONITOR_INPUTS?"),
        ("BOOTSTRAP_SERVER", "did you mean MONITOR_BOOTSTRAP_SERVERS?"),
        ("THRESHOLD_TOOL_CALL", "did you mean MONITOR_THRESHOLD__TOOL_CALL?"),
        ("TYPO", "`monitor config` lists all names"),
        ("KAFKA", "`monitor config` lists all names"),
    ],
)
def test_only_a_name_that_is_near_is_proposed(name: str, hint: str) -> None:
    assert f"MONITOR_{name}: no such setting; {hint}" in run("config", **{name: "x"}).stderr


def test_config_says_what_the_budgets_come_to() -> None:
    done = run("config", PARTITIONS="4", OPEN_BYTES="10000000", CLOSED_BYTES="5000000")
    assert "budgets of all 4 partitions together: 60 MB" in done.stdout


def test_a_worker_without_token_key_says_how_to_make_one() -> None:
    done = run("worker")
    assert done.returncode == 2
    assert "openssl rand -hex 32" in done.stderr


def test_a_kafka_that_is_not_there_is_exit_code_4() -> None:
    done = run("topics", "check", BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert done.returncode == 4
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["span", "verdict", "incident", "dead-letter", "drift", "mix"])
def test_schemas_are_json_schemas(name: str) -> None:
    schema = json.loads(run("schema", name).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)


def test_the_span_schema_takes_a_span_and_refuses_a_wrong_one() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(run("schema", "span").stdout))
    good = json.loads(span(2, at=0))
    validator.validate(good)
    validator.validate({**good, "extra": {"counts": "as an attribute"}, "parent_span_id": ""})
    for wrong in (
        {"trace_id": 7},
        {"trace_id": "0" * 32},
        {"span_id": "xyz"},
        {"span_id": None},
        {"parent_span_id": "abc"},
        {"scores": [{"scorer": "judge", "value": "0.5"}]},
    ):
        assert not validator.is_valid({**good, **wrong}), wrong
    del good["trace_id"]
    assert not validator.is_valid(good)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidSettings("x"), 2),
        (TopicMismatch("x"), 1),
        (NothingKnown("x"), 1),
        (MissingProgram("x"), 3),
        (MissingBinaryError("x"), 3),
        (MonitorError("x"), 2),
    ],
)
def test_exit_codes_are_the_documented_ones(error: MonitorError, code: int) -> None:
    assert cli.exit_code(error) == code


def test_help_names_every_command() -> None:
    out = run("--help").stdout
    for command in ("worker", "replay", "config", "schema", "topics", "demo"):
        assert command in out


def test_version() -> None:
    assert run("--version").stdout.strip()[0].isdigit()
