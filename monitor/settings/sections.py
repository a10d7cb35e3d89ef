"""Every setting, by the part of the monitor that it steers: type, default, limits and what it is for.

A field ``idle`` is the variable ``MONITOR_IDLE``. The class docstrings head the sections of the
reference page, the descriptions are its text; both are written for operators.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    model_validator,
)
from pydantic_settings import NoDecode

from monitor.intake.bounds import Bounds
from monitor.settings.values import (
    Duration,
    Groups,
    Inputs,
    InputSpec,
    Keep,
    Labels,
    Names,
    Size,
    Start,
    check_alertmanager_urls,
    check_bootstrap,
    parse_list,
)
from monitor.trace.config import DEFAULT_THRESHOLDS, Lifecycle

Stage = Literal["ingest", "assemble", "agents"]
Score = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]

_LIFECYCLE: Final = Lifecycle()  # the defaults stand beside the fold that uses them
_POSITIVE: Final = timedelta(milliseconds=1)
_MIN_BYTES: Final = 1_000_000  # less holds not even one life of ordinary length

_TOPIC_CHARACTERS: Final = (
    r"^[a-zA-Z0-9._-]{0,100}$"  # what Kafka allows in a topic name; it limits the whole to 249
)


def _ms(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def parse_page_scorers(value: object) -> object:
    return () if value == "none" else parse_list(value)


def show_page_scorers(value: tuple[str, ...]) -> str:
    return ",".join(value) or "none"


PageScorers = Annotated[
    tuple[str, ...],
    NoDecode,
    BeforeValidator(parse_page_scorers),
    PlainSerializer(show_page_scorers, return_type=str),
]


class KafkaSection(BaseModel):
    """Kafka"""

    bootstrap_servers: Annotated[Names, AfterValidator(check_bootstrap)] = Field(
        ("localhost:9092",), description="Brokers to begin with, `host:port` divided by commas."
    )
    group: str = Field(
        "agent-monitor",
        pattern=r"^[a-zA-Z0-9._-]{1,100}$",
        description="Consumer group, and the first part of every transactional id. "
        "All workers of one monitor share it; another name is another monitor.",
    )
    instance: str | None = Field(
        None,
        pattern=r"^[a-zA-Z0-9._-]{1,200}$",
        description="Static member name (in Kubernetes the pod's name): a restart within the session "
        "timeout then moves no partition. Unset: a dynamic member.",
    )
    inputs: Inputs = Field(
        (InputSpec("agent-spans", "json"),),
        min_length=1,
        description="Input topics and their one encoding each, `topic=encoding` divided by commas.",
    )
    topic_prefix: str = Field(
        "monitor.",
        pattern=_TOPIC_CHARACTERS,
        description="Put before the names of the monitor's own topics.",
    )
    partitions: int = Field(
        8,
        ge=1,
        le=1024,
        description="Partitions of the monitor's own topics; fixed once they exist.",
    )
    lanes: int = Field(
        8,
        ge=1,
        le=64,  # measured: 64 transactional ids at 8,000 spans/s are visible only after p99 3.7 s
        description="Units of ownership (one transactional id each); at most so many workers share a "
        "stage. To change it stop all workers first.",
    )
    stages: Annotated[tuple[Stage, ...], NoDecode, BeforeValidator(parse_list)] = Field(
        ("ingest", "assemble", "agents"),
        min_length=1,
        description="What this worker runs: `ingest`, `assemble`, `agents`, divided by commas.",
    )
    start: Start = Field(
        "latest",
        description="Where a group without any commit begins on the input topics: `latest`, "
        "`earliest`, or a time with its zone.",
    )
    fragments_retention: Duration = Field(
        timedelta(hours=24),
        description="Retention of the fragments topic: at least max_lifetime + late_window + 1 h.",
    )


class SecuritySection(BaseModel):
    """Kafka security"""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="How to talk to the brokers."
    )
    ssl_cafile: Path | None = Field(None, description="CA certificates (PEM). Unset: the system's.")
    ssl_certfile: Path | None = Field(None, description="Client certificate (PEM), for mutual TLS.")
    ssl_keyfile: Path | None = Field(None, description="Key of the client certificate (PEM).")
    ssl_key_password: SecretStr | None = Field(None, description="Password of that key.")
    ssl_key_password_file: Path | None = Field(None, description="File that holds it.")
    ssl_check_hostname: bool = Field(
        True, description="`false` accepts a broker certificate for another host."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = (
        Field(None, description="Needed with SASL_PLAINTEXT and SASL_SSL.")
    )
    sasl_username: str | None = Field(None, min_length=1, description="User of PLAIN and SCRAM.")
    sasl_password: SecretStr | None = Field(None, description="Password of PLAIN and SCRAM.")
    sasl_password_file: Path | None = Field(None, description="File that holds it.")
    sasl_oauth_token_file: Path | None = Field(
        None,
        description="OAUTHBEARER: file with the bearer token, read anew for each connection (another "
        "process, such as the kubelet, keeps it fresh).",
    )


_BOUNDS: Final = Bounds()  # the defaults and their reasons stand beside intake, which uses them
_BOUND_REASONS: Final = {
    field.name: field.type.extra_json_schema["description"]
    for field in msgspec.inspect.type_info(Bounds).fields  # type: ignore[attr-defined]  # its type says "some type", of a Struct it is a StructType
}


def _bound(name: str) -> Any:
    return Field(getattr(_BOUNDS, name), ge=1, description=_BOUND_REASONS[name])


class IntakeBounds(BaseModel):
    """How much of a hostile input is looked at."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    message_bytes: Size = _bound("message_bytes")
    nesting: int = _bound("nesting")
    spans_per_message: int = _bound("spans_per_message")
    attributes: int = _bound("attributes")
    events: int = _bound("events")
    links: int = _bound("links")
    scores: int = _bound("scores")
    name: int = _bound("name")
    label: int = _bound("label")
    tags: int = _bound("tags")
    tokens: int = _bound("tokens")
    call_ids: int = _bound("call_ids")
    content: int = _bound("content")
    cache: int = _bound("cache")
    unknown_roles: int = _bound("unknown_roles")

    @model_validator(mode="after")
    def _fit(self) -> Self:
        self.bounds()
        return self

    def bounds(self) -> Bounds:
        """Raises ValueError where a span at every bound would not fit one fragment."""
        return Bounds(**self.model_dump())


class IntakeSection(BaseModel):
    """Intake"""

    token_key: SecretStr | None = Field(
        None,
        description="Key of the hashes that replace content (32 to 64 characters; the same for all workers, "
        "for the life of the fragments topic). A worker needs it; `openssl rand -hex 32` makes one.",
    )
    token_key_file: Path | None = Field(None, description="File that holds it.")
    keep: Keep = Field(
        {},
        description="Only spans with one of the accepted values of every attribute named here are kept: "
        "`attribute=value` items divided by commas (`service.name` too). Unset: all.",
    )
    conventions: Path | None = Field(
        None,
        description="TOML file: more attribute names, roles and tool tags than the built-in tables.",
    )
    scorers: Path | None = Field(
        None,
        description="TOML file: policy class, independence, range and direction of each scorer.",
    )
    bounds: IntakeBounds = IntakeBounds()
    redelivery: Literal["collapse", "reject"] = Field(
        "collapse",
        description="The same span delivered twice: `collapse` makes it one, counted; `reject` makes it an identity fault.",
    )
    deadletter_bytes: Literal["keep", "none"] = Field(
        "keep",
        description="`none`: dead letters hold coordinates and reason only, never the rejected item's bytes.",
    )
    deadletter_retention: Duration = Field(
        timedelta(hours=24), description="Retention of the dead-letter topic."
    )


class ThresholdByRole(BaseModel):
    """A score at or over its role's threshold is an incident. Safety scores grow with danger."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    planner: Score = Field(DEFAULT_THRESHOLDS["planner"], description="Threshold of planner spans.")
    retrieval: Score = Field(
        DEFAULT_THRESHOLDS["retrieval"],
        description="Threshold of retrieval spans. Our choice, not measured: retrieved text often scores "
        "high in isolation; try others on your own traffic with `monitor replay`.",
    )
    tool_call: Score = Field(
        DEFAULT_THRESHOLDS["tool_call"], description="Threshold of tool-call spans."
    )
    completion: Score = Field(
        DEFAULT_THRESHOLDS["completion"], description="Threshold of completion spans."
    )
    unknown: Score = Field(
        DEFAULT_THRESHOLDS["unknown"], description="Threshold of spans of unknown role."
    )

    def by_role(self) -> dict[str, float]:
        return self.model_dump()


class JudgingSection(BaseModel):
    """Thresholds and policies"""

    threshold: ThresholdByRole = ThresholdByRole()
    thresholds: Path | None = Field(
        None,
        description="TOML file: thresholds by scorer and role, and by service, scorer and role.",
    )
    scalar_threshold: Score = Field(
        0.30,
        description="The mean of a per-unit scorer at or over this is an incident, where a mean is valid.",
    )
    policies: Path | None = Field(
        None, description="TOML file: composition policies instead of the built-in ones."
    )
    settings_revision: int = Field(
        0,
        ge=0,
        description="Rank of these settings among workers that differ: the higher one is used by all, then the later started.",
    )


class LifecycleSection(BaseModel):
    """Life of a trace"""

    root_grace: Duration = Field(
        _ms(_LIFECYCLE.root_grace_ms),
        description="A complete tree closes so long after its root ended.",
    )
    idle: Duration = Field(
        _ms(_LIFECYCLE.idle_ms),
        ge=_POSITIVE,
        description="A trace without a new span closes after this.",
    )
    max_lifetime: Duration = Field(
        _ms(_LIFECYCLE.max_lifetime_ms), ge=_POSITIVE, description="No trace stays open longer."
    )
    max_spans: int = Field(
        _LIFECYCLE.max_spans,
        ge=1,
        description="A trace closes at so many; later ones are judged, not kept.",
    )
    late_window: Duration = Field(
        _ms(_LIFECYCLE.late_window_ms),
        ge=_POSITIVE,
        description="Late spans and scores find a closed trace for so long.",
    )
    revision_flush: Duration = Field(
        _ms(_LIFECYCLE.revision_flush_ms),
        ge=_POSITIVE,
        description="Late arrivals are published as revisions so often.",
    )
    delta_flush: Duration = Field(
        _ms(_LIFECYCLE.delta_flush_ms),
        ge=_POSITIVE,
        description="Sums for drift are published so often.",
    )
    open_bytes: Size = Field(
        _LIFECYCLE.open_bytes,
        ge=_MIN_BYTES,
        description="Memory of open traces a partition; the oldest closes first.",
    )
    closed_bytes: Size = Field(
        _LIFECYCLE.closed_bytes,
        ge=_MIN_BYTES,
        description="Memory of closed traces a partition, kept for what comes late.",
    )


class DriftSection(BaseModel):
    """Drift"""

    drift_window: Duration = Field(
        _ms(_LIFECYCLE.drift_window_ms),
        ge=_POSITIVE,
        description="Width of a window of drift sums; all workers alike, for the life of the tables.",
    )


class PagingSection(BaseModel):
    """Paging"""

    alertmanager_urls: Annotated[Names, AfterValidator(check_alertmanager_urls)] = Field(
        (),
        description="Every Alertmanager; `dns+http://host:port` is looked up again and stands for all its addresses.",
    )
    alertmanager_username: str | None = Field(
        None,
        min_length=1,
        description="Basic authentication at every Alertmanager whose URL carries no user of its own.",
    )
    alertmanager_password: SecretStr | None = Field(None, description="Password of that user.")
    alertmanager_password_file: Path | None = Field(None, description="File that holds it.")
    alertmanager_token_file: Path | None = Field(
        None,
        description="File with a bearer token, instead of a user; read anew for each post (another process, such as "
        "the kubelet, keeps it fresh).",
    )
    alertmanager_cafile: Path | None = Field(
        None, description="CA certificates (PEM) of `https` URLs. Unset: the system's."
    )
    alertmanager_certfile: Path | None = Field(
        None, description="Client certificate (PEM), for mutual TLS."
    )
    alertmanager_keyfile: Path | None = Field(
        None,
        description="Key of that certificate (PEM, without a password). Unset: it is in the same file.",
    )
    alertmanager_insecure_skip_verify: bool = Field(
        False,
        description="`true` takes any certificate of an Alertmanager: pages and credentials then go to whoever answers.",
    )
    alert_labels: Labels = Field(
        {}, description="`name=value` items added to every alert; routes match on them."
    )
    incident_quiet: Duration = Field(
        timedelta(hours=1),
        ge=_POSITIVE,
        description="An alert resolves when its last incident is so old.",
    )
    page_scorers: PageScorers = Field(
        ("*",),
        description="Scorers, or `service/scorer`, whose incidents page; the others run in shadow: computed "
        "and counted, not pushed. `*` stands for any text; `none` pages nobody.",
    )
    page_max_age: Duration = Field(
        timedelta(hours=1),
        description="Older incidents are announced by one alert, not pushed one by one.",
    )
    service_groups: Groups = Field(
        {},
        description="Services whose sessions belong together, `group=service|service` items. Unset: all in one.",
    )
    runbook_url: str = Field(
        "https://github.com/agent-trace-monitor/agent-trace-monitor/blob/main/docs/runbooks",
        pattern=r"^https?://\S+$",
        description="Where the runbooks are; `/<Alert>.md` is added.",
    )
    dashboard_url: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="Grafana's address; pages then link to the incidents dashboard.",
    )


class ProcessSection(BaseModel):
    """Worker process"""

    web_host: str = Field(
        "127.0.0.1", min_length=1, description="Address of /metrics, /healthz and /readyz."
    )
    web_port: int = Field(8080, ge=0, le=65535, description="Its port; 0 takes a free one.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level logged."
    )
    log_format: Literal["json", "console"] = Field(
        "json", description="JSON lines, or text for people."
    )


SECTIONS: Final[tuple[type[BaseModel], ...]] = (
    KafkaSection,
    SecuritySection,
    IntakeSection,
    JudgingSection,
    LifecycleSection,
    DriftSection,
    PagingSection,
    ProcessSection,
)
