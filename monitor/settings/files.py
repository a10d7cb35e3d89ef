"""The TOML files that settings may name: read, checked, and every fault named with the variable and file.

Scorers file::

    [scorers.pii]
    policy_class = "per_unit"      # or compositional_exfiltration, multi_step_jailbreak, tool_chaining
    independent = true             # its scores do not depend on another span's content

Thresholds file::

    [[threshold]]
    scorer = "pii"
    role = "tool_call"
    value = 0.5
    service = "shop"               # left out: any service
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from monitor.model import ROLES
from monitor.trace.config import ScorerRule, ThresholdOverride

T = TypeVar("T")


class SettingsFileError(ValueError):
    """A settings file is unreadable or wrong; the message says where."""


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsFileError(f"cannot be read ({error.strerror or error})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsFileError(f"is no valid TOML ({error})") from error


class _ScorersFile(msgspec.Struct, forbid_unknown_fields=True):
    scorers: dict[str, ScorerRule] = {}


class _ThresholdsFile(msgspec.Struct, forbid_unknown_fields=True):
    threshold: tuple[ThresholdOverride, ...] = ()


def scorers(path: Path) -> dict[str, ScorerRule]:
    """Scorer table by scorer name. Raises SettingsFileError."""
    return _convert(read_toml(path), _ScorersFile).scorers


def thresholds(path: Path) -> tuple[ThresholdOverride, ...]:
    """Overrides in the file's order. Raises SettingsFileError for an unknown role, a value outside [0, 1] or a repeat."""
    overrides = _convert(read_toml(path), _ThresholdsFile).threshold
    seen: set[tuple[str | None, str, str]] = set()
    for number, override in enumerate(overrides, 1):
        where = f"[[threshold]] number {number}"
        if override.role not in ROLES:
            raise SettingsFileError(f"{where}: role {override.role!r}; allowed: {', '.join(ROLES)}")
        if not 0.0 <= override.value <= 1.0:
            raise SettingsFileError(f"{where}: value {override.value}; allowed: 0 to 1")
        key = (override.service, override.scorer, override.role)
        if key in seen:
            raise SettingsFileError(
                f"{where}: repeats an earlier one for the same service, scorer and role"
            )
        seen.add(key)
    return overrides


def _convert(value: dict[str, Any], type_: type[T]) -> T:
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise SettingsFileError(str(error)) from error
