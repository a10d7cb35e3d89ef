"""How a setting is spelled in an environment variable, and what it becomes.

Each parser raises ``ValueError`` with a message that says what is allowed; it never guesses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, PlainSerializer
from pydantic_settings import NoDecode

from monitor.intake.decode import ENCODINGS, Encoding

_UNIT_SECONDS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_SIZE_FACTOR: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # Kafka's own rule
_LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
# Labels that the monitor itself sets on every alert; an operator's label must not replace them.
RESERVED_LABELS: Final = frozenset({"alertname", "service", "reason", "policy", "severity"})


@dataclass(frozen=True)
class InputSpec:
    """An input topic and the one encoding of its messages."""

    topic: str
    encoding: Encoding

    def __str__(self) -> str:
        return f"{self.topic}={self.encoding}"


def parse_inputs(value: object) -> object:
    """``agent-spans=json,otlp_spans=otlp_proto/traces`` -> InputSpecs in this order."""
    if not isinstance(value, str):
        return value
    allowed: dict[str, Encoding] = {name: name for name in ENCODINGS}
    specs: dict[str, InputSpec] = {}
    for item in value.split(","):
        if not item.strip():
            continue
        topic, _, encoding = (part.strip() for part in item.partition("="))
        if encoding not in allowed or _TOPIC.fullmatch(topic) is None:
            raise ValueError(
                f"'topic=encoding' items divided by commas, encoding one of {', '.join(allowed)}; {item.strip()!r} is none"
            )
        if topic in specs:
            raise ValueError(f"each topic once; {topic!r} stands there twice")
        specs[topic] = InputSpec(topic, allowed[encoding])
    return tuple(specs.values())


def parse_duration(value: object) -> timedelta:
    """``10s``, ``5 min``, ``1h``, ``500ms``, ``7d``, or a plain number of seconds."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(str(value).strip().lower())
    if match is None or (match[2] or "s") not in _UNIT_SECONDS:
        raise ValueError("a duration such as '10s', '5 min', '1h', '7d', or a number of seconds")
    return timedelta(seconds=float(match[1]) * _UNIT_SECONDS[match[2] or "s"])


def show_duration(value: timedelta) -> str:
    """The shortest spelling that :func:`parse_duration` reads back to the same value."""
    ms = round(value.total_seconds() * 1000)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms" if ms else "0s"


def milliseconds(value: timedelta) -> int:
    return round(value.total_seconds() * 1000)


def parse_size(value: object) -> int:
    """Bytes: ``32MB`` (10**6), ``32MiB`` (2**20), or a plain number."""
    match = _SIZE.fullmatch(str(value).strip().lower())
    if match is None or match[2] not in _SIZE_FACTOR:
        raise ValueError("a size such as '32MB', '64MiB', or a number of bytes")
    return round(float(match[1]) * _SIZE_FACTOR[match[2]])


def parse_list(value: object) -> object:
    """``a, b,c`` -> ("a", "b", "c"); white space and empty items are dropped."""
    if isinstance(value, str):
        return tuple(item for item in (part.strip() for part in value.split(",")) if item)
    return value


def parse_labels(value: object) -> object:
    """``namespace=prod,cluster=eu`` -> dict of labels that are added to every alert."""
    if not isinstance(value, str):
        return value
    labels: dict[str, str] = {}
    for item in value.split(","):
        if not item.strip():
            continue
        name, equals, text = item.partition("=")
        name = name.strip()
        if not equals or _LABEL_NAME.fullmatch(name) is None or not text.strip():
            raise ValueError(
                "'name=value' pairs divided by commas, such as 'namespace=prod,env=eu'"
            )
        if name in RESERVED_LABELS:
            raise ValueError(f"another label name than {name!r}, which the monitor sets itself")
        if name in labels:
            raise ValueError(f"each label once; {name!r} stands there twice")
        labels[name] = text.strip()
    return labels


def parse_groups(value: object) -> object:
    """``shop=checkout|billing,help=faq`` -> {"checkout": "shop", "billing": "shop", "faq": "help"}."""
    if not isinstance(value, str):
        return value
    groups: dict[str, str] = {}
    for item in value.split(","):
        if not item.strip():
            continue
        group, equals, services = item.partition("=")
        members = [name.strip() for name in services.split("|") if name.strip()]
        if not equals or not group.strip() or not members:
            raise ValueError("'group=service|service' items divided by commas")
        for service in members:
            if service in groups:
                raise ValueError(f"each service in one group; {service!r} stands in two")
            groups[service] = group.strip()
    return groups


def parse_keep(value: object) -> object:
    """``service.name=shop,service.name=help,env=prod`` -> accepted values by attribute."""
    if not isinstance(value, str):
        return value
    keep: dict[str, set[str]] = {}
    for item in value.split(","):
        if not item.strip():
            continue
        attribute, equals, accepted = item.partition("=")
        if not equals or not attribute.strip() or not accepted.strip():
            raise ValueError(
                "'attribute=value' items divided by commas, such as 'service.name=shop'"
            )
        keep.setdefault(attribute.strip(), set()).add(accepted.strip())
    return {attribute: frozenset(values) for attribute, values in keep.items()}


def show_keep(keep: dict[str, frozenset[str]]) -> str:
    return ",".join(f"{name}={value}" for name, values in keep.items() for value in sorted(values))


def show_groups(groups: dict[str, str]) -> str:
    names = dict.fromkeys(groups.values())
    return ",".join(
        f"{name}={'|'.join(s for s, g in groups.items() if g == name)}" for name in names
    )


def parse_start(value: object) -> object:
    """``latest``, ``earliest``, or an ISO 8601 time with its offset from UTC."""
    if isinstance(value, datetime) or value in ("latest", "earliest"):
        return value
    try:
        time = datetime.fromisoformat(str(value).strip())
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(
            "'latest', 'earliest', or a time with its zone: '2026-11-30T08:00:00+00:00'"
        )
    return time.astimezone(UTC)


def check_bootstrap(value: tuple[str, ...]) -> tuple[str, ...]:
    for server in value:
        host, colon, port = server.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"'host:port' items divided by commas; {server!r} is none")
    if not value:
        raise ValueError("at least one 'host:port'")
    return value


def check_alertmanager_urls(value: tuple[str, ...]) -> tuple[str, ...]:
    for url in value:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "dns+http", "dns+https") or not parts.hostname:
            raise ValueError(
                "URLs such as 'http://alertmanager:9093' or 'dns+http://alertmanager-operated:9093'"
            )
    return value


def without_userinfo(url: str) -> str:
    """``http://user:secret@host`` -> ``http://***@host``: what may be printed of a URL."""
    return re.sub(r"(?<=://)[^/@\s]*@", "***@", url)


Duration = Annotated[
    timedelta,
    NoDecode,
    BeforeValidator(parse_duration, json_schema_input_type=str | int | float),
    PlainSerializer(show_duration, return_type=str),
]
Size = Annotated[int, NoDecode, BeforeValidator(parse_size, json_schema_input_type=str | int)]
Names = Annotated[
    tuple[str, ...], NoDecode, BeforeValidator(parse_list, json_schema_input_type=str)
]
Inputs = Annotated[
    tuple[InputSpec, ...],
    NoDecode,
    BeforeValidator(parse_inputs, json_schema_input_type=str),
    PlainSerializer(lambda specs: ",".join(map(str, specs)), return_type=str),
]
Labels = Annotated[
    dict[str, str], NoDecode, BeforeValidator(parse_labels, json_schema_input_type=str)
]
Groups = Annotated[
    dict[str, str],
    NoDecode,
    BeforeValidator(parse_groups, json_schema_input_type=str),
    PlainSerializer(show_groups, return_type=str),
]
Keep = Annotated[
    dict[str, frozenset[str]],
    NoDecode,
    BeforeValidator(parse_keep, json_schema_input_type=str),
    PlainSerializer(show_keep, return_type=str),
]
Start = Annotated[
    Literal["latest", "earliest"] | datetime,
    NoDecode,
    BeforeValidator(parse_start, json_schema_input_type=str),
]
