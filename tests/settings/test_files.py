"""The TOML files: examples of the docs work, faults are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.errors import InvalidSettings
from monitor.settings import Settings
from monitor.settings.files import EXAMPLES


def load(tmp_path: Path, **texts: str) -> Settings:
    environ = {}
    for name, text in texts.items():
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        environ[f"MONITOR_{name.upper()}"] = str(path)
    return Settings.load(environ)


def faults(tmp_path: Path, **texts: str) -> list[str]:
    with pytest.raises(InvalidSettings) as caught:
        load(tmp_path, **texts)
    return [line.replace(f"{tmp_path}/", "") for line in str(caught.value).splitlines()]


def test_the_examples_of_the_reference_do_what_they_say(tmp_path: Path) -> None:
    settings = load(tmp_path, **EXAMPLES)
    fold, intake = settings.fold_settings(), settings.intake_config()
    assert fold.scorers["pii"].per_unit
    assert fold.scorers["pii"].independent
    assert not fold.scorers["judge"].per_unit
    assert intake.scorers["judge"].one_means == "safe"
    assert intake.scorers["judge"].labels == {"refuse": 0.0, "comply": 1.0}
    assert [(o.service, o.value) for o in fold.threshold_overrides] == [(None, 0.5), ("shop", 0.7)]
    assert intake.conventions[0].attribute == "acme.step.kind"
    assert intake.tag_rules[0].verbs == {"dispatch"}
    assert intake.tool_tags == {"run_report": ("private_read",)}


def test_the_faults_of_all_files_come_together(tmp_path: Path) -> None:
    told = faults(
        tmp_path,
        scorers='[scorers.a]\npolicy_class = "per-unit"\n[scorers.b]\nmaximum = 0.0\n[scorers.c]\nrange = 3\n',
        thresholds='[[threshold]]\nscorer="a"\nrole="tool"\nvalue=0.1\n[[threshold]]\nscorer="a"\nrole="planner"\nvalue=1.1\n',
        conventions="[[attribute]]\nattribute = 'x'\nfield = 'colour'\n",
        policies="[[policy]\n",
    )
    joined = "\n".join(told)
    assert (
        "MONITOR_SCORERS: scorers.toml: scorer 'a': policy_class 'per-unit'; allowed: per_unit"
        in joined
    )
    assert "scorer 'b': scorer range 0.0..0.0 is empty" in joined
    assert "scorer 'c': Object contains unknown field `range`" in joined
    assert "MONITOR_THRESHOLDS: thresholds.toml: [[threshold]] number 1: role 'tool'" in joined
    assert "number 2: value 1.1; allowed: 0 to 1" in joined
    assert "MONITOR_CONVENTIONS: conventions.toml: Invalid enum value 'colour'" in joined
    assert "MONITOR_POLICIES: policies.toml: not valid TOML" in joined
    assert len(told) == 7


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("attribute = ''\nfield = 'agent'", "attribute is empty"),
        ("attribute = 'a.*.b.*'\nfield = 'score'", "at most one `*`"),
        ("attribute = 'a'\nfield = 'unit'", "field 'unit' needs units"),
        ("attribute = 'a'\nfield = 'sign'", "field 'sign' needs units"),
        (
            "attribute = 'a'\nfield = 'agent'\nunits = { b = 'tool' }",
            "field 'agent' takes no units",
        ),
    ],
)
def test_a_convention_that_could_say_nothing_is_named(tmp_path: Path, row: str, fault: str) -> None:
    [told] = faults(tmp_path, conventions=f"[[attribute]]\n{row}\n")
    assert fault in told
    assert "[[attribute]] number 1" in told


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("labels = { bad = 1.5 }", "label 'bad' is 1.5; a safety score is 0 to 1"),
        ("labels = { bad = nan }", "label 'bad' is nan"),
        ("maximum = inf", "scorer range 0.0..inf is not finite"),
        ("minimum = nan", "scorer range nan..1.0 is empty"),
    ],
)
def test_a_scale_that_could_give_no_safety_score_is_named(
    tmp_path: Path, row: str, fault: str
) -> None:
    [told] = faults(tmp_path, scorers=f"[scorers.a]\npolicy_class = 'per_unit'\n{row}\n")
    assert fault in told


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidSettings, match=r"MONITOR_SCORERS: /none\.toml: cannot be read .No such file"
    ):
        Settings.load({"MONITOR_SCORERS": "/none.toml"})


def test_a_file_is_read_once(tmp_path: Path) -> None:
    """An edit while the worker runs must not make two parts of it disagree."""
    settings = load(tmp_path, thresholds=EXAMPLES["thresholds"])
    before = settings.fold_settings()
    (tmp_path / "thresholds.toml").write_text("broken [")
    assert settings.fold_settings() == before
