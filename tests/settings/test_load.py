"""Reading the environment: names, faults all at once, secrets."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from monitor.errors import InvalidSettings
from monitor.intake import Bounds
from monitor.settings import InputSpec, Settings
from monitor.settings.environment import injected_by_kubernetes
from monitor.trace.config import FoldSettings

KEY = "k" * 32


def faults(environ: dict[str, str]) -> list[str]:
    with pytest.raises(InvalidSettings) as caught:
        Settings.load(environ)
    return str(caught.value).splitlines()


def test_an_empty_environment_is_enough_to_read_files() -> None:
    settings = Settings.load({})
    assert settings.inputs == (InputSpec("agent-spans", "json"),)
    assert settings.stages == ("ingest", "assemble", "agents")
    assert not settings.start_is_explicit
    fold = settings.fold_settings()
    assert fold.lifecycle == FoldSettings().lifecycle
    assert fold.thresholds == FoldSettings().thresholds
    assert {policy.policy_class for policy in fold.policies} == {
        "compositional_exfiltration",
        "multi_step_jailbreak",
        "tool_chaining",
    }


def test_every_fault_is_told_at_once_with_name_value_and_what_is_allowed() -> None:
    told = faults(
        {
            "MONITOR_IDLE": "5 parsecs",
            "MONITOR_PARTITIONS": "0",
            "MONITOR_TRESHOLD__TOOL_CALL": "0.4",
            "MONITOR_THRESHOLD__PLANNER": "nan",
            "MONITOR_STAGES": "ingest,judge",
            "MONITOR_REDELIVERY": "ignore",
        }
    )
    by_name = {line.split(":")[0]: line for line in told}
    assert len(told) == len(by_name) == 6
    assert "'5 parsecs'" in by_name["MONITOR_IDLE"]
    assert "allowed: a duration such as" in by_name["MONITOR_IDLE"]
    assert "allowed: 1 or more" in by_name["MONITOR_PARTITIONS"]
    assert "MONITOR_THRESHOLD__TOOL_CALL" in by_name["MONITOR_TRESHOLD__TOOL_CALL"]
    assert "'nan'" in by_name["MONITOR_THRESHOLD__PLANNER"]
    assert "'judge'" in by_name["MONITOR_STAGES"]
    assert "'collapse' or 'reject'" in by_name["MONITOR_REDELIVERY"]


def test_what_kubernetes_injects_for_services_is_ignored() -> None:
    environ = {
        "MONITOR_SERVICE_HOST": "10.0.0.1",
        "MONITOR_SERVICE_PORT": "80",
        "MONITOR_SERVICE_PORT_HTTP": "80",
        "MONITOR_PORT": "tcp://10.0.0.1:80",
        "MONITOR_PORT_80_TCP": "tcp://10.0.0.1:80",
        "MONITOR_PORT_80_TCP_ADDR": "10.0.0.1",
        "MONITOR_WEB_PORT": "tcp://10.0.0.1:80",  # of a Service named monitor-web
        "MONITOR_WEB_SERVICE_HOST": "10.0.0.1",
    }
    assert all(injected_by_kubernetes(name, value) for name, value in environ.items())
    assert Settings.load(environ).web_port == Settings.load({}).web_port
    assert not injected_by_kubernetes("MONITOR_WEB_PORT", "9000")


def test_an_empty_variable_counts_as_unset() -> None:
    assert Settings.load({"MONITOR_IDLE": ""}).idle == Settings.load({}).idle


def test_nothing_but_load_looks_at_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONITOR_GROUP", "from-outside")
    assert Settings().group == "agent-monitor"
    assert Settings.load().group == "from-outside"


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().group = "other"  # type: ignore[misc]


def test_secrets_come_from_files_and_are_never_shown(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text(KEY + "\n")
    settings = Settings.load({"MONITOR_TOKEN_KEY_FILE": str(secret)})
    assert settings.intake_config().token_key == KEY.encode()
    shown = "\n".join(f"{name}={value}" for name, value in settings.effective().items())
    assert KEY not in shown
    assert KEY not in repr(settings)
    assert "MONITOR_TOKEN_KEY=***" in shown


def test_a_fault_about_a_secret_does_not_show_it(tmp_path: Path) -> None:
    told = faults({"MONITOR_TOKEN_KEY": "hunter2"})
    assert told == [
        "MONITOR_TOKEN_KEY: *** has 7 bytes; allowed: 32 to 64 (`openssl rand -hex 32`)"
    ]
    told = faults({"MONITOR_TOKEN_KEY": KEY, "MONITOR_TOKEN_KEY_FILE": str(tmp_path / "none")})
    assert told == [
        "MONITOR_TOKEN_KEY_FILE: set together with MONITOR_TOKEN_KEY; allowed: one of the two"
    ]
    assert "cannot be read" in faults({"MONITOR_SASL_PASSWORD_FILE": str(tmp_path / "none")})[0]
    told = faults({"MONITOR_ALERTMANAGER_URLS": "ftp://me:hunter2@am"})
    assert "hunter2" not in told[0]


def test_a_worker_that_ingests_needs_a_token_key() -> None:
    with pytest.raises(InvalidSettings, match="MONITOR_TOKEN_KEY"):
        Settings().require_worker()
    Settings(stages="assemble,agents").require_worker()
    Settings(token_key=KEY).require_worker()


def test_fragments_outlive_every_trace_that_may_still_be_open() -> None:
    told = faults(
        {"MONITOR_MAX_LIFETIME": "20h", "MONITOR_LATE_WINDOW": "4h", "MONITOR_IDLE": "30s"}
    )
    assert told == [
        "MONITOR_FRAGMENTS_RETENTION: 1d is shorter than max_lifetime + late_window + 1 h; allowed: 25h or more"
    ]
    Settings(max_lifetime="20h", late_window="3h")  # 24 h exactly


def test_every_variable_is_shown_and_reads_back(tmp_path: Path) -> None:
    """What `monitor config` prints is an environment with the same effect."""
    first = Settings(
        keep="service.name=a,service.name=b",
        service_groups="g=a|b",
        alert_labels="env=prod,cluster=x",
        inputs="a=json,b=otlp_proto/traces",
        start="2026-11-30T08:00:00+00:00",
        idle="1.5s",
        page_scorers="none",
        threshold={"tool_call": 0.7},
        alertmanager_urls="http://a:1,http://b:2",
    )
    shown = first.effective()
    second = Settings.load({name: value for name, value in shown.items() if value != "***"})
    assert second.effective() == shown
    assert second.fold_settings() == first.fold_settings()
    assert second.threshold.tool_call == 0.7
    assert second.page_scorers == ()


def test_other_settings_have_another_name_in_the_log() -> None:
    assert Settings().fold_settings().sha256 == Settings().fold_settings().sha256
    assert Settings(idle="31s").fold_settings().sha256 != Settings().fold_settings().sha256
    assert Settings(group="b").fold_settings().sha256 == Settings().fold_settings().sha256


def test_a_settings_record_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.toml"
    path.write_text(
        "\n".join(
            f'[[threshold]]\nscorer = "scorer-{n:0100}"\nrole = "planner"\nvalue = 0.5'
            for n in range(2000)
        )
    )
    told = faults({"MONITOR_THRESHOLDS": str(path)})
    assert len(told) == 1
    assert "allowed: 256000" in told[0]


def test_every_bound_of_intake_is_a_setting() -> None:
    defaults = Settings().intake_config().bounds
    assert defaults == Bounds()
    for name in Bounds.__struct_fields__:
        lower = getattr(defaults, name) - 1
        settings = Settings.load({f"MONITOR_BOUNDS__{name.upper()}": str(lower)})
        assert settings.intake_config().bounds == msgspec.structs.replace(defaults, **{name: lower})
        assert settings.effective()[f"MONITOR_BOUNDS__{name.upper()}"] == str(lower)


def test_bounds_that_no_fragment_holds_are_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"MONITOR_BOUNDS.*lower scores, links"):
        Settings.load({"MONITOR_BOUNDS__LINKS": "100000"})
    with pytest.raises(InvalidSettings, match="MONITOR_BOUNDS__EVENTS: '0' is not allowed"):
        Settings.load({"MONITOR_BOUNDS__EVENTS": "0"})


def test_more_lanes_than_partitions_are_noted_only_where_they_were_chosen() -> None:
    [note] = Settings(lanes=16, partitions=8).notes()
    assert "MONITOR_LANES: 16" in note
    assert "MONITOR_PARTITIONS (8)" in note
    assert Settings(lanes=8, partitions=8).notes() == ()
    assert Settings(partitions=4).notes() == ()  # the default of lanes is nobody's mistake
