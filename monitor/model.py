"""The words of the project as frozen structs: what flows from intake to the verdict.

Nothing here imports upward, knows Kafka, a clock or the environment. A *safety score* grows with
danger: 0 is safe, 1 violates the policy. Ids are lower-case hex strings; times of spans are
nanoseconds since 1970 as the sender gave them (the sender's word, never used to decide); times of
the log are milliseconds.

Structs that live inside Kafka records of our own are ``array_like`` (compact msgpack, new fields are
appended with a default); records that people read are plain JSON objects told apart by ``kind``.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

Role = Literal["planner", "retrieval", "tool_call", "completion", "unknown"]
ROLES: Final[tuple[Role, ...]] = ("planner", "retrieval", "tool_call", "completion", "unknown")
UNKNOWN: Final = "unknown"
OTHER: Final = "other"  # in place of names past a bound

RELATIONAL_POLICY_CLASSES: Final = frozenset(
    {"compositional_exfiltration", "multi_step_jailbreak", "tool_chaining"}
)
UNDECLARED: Final = "undeclared"
PER_UNIT: Final = "per_unit"


def is_per_unit(policy_class: str) -> bool:
    """Whether a policy of this class looks at one unit at a time: ``per_unit``, or a kind of it as in
    ``per_unit:pii``. Every other class counts as relational, one that nobody knows (a slip of the pen) too.
    """
    return policy_class == PER_UNIT or policy_class.startswith(f"{PER_UNIT}:")


# What a span is to the reduction. Only MEMBER spans are counted, reduced or chosen as argmax.
MEMBER: Final = 0
EVALUATOR: Final = 1  # a span that judges another one
GUARDRAIL: Final = 2
WRAPPER: Final = (
    3  # doubles another span of the same call (framework chain, HTTP wrapper, outer LLM span)
)
PLAIN: Final = 4  # carries no GenAI meaning and no score: tree structure only
# What is a member as soon as it has a score, wherever that came from: a scored span is always looked at.
MEMBER_IF_SCORED: Final = frozenset({MEMBER, WRAPPER, PLAIN})


class Source(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Kafka coordinates of the record that a thing came from, and its place inside the record."""

    topic: str = ""
    partition: int = 0
    offset: int = 0
    index: int = 0
    timestamp_ms: int = 0  # the record's Kafka timestamp


class Score(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A scorer's safety score of one span: ``value`` in [0, 1], 0 safe, 1 violates.

    ``judged``: ``input`` or ``output`` of the span where the score says which, else empty.
    """

    scorer: str
    version: str
    value: float
    judged: str = ""


def judged_role(role: str, judged: str) -> str:
    """Role that a score counts under: of a tool or retrieval span the result is retrieval, the arguments are a
    tool call, whatever the span's own role. A score that does not say what it judged counts under that.

    >>> judged_role("tool_call", "output"), judged_role("planner", "output")
    ('retrieval', 'planner')
    """
    if judged and role in ("tool_call", "retrieval"):
        return "retrieval" if judged == "output" else "tool_call"
    return role


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    trace_id: str
    span_id: str


# SpanDetail.flags
TRUNCATED: Final = 1  # content was cut by the sender (invalid JSON tail): tokens are partial
OVERFLOW: Final = 2  # more flow tokens than are kept
ALIAS_MODEL: Final = 4  # model version is only the requested alias, no response model
MODEL_CALL: Final = 8  # a call of a model: one directly around another is the same call seen twice


class SpanDetail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What composition needs of a span; absent (None on the span) where there is nothing of it.

    ``*_tokens`` are concatenated 8-byte little-endian keyed hashes of content tokens. ``None`` means the
    content was not captured (a rule that needs flow is undecidable); ``b""`` means captured, no tokens.
    """

    tool_name: str | None = None
    tool_call_id: str | None = None
    agent: str | None = None
    session_id: str | None = None
    tags: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    argument_tokens: bytes | None = None
    result_tokens: bytes | None = None
    request_tokens: bytes | None = None  # the user's request / input messages
    flags: int = 0
    call_ids: tuple[str, ...] = ()  # tool calls that a model asked for, by id


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One span of one trace, as intake gives it. Identity is (trace_id, span_id).

    ``content_hash`` is a keyed 16-byte hash over the whole span and its service.name, without arrival
    data and attribute order: two spans of one identity with other hashes are a conflict.
    """

    span_id: str
    role: str = UNKNOWN
    scores: tuple[Score, ...] = ()
    parent_span_id: str | None = None
    service: str = UNKNOWN
    name: str = ""
    model_version: str = UNKNOWN
    start_unix_nano: int = 0
    end_unix_nano: int = 0
    kind: int = MEMBER
    content_hash: bytes = b""
    source: Source = Source()
    detail: SpanDetail | None = None

    @property
    def safety_score(self) -> float | None:
        """Highest score of any scorer, or None where the span is unscored. Missing is not 0."""
        return max((s.value for s in self.scores), default=None)


class SpanScore(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A score that came apart from its span (log record, evaluation span): waits for it or revises it."""

    span_id: str
    score: Score
    service: str = UNKNOWN  # of the score's own record
    role: str = UNKNOWN  # from the score's own attributes
    source: Source = Source()


class SpanFault(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A span whose identity is unusable: it is never joined, but its scores are judged all the same."""

    fault: str  # missing_id | malformed_id
    detail: str = ""  # which field, clipped; never content
    service: str = UNKNOWN
    role: str = UNKNOWN
    name: str = ""
    model_version: str = UNKNOWN
    scores: tuple[Score, ...] = ()
    source: Source = Source()


# --- records of monitor.fragments (msgpack, told apart by tag) ---------------------------------------


class Fragment(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Some spans, scores and faults of one trace, in arrival order."""

    trace_id: str
    spans: tuple[Span, ...] = ()
    scores: tuple[SpanScore, ...] = ()
    faults: tuple[SpanFault, ...] = ()


class OrphanFault(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A span without a usable trace_id. ``fault_id``: hex hash of its coordinates."""

    fault_id: str
    fault: SpanFault


class Tick(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Makes time pass on a quiet partition."""


class SettingsRecord(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """All that the fold uses. Applied only if it differs from what is in force and ranks higher."""

    fold_version: int
    rank: tuple[int, int]  # (MONITOR_SETTINGS_REVISION, process start ms)
    sha256: str  # hex of ``content``
    content: bytes  # canonical JSON of trace.config.FoldSettings


class GateRecord(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """The cardinality gate of (service, scorer), copied from monitor.gates at ``source_offset``."""

    service: str
    scorer: str
    state: str  # stationary | shifted | unknown
    source_partition: int
    source_offset: int


class ResetRecord(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """State of this partition was lost: the fold starts anew here and says so with a critical incident."""

    settings: SettingsRecord
    published_to: int  # offset up to which output was published


FoldRecord = Fragment | OrphanFault | Tick | SettingsRecord | GateRecord | ResetRecord


# --- what comes out (JSON, told apart by ``kind``) ----------------------------------------------------


class Fault(msgspec.Struct, frozen=True):
    """An identity fault of a trace. ``span_ids`` lists at most 50; ``count`` is all of them."""

    kind: str
    span_ids: tuple[str, ...] = ()
    count: int = 0


class Forensics(msgspec.Struct, frozen=True):
    status: Literal["pending", "complete", "incomplete", "rejected"]
    faults: tuple[Fault, ...] = ()


class RoleReduction(msgspec.Struct, frozen=True):
    count: int
    scored: int
    max: float | None = None
    argmax_span_id: str | None = None


class Scalar(msgspec.Struct, frozen=True):
    """The mean of a per-unit policy class, always with its method and denominator."""

    value: float
    denominator: int
    alertable: bool
    why_not: tuple[str, ...] = ()  # conditions of validity that do not hold
    method: Literal["mean"] = "mean"


class Reduction(msgspec.Struct, frozen=True):
    """A trace's scores by one scorer version: a structured reduction instead of a scalar."""

    scorer: str
    scorer_version: str
    policy_class: str
    max_score: float | None
    argmax_span_id: str | None
    argmax_role: str | None
    span_count: int
    scored_count: int
    roles: dict[str, RoleReduction]
    scalar: Scalar | None = None
    method: Literal["max"] = "max"


class Provenance(msgspec.Struct, frozen=True):
    """What ``monitor explain`` needs to derive the record again from the log."""

    partition: int
    life: int  # offset of the life's first fragment
    fragment_offsets: tuple[int, ...]  # at most 500
    causing_offset: int
    settings: str  # sha256
    gate: dict[str, str]  # scorer -> state in force at closing, for the record's service
    fold_version: int
    fragment_digests: tuple[
        str, ...
    ] = ()  # of an incident judged whole: blake2b, 8 bytes, of each fragment that is listed


class Verdict(msgspec.Struct, frozen=True, tag_field="kind", tag="verdict", kw_only=True):
    trace_id: str
    life: int
    revision: int
    service: str
    model_version: str
    closed_by: Literal["root_complete", "idle", "max_lifetime", "max_spans", "pressure"]
    root_seen: bool
    cut: bool  # max_spans, max_lifetime, pressure, or continues a cut life: enters no drift sums
    continues: int | None  # life whose residue this one took over
    span_count: int  # members
    redelivered: int  # identical copies collapsed
    forensics: Forensics
    reductions: tuple[Reduction, ...]  # at most 200, the highest scores first where there are more
    closed_at_ms: int  # the log's date of the closing
    provenance: Provenance
    reductions_left_out: int = 0
    schema_version: int = 1


class Edge(msgspec.Struct, frozen=True):
    """``cause`` comes before ``effect``; ``why``: parent | link | tool_call | flow | sibling_order."""

    cause: str
    effect: str
    why: str


class Neighbourhood(msgspec.Struct, frozen=True):
    """Causal neighbourhood of a span. ``refused``: forensics rejected, nothing is drawn."""

    status: Literal["edges", "partial", "refused"]
    centre: str | None = None
    span_ids: tuple[str, ...] = ()  # deterministic causal order, centre included
    edges: tuple[Edge, ...] = ()
    gaps: tuple[str, ...] = ()  # what is missing: parent ids never seen, budgets hit


class SpanEvidence(msgspec.Struct, frozen=True):
    """What an incident says of a span: never its content."""

    span_id: str | None
    parent_span_id: str | None
    role: str
    service: str
    name: str
    model_version: str
    score: float | None
    content_hash: str
    source: Source
    tool_name: str | None = None
    tags: tuple[str, ...] = ()


class SessionTrace(msgspec.Struct, frozen=True):
    """The spans of one trace that an incident over several names."""

    trace_id: str
    life: int
    span_ids: tuple[str, ...]


class SessionEvidence(msgspec.Struct, frozen=True):
    """What an incident over several traces of a session stands on."""

    session_id: str
    traces: tuple[SessionTrace, ...]


class Incident(msgspec.Struct, frozen=True, tag_field="kind", tag="incident", kw_only=True):
    """The artifact of record: revised in place under one ``incident_id``, never duplicated."""

    incident_id: str
    trace_id: str | None  # None: a span without a usable trace_id, or several traces (``session``)
    life: int | None
    revision: int
    service: str  # of the span that proved it at the first revision; part of the alert group
    model_version: str
    reason: Literal["threshold", "scalar", "policy", "identity", "fault"]
    policy: str | None
    policy_class: str | None
    scorer: str | None
    scorer_version: str | None
    severity: Literal["critical", "warning", "info"]
    rose_from: Literal["critical", "warning", "info"] | None = (
        None  # the alert group that this revision leaves
    )
    argmax_span_id: str | None
    argmax_role: str | None
    max_score: float | None
    threshold: float | None
    forensics: Forensics
    neighbourhood: Neighbourhood
    span_ids: tuple[str, ...]  # at most 500
    evidence: tuple[SpanEvidence, ...]
    others: dict[
        str, Any
    ]  # {"count": n, "digest": sha256 of sorted (span_id, content hash) of all others}
    summary: str
    caused_at_ms: int  # Kafka timestamp of the input record that caused it (age of a page)
    opened_at_ms: int  # the log's date
    provenance: Provenance
    session: SessionEvidence | None = None  # of an incident over several traces
    digest: str = ""  # sha256 of the canonical JSON with digest=""
    schema_version: int = 1


class DeadLetter(msgspec.Struct, frozen=True, tag_field="kind", tag="dead_letter", kw_only=True):
    """A rejected item. ``value`` holds its bytes only in the dead-letter topic, where enabled."""

    reason: str
    detail: str  # names the field and the kind of value, clipped; never content
    source: Source
    trace_id: str | None = None
    span_id: str | None = None
    scorer: str | None = None
    value: bytes | None = None
    schema_version: int = 1
