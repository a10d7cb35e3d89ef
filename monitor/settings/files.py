"""The TOML files that settings may name: read once, checked whole, each fault with its variable and file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from monitor.errors import InvalidSettings
from monitor.intake.conventions import UNIT_FIELDS, Row
from monitor.intake.scores import ScorerScale
from monitor.intake.tags import TagRule
from monitor.model import RELATIONAL_POLICY_CLASSES, ROLES, UNDECLARED, is_per_unit
from monitor.policy.load import BUILTIN, load_policies
from monitor.policy.rules import Policy
from monitor.trace.config import ScorerRule, ThresholdOverride

T = TypeVar("T")

EXAMPLES: Final[dict[str, str]] = {
    "scorers": """\
[scorers.pii]                      # a name as the scores carry it
policy_class = "per_unit:pii"      # or compositional_exfiltration, multi_step_jailbreak, tool_chaining
independent = true                 # no score of it depends on what another span holds
one_means = "unsafe"               # what the upper end of its range means
minimum = 0.0                      # range of the values as they come; outside it they are refused
maximum = 1.0
version = "2025-10"                # where the scores do not name their scorer's version

[scorers.judge]
policy_class = "multi_step_jailbreak"
one_means = "safe"                 # turned round at intake: a safety score grows with danger
labels = { refuse = 0.0, comply = 1.0 }   # safety scores of evaluations that have a label only
booleans = true                    # true counts as the upper end of the range; refused without this
strings = true                     # "0.5" counts as 0.5; refused without this
""",
    "thresholds": """\
[[threshold]]
scorer = "pii"
role = "tool_call"
value = 0.5

[[threshold]]
service = "shop"                   # goes before the one without a service
scorer = "pii"
role = "tool_call"
value = 0.7
""",
    "conventions": """\
[[attribute]]
attribute = "acme.step.kind"       # an attribute that your instrumentation sets
field = "unit"                     # what it says; here what kind of unit the span is
units = { lookup = "retrieval", act = "tool" }

[[tag]]
tag = "egress"
verbs = ["dispatch"]
objects = ["parcel"]               # left out: the verb alone is enough

[tools]
run_report = ["private_read"]      # a tool's exact name and its tags
""",
}


class SettingsFileError(ValueError):
    """A settings file is unreadable or wrong; each line of the message is one fault."""


@dataclass(frozen=True)
class Tables:
    """What the files say; the defaults are what holds without them."""

    rules: Mapping[str, ScorerRule] = field(default_factory=dict)
    scales: Mapping[str, ScorerScale] = field(default_factory=dict)
    overrides: tuple[ThresholdOverride, ...] = ()
    policies: tuple[Policy, ...] = BUILTIN
    rows: tuple[Row, ...] = ()
    tag_rules: tuple[TagRule, ...] = ()
    tool_tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_tables(paths: Mapping[str, Path | None]) -> tuple[Tables, list[tuple[str, str]]]:
    """``paths`` by setting (`scorers`, `thresholds`, `policies`, `conventions`) -> tables, (setting, fault) pairs."""
    found: dict[str, Any] = {}
    faults: list[tuple[str, str]] = []
    for name, read in _READERS.items():
        path = paths.get(name)
        if path is None:
            continue
        try:
            found.update(read(_text(path)))
        except SettingsFileError as error:
            faults.extend((name, line) for line in str(error).splitlines())
    return Tables(**found), faults


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsFileError(f"cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise SettingsFileError(f"is not UTF-8 ({error.reason} at byte {error.start})") from error


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsFileError(f"not valid TOML: {error}") from error


def _scorers(text: str) -> dict[str, Any]:
    """A scorer's row says what it is (for the fold) and how its values read (for intake)."""
    document = _toml(text)
    table = document.pop("scorers", {})
    faults = [f"unknown key {key!r}; only [scorers.<name>] is allowed" for key in document]
    rules, scales = {}, {}
    if not isinstance(table, dict):
        raise SettingsFileError("`scorers` must be tables: [scorers.<name>]")
    for name, row in table.items():
        try:
            if not isinstance(row, dict):
                raise SettingsFileError("must be a table")
            of_rule = {key: row[key] for key in ScorerRule.__struct_fields__ if key in row}
            rule = _convert(of_rule, ScorerRule)
            scales[name] = _convert(
                {key: row[key] for key in row if key not in of_rule}, ScorerScale
            )
            known = (
                rule.policy_class in RELATIONAL_POLICY_CLASSES or rule.policy_class == UNDECLARED
            )
            if not known and not is_per_unit(rule.policy_class):
                allowed = ", ".join(sorted(RELATIONAL_POLICY_CLASSES))
                raise SettingsFileError(
                    f"policy_class {rule.policy_class!r}; allowed: per_unit, per_unit:<kind>, {allowed}, {UNDECLARED}"
                )
            rules[name] = rule
        except SettingsFileError as error:
            faults.append(f"scorer {name!r}: {error}")
    _refuse(faults)
    return {"rules": rules, "scales": scales}


class _ThresholdsFile(msgspec.Struct, forbid_unknown_fields=True):
    threshold: tuple[ThresholdOverride, ...] = ()


def _thresholds(text: str) -> dict[str, Any]:
    overrides = _convert(_toml(text), _ThresholdsFile).threshold
    faults = []
    seen: set[tuple[str | None, str, str]] = set()
    for number, override in enumerate(overrides, 1):
        where = f"[[threshold]] number {number}"
        if override.role not in ROLES:
            faults.append(f"{where}: role {override.role!r}; allowed: {', '.join(ROLES)}")
        if not 0.0 <= override.value <= 1.0:
            faults.append(f"{where}: value {override.value}; allowed: 0 to 1")
        key = (override.service, override.scorer, override.role)
        if key in seen:
            faults.append(f"{where}: an earlier one is for the same service, scorer and role")
        seen.add(key)
    _refuse(faults)
    return {"overrides": overrides}


def _policies(text: str) -> dict[str, Any]:
    try:
        return {"policies": load_policies(text, source="policies")}
    except InvalidSettings as error:
        lines = [line.removeprefix("policies: ") for line in str(error).splitlines()]
        raise SettingsFileError("\n".join(lines)) from error


class _ConventionsFile(msgspec.Struct, forbid_unknown_fields=True):
    attribute: tuple[Row, ...] = ()
    tag: tuple[TagRule, ...] = ()
    tools: dict[str, tuple[str, ...]] = {}


def _conventions(text: str) -> dict[str, Any]:
    file = _convert(_toml(text), _ConventionsFile)
    faults = []
    for number, row in enumerate(file.attribute, 1):
        where = f"[[attribute]] number {number} ({row.attribute!r})"
        if not row.attribute:
            faults.append(f"{where}: attribute is empty")
        if (
            row.attribute.count("*") > 1
        ):  # names that come are hostile: two would cost time as their square
            faults.append(f"{where}: at most one `*` is allowed")
        if (row.field in UNIT_FIELDS) != bool(row.units):
            needs = "needs units" if row.field in UNIT_FIELDS else "takes no units"
            faults.append(f"{where}: field {row.field!r} {needs}")
    _refuse(faults)
    return {"rows": file.attribute, "tag_rules": file.tag, "tool_tags": file.tools}


_READERS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "scorers": _scorers,
    "thresholds": _thresholds,
    "policies": _policies,
    "conventions": _conventions,
}


def _convert(value: dict[str, Any], type_: type[T]) -> T:
    try:
        return msgspec.convert(value, type_)
    except (msgspec.ValidationError, ValueError) as error:
        raise SettingsFileError(str(error)) from error


def _refuse(faults: list[str]) -> None:
    if faults:
        raise SettingsFileError("\n".join(faults))
