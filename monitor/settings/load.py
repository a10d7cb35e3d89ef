"""`Settings`: every setting of the monitor, read from the environment once, checked as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, PrivateAttr, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from monitor.drift.settings import DriftSettings
from monitor.errors import InvalidSettings
from monitor.intake.config import TOKEN_KEY_BYTES, IntakeConfig
from monitor.settings import environment, files, security
from monitor.settings.environment import PREFIX
from monitor.settings.sections import (
    DriftSection,
    IntakeSection,
    JudgingSection,
    KafkaSection,
    LifecycleSection,
    PagingSection,
    ProcessSection,
    SecuritySection,
)
from monitor.settings.values import milliseconds, show_duration, without_userinfo
from monitor.trace.config import FoldSettings, Lifecycle

SETTINGS_RECORD_LIMIT: Final = 256_000  # bytes; a settings record must fit where a fragment does
_RETENTION_MARGIN: Final = timedelta(
    hours=1
)  # time to restart a fleet before the log forgets open traces
_TOKEN_KEY_MIN: Final = 32  # characters: 128 bits even when they are hexadecimal digits
_PUBLIC_KEY: Final = "no key was set: hashes of this replay are not secret"
TABLE_FILES: Final = ("scorers", "thresholds", "policies", "conventions")
NAMED_FILES: Final = (
    *("ssl_cafile", "ssl_certfile", "ssl_keyfile", "sasl_oauth_token_file"),
    *("alertmanager_cafile", "alertmanager_certfile", "alertmanager_keyfile"),
    "alertmanager_token_file",
)
MASK: Final = "***"
NESTED: Final = ("threshold", "bounds")  # settings of several variables: MONITOR_THRESHOLD__PLANNER
SECRETS: Final = ("token_key", "sasl_password", "ssl_key_password", "alertmanager_password")


class _Environment(EnvSettingsSource):
    """pydantic-settings' reader of variables, over a given mapping instead of this process's."""

    def __init__(self, settings_cls: type[BaseSettings], environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(settings_cls)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        # An empty variable counts as unset: compose files and manifests cannot leave one out.
        return {name.lower(): value for name, value in self._environ.items() if value}


class Settings(
    ProcessSection,
    PagingSection,
    DriftSection,
    LifecycleSection,
    JudgingSection,
    IntakeSection,
    SecuritySection,
    KafkaSection,
    BaseSettings,
):
    """All settings, frozen. ``Settings.load()`` reads the environment; ``Settings(idle="3s")`` does not.

    Both raise :class:`monitor.errors.InvalidSettings`, which lists every fault at once.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    _tables: files.Tables = PrivateAttr(default_factory=files.Tables)

    def __init__(self, **values: Any) -> None:
        filled, faults = _with_secrets(values)
        try:
            super().__init__(**filled)
        except ValidationError as error:
            faults.extend(_faults(error))
        else:
            faults.extend(self._cross_faults())
        if faults:
            raise InvalidSettings("\n".join(faults))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)  # `load` is the one place that looks at the environment

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read ``MONITOR_*`` from ``environ`` (default: this process's), refuse what is not known."""
        mine = environment.ours(os.environ if environ is None else environ, cls.variables())
        faults = environment.unknown_names(mine, cls.variables())
        known = {name: mine[name] for name in mine if name in cls.variables()}
        try:
            settings = cls(**_Environment(cls, known)())
        except InvalidSettings as error:
            faults.extend(str(error).splitlines())
        else:
            if not faults:
                return settings
        raise InvalidSettings("\n".join(faults))

    @classmethod
    def variables(cls) -> frozenset[str]:
        """Every name that may be set, nested ones spelled out."""
        names = set()
        for name, field in cls.model_fields.items():
            nested = field.annotation
            if isinstance(nested, type) and issubclass(nested, BaseModel):
                names |= {f"{PREFIX}{name}__{inner}".upper() for inner in nested.model_fields}
            else:
                names.add(f"{PREFIX}{name}".upper())
        return frozenset(names)

    # --- what the parts of the monitor are built from -------------------------------------------

    def fold_settings(self) -> FoldSettings:
        """What the fold uses, as it goes into the log."""
        return FoldSettings(
            lifecycle=Lifecycle(
                root_grace_ms=milliseconds(self.root_grace),
                idle_ms=milliseconds(self.idle),
                max_lifetime_ms=milliseconds(self.max_lifetime),
                max_spans=self.max_spans,
                late_window_ms=milliseconds(self.late_window),
                revision_flush_ms=milliseconds(self.revision_flush),
                delta_flush_ms=milliseconds(self.delta_flush),
                drift_window_ms=milliseconds(self.drift_window),
                open_bytes=self.open_bytes,
                closed_bytes=self.closed_bytes,
            ),
            thresholds=self.threshold.by_role(),
            threshold_overrides=self._tables.overrides,
            scalar_threshold=self.scalar_threshold,
            scorers=dict(self._tables.rules),
            policies=self._tables.policies,
            redelivery=self.redelivery,
        )

    def intake_config(self) -> IntakeConfig:
        """What intake is told. Without a token key (replay of files only) the hashes are not secret."""
        key = self.token_key.get_secret_value() if self.token_key is not None else _PUBLIC_KEY
        return IntakeConfig(
            token_key=key.encode(),
            bounds=self.bounds.bounds(),
            scorers=dict(self._tables.scales),
            conventions=self._tables.rows,
            tag_rules=self._tables.tag_rules,
            tool_tags=dict(self._tables.tool_tags),
            keep=self.keep,
        )

    def drift_settings(self) -> DriftSettings:
        return DriftSettings(window_ms=milliseconds(self.drift_window))

    @property
    def start_is_explicit(self) -> bool:
        """Whether an operator chose where to start: a group whose commits have expired asks for that."""
        return "start" in self.model_fields_set

    def kafka_client_args(self) -> dict[str, Any]:
        """Arguments for every aiokafka client: brokers and security."""
        return {
            "bootstrap_servers": list(self.bootstrap_servers),
            **security.client_args(self),
        }

    def require_worker(self) -> None:
        """Raise InvalidSettings for what a worker needs and a replay of files does not."""
        if self.token_key is None and "ingest" in self.stages:
            raise InvalidSettings(
                "MONITOR_TOKEN_KEY (or MONITOR_TOKEN_KEY_FILE): not set, but this worker runs stage ingest; "
                "make one with `openssl rand -hex 32` and give all workers the same"
            )

    def notes(self) -> tuple[str, ...]:
        """What is allowed and probably not meant, a line each."""
        notes = []
        if "lanes" in self.model_fields_set and self.lanes > self.partitions:
            notes.append(
                f"MONITOR_LANES: {self.lanes} is more than MONITOR_PARTITIONS ({self.partitions}): only "
                f"{self.partitions} lanes of assemble have a partition, so at most {self.partitions} workers share it"
            )
        if self.alertmanager_insecure_skip_verify:
            notes.append(
                "MONITOR_ALERTMANAGER_INSECURE_SKIP_VERIFY: pages and credentials go to whoever answers in an "
                "Alertmanager's place; name its CA in MONITOR_ALERTMANAGER_CAFILE instead"
            )
        return tuple(notes)

    def effective(self) -> dict[str, str]:
        """Variable name -> the value in force as it would be spelled, secrets masked; only what is set."""
        shown = {}
        dumped = self.model_dump(mode="json")
        for name, value in dumped.items():
            variable = f"{PREFIX}{name}".upper()
            if isinstance(getattr(self, name), BaseModel):
                for inner, one in value.items():
                    shown[f"{variable}__{inner}".upper()] = str(one)
            elif isinstance(getattr(self, name), SecretStr):
                shown[variable] = MASK
            elif value is not None:
                shown[variable] = without_userinfo(_spelled(value))
        return dict(sorted(shown.items()))

    # --- checks ---------------------------------------------------------------------------------

    def _cross_faults(self) -> Iterator[str]:
        yield from security.faults_of(self)
        yield from security.alertmanager_faults_of(self)
        needed = self.max_lifetime + self.late_window + _RETENTION_MARGIN
        if self.fragments_retention < needed:
            yield (
                f"MONITOR_FRAGMENTS_RETENTION: {show_duration(self.fragments_retention)} is shorter than "
                f"max_lifetime + late_window + 1 h; allowed: {show_duration(needed)} or more"
            )
        if self.idle > self.max_lifetime:
            yield (
                f"MONITOR_IDLE: {show_duration(self.idle)} is longer than MONITOR_MAX_LIFETIME "
                f"({show_duration(self.max_lifetime)}) and would never count"
            )
        if self.token_key is not None:
            size = len(self.token_key.get_secret_value().encode())
            if not _TOKEN_KEY_MIN <= size <= TOKEN_KEY_BYTES[1]:
                yield (
                    f"MONITOR_TOKEN_KEY: {MASK} has {size} bytes; allowed: {_TOKEN_KEY_MIN} to "
                    f"{TOKEN_KEY_BYTES[1]} (`openssl rand -hex 32`)"
                )
        yield from self._file_faults()

    def _file_faults(self) -> Iterator[str]:
        """Every named file is read once here, so that a typing error in one stops the start, not a fold."""
        tables, wrong = files.read_tables({name: getattr(self, name) for name in TABLE_FILES})
        self._tables = tables
        whole = not wrong
        for name, fault in wrong:
            yield f"{PREFIX}{name.upper()}: {getattr(self, name)}: {fault}"
        for name in NAMED_FILES:
            path = getattr(self, name)
            if path is not None and not path.is_file():
                whole = False
                yield f"{PREFIX}{name.upper()}: {path}: no such file"
        if whole:
            try:
                security.ssl_context(self)
            except OSError as error:
                yield f"MONITOR_SSL_*: the certificate files do not load ({error})"
            try:
                security.alertmanager_ssl_context(self)
            except OSError as error:
                yield f"MONITOR_ALERTMANAGER_*: the certificate files do not load ({error})"
            size = len(self.fold_settings().canonical())
            if size > SETTINGS_RECORD_LIMIT:
                yield (
                    f"MONITOR_SCORERS, MONITOR_THRESHOLDS, MONITOR_POLICIES: together {size} bytes in the log; "
                    f"allowed: {SETTINGS_RECORD_LIMIT}"
                )


def _spelled(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={text}" for name, text in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _with_secrets(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """``values`` with each secret read from the file that ``<name>_file`` names, and the faults met."""
    filled = dict(values)
    faults = []
    for name in SECRETS:
        path = values.get(f"{name}_file")
        if not path:
            continue
        variable = f"{PREFIX}{name}_file".upper()
        if values.get(name):
            faults.append(
                f"{variable}: set together with {PREFIX}{name.upper()}; allowed: one of the two"
            )
            continue
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            faults.append(f"{variable}: {path} cannot be read ({error})")
            continue
        if text:
            filled[name] = text
        else:
            faults.append(f"{variable}: {path} is empty")
    return filled, faults


def _faults(error: ValidationError) -> Iterator[str]:
    """A line for every wrong variable: its name, the value that it has (masked), what is allowed."""
    seen = set()
    for detail in error.errors(include_url=False):
        location = [str(part) for part in detail["loc"]]
        name, variable = (
            location[0],
            PREFIX + "__".join(location[: 2 if location[0] in NESTED else 1]).upper(),
        )
        if variable in seen:  # a union reports each of its branches; the first says what is allowed
            continue
        seen.add(variable)
        if detail["type"] == "extra_forbidden":
            yield f"{variable}: no such setting"
            continue
        given = detail["input"]
        shown = (
            show_duration(given) if isinstance(given, timedelta) else without_userinfo(repr(given))
        )
        value = MASK if name in SECRETS else shown
        yield f"{variable}: {value} is not allowed; allowed: {_allowed(detail)}"


def _allowed(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "value_error":
            return str(context["error"])
        case "literal_error":
            return str(context["expected"])
        case "greater_than_equal":
            return f"{_bound(context['ge'])} or more"
        case "less_than_equal":
            return f"{_bound(context['le'])} or less"
        case "string_pattern_mismatch":
            return f"text that matches {context['pattern']}"
        case "too_short":
            return f"at least {context['min_length']} item"
        case "int_parsing" | "int_from_float":
            return "a whole number"
        case "float_parsing" | "finite_number":
            return "a number"
        case "bool_parsing":
            return "true or false"
        case _:
            return detail["msg"]


def _bound(value: object) -> str:
    return show_duration(value) if isinstance(value, timedelta) else str(value)
