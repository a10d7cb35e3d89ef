"""The reference page of the settings, written from the declarations themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from monitor.intake.decode import ENCODINGS
from monitor.settings.environment import PREFIX
from monitor.settings.files import EXAMPLES
from monitor.settings.sections import SECTIONS
from monitor.settings.values import InputSpec, parse_size, show_duration

_HEAD: Final = f"""\
# Settings

Environment variables only, all beginning with `{PREFIX}`. They are read once, at start, and checked as a whole: every
fault is told at once, with the variable's name, its value (secrets masked) and what is allowed. A `{PREFIX}*` variable
that is not listed here is refused with the nearest name, so that a slip of the pen never means a default; names that
Kubernetes injects for Services are ignored. An empty variable counts as unset. `monitor config` prints the values in
force. Durations: `10s`, `5 min`, `1h`, `7d`, or seconds. Sizes: `32MB`, `64MiB`, or bytes.

"""


def reference_markdown() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    for section in SECTIONS:
        parts.append(
            f"## {section.__doc__}\n\n| variable | default | allowed | what for |\n|---|---|---|---|\n"
        )
        parts += [
            f"| `{name}` | {default} | {allowed} | {text} |\n"
            for name, default, allowed, text in _rows(section)
        ]
        parts.append("\n")
    parts.append(
        "## Files\n\nThe files that the variables above may name are TOML, read once at start.\n"
    )
    for setting, example in EXAMPLES.items():
        parts.append(f"\n`{PREFIX}{setting.upper()}`:\n\n```toml\n{example}```\n")
    parts.append(
        f"\n`{PREFIX}POLICIES`: as [the built-in one](../../monitor/policy/builtin.toml), which it replaces whole.\n"
    )
    return "".join(parts)


def _rows(section: type[BaseModel], prefix: str = PREFIX) -> Iterator[tuple[str, str, str, str]]:
    for name, field in section.model_fields.items():
        variable = f"{prefix}{name}".upper()
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            yield from _rows(nested, f"{variable}__")
        else:
            yield variable, _default(field), _allowed(field), _cell(field.description or "")


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if isinstance(value, timedelta):
        text = show_duration(value)
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, tuple):
        text = ",".join(map(str, value))
    else:
        text = "" if value in (None, {}) else str(value)
    return f"`{text}`" if text else "unset"


def _allowed(field: FieldInfo) -> str:
    """In words, from type and limits: what :mod:`monitor.settings.load` would say of a wrong value."""
    kinds = _kinds(field.annotation)
    low = next((item.ge for item in field.metadata if hasattr(item, "ge")), None)
    high = next((item.le for item in field.metadata if hasattr(item, "le")), None)
    if timedelta in kinds:
        word = "duration"
    elif any(getattr(item, "func", None) is parse_size for item in field.metadata):
        word = "size"
    elif bool in kinds:
        word = "`true`, `false`"
    elif int in kinds:
        word = "whole number"
    elif float in kinds:
        word, low, high = "number", 0, 1
    elif Path in kinds:
        word = "path of a file"
    elif SecretStr in kinds:
        word = "secret"
    elif InputSpec in kinds:
        word = "encodings: " + ", ".join(f"`{name}`" for name in ENCODINGS)
    else:
        literals = [
            f"`{value}`"
            for kind in kinds
            if get_origin(kind) is Literal
            for value in get_args(kind)
        ]
        word = ", ".join(literals) if literals else "text"
        word += ", time" if literals and len(kinds) > 1 and type(None) not in kinds else ""
    limits = [
        f"from {_limit(low)}" if low is not None else "",
        f"to {_limit(high)}" if high is not None else "",
    ]
    return " ".join([word, *filter(None, limits)])


def _kinds(annotation: Any) -> set[Any]:
    """The types that an annotation is made of, ``Annotated``, unions and containers opened."""
    if get_origin(annotation) in (None, Literal):
        return {annotation}
    found: set[Any] = set()
    for part in get_args(annotation):
        if part is not Ellipsis and (isinstance(part, type) or get_origin(part) is not None):
            found |= _kinds(part)
    return found


def _limit(value: object) -> str:
    return show_duration(value) if isinstance(value, timedelta) else str(value)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
