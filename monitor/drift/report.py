"""What the drift side says: JSON records told apart by ``kind``; logs are natural; null where undefined."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from monitor.drift.classical import Classical
from monitor.drift.tail import Tail

Decision = Literal["drift", "not_comparable", "explained_by_counts", "equivalent", "not_yet"]
GateName = Literal["stationary", "shifted", "unknown"]


class Sizes(msgspec.Struct, frozen=True):
    reference: int
    current: int


class DriftReport(msgspec.Struct, frozen=True, tag_field="kind", tag="drift", kw_only=True):
    """Behaviour of one role: scores of ``current`` against ``reference``, both model versions.

    ``comparison``: ``versions``; ``past`` is kept for one version against its own first windows.
    d (KS distance), w1 (Wasserstein): in [0, 1], by role alone; ``_counts``: within equal counts of spans.
    log_e: natural log of the evidence, the smaller of role and counts, against shifts up to .05; ticket: up to
    .02. ``threshold``: the log_e at which it is ``drift``. ``radius``: D is known to this much (role, counts).
    ``more_traces``: how many more of the current version until it is ``toward`` (drift or equivalent), if
    what was seen so far goes on. ``coverage``: share of traces whose role was scored.
    """

    report_id: str
    service: str
    scorer: str
    scorer_version: str
    role: str
    reference: str
    current: str
    decision: Decision
    reason: str
    why: str
    traces: Sizes
    spans: Sizes
    comparison: Literal["versions", "past"] = "versions"
    d: float | None = None
    w1: float | None = None
    d_counts: float | None = None
    w1_counts: float | None = None
    log_e: float | None = None
    log_e_role: float | None = None
    log_e_counts: float | None = None
    log_e_ticket: float | None = None
    ticket: bool = False
    threshold: float | None = None
    alpha: float | None = None
    radius: float | None = None
    radius_counts: float | None = None
    counts_supported: bool = False
    strata: int = 0
    phi: float | None = None
    phi_counts: float | None = None
    phi_windows: int = 0
    phi_provisional: bool = True
    coverage: tuple[float, float] | None = None
    more_traces: int | None = None
    toward: str | None = None
    tail: Tail | None = None
    classical: Classical | None = None
    pinned: bool = False
    window: int = (
        0  # the highest seen at this look; it began at window * window_ms, by the log's date
    )
    window_ms: int = 0
    source_offset: int = 0
    schema_version: int = 1


class MixEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Largest difference ``d``, its evidence, and what follows from it: shifted | stationary | unknown."""

    d: float
    log_e: float | None
    radius: float | None
    phi: float | None
    decision: str
    reason: str


class Split(msgspec.Struct, frozen=True):
    """A pooled difference, exactly ``composition`` + ``behaviour``."""

    pooled: float
    composition: float
    behaviour: float


class Composition(msgspec.Struct, frozen=True, kw_only=True):
    """Kitagawa split of the pooled distribution. ``at``: score where the pooled F differs most.

    ``share``: |composition| / (|composition| + |behaviour|) there; null where neither moved.
    """

    share: float | None
    at: float
    cdf: Split
    mean: Split


class IncidentRates(msgspec.Struct, frozen=True, kw_only=True):
    """Traces with an incident. ``log_e`` against no change at all (d0 = 0); decides nothing."""

    reference: float
    current: float
    incidents: Sizes
    difference: float
    radius: float | None  # the true difference lies within this much of ``difference``
    log_e: float | None
    statement: str


class MixReport(msgspec.Struct, frozen=True, tag_field="kind", tag="mix", kw_only=True):
    """Length and role mix of two versions' traces (or of one version's latest against its first windows).

    ``comparison``: ``versions``, or ``past`` (reference = current). ``gate``: what this pair says of the cardinality gate. ``composition``: null without two versions.
    """

    report_id: str
    service: str
    scorer: str
    reference: str
    current: str
    gate: GateName
    reason: str
    why: str
    traces: Sizes
    comparison: Literal["versions", "past"] = "versions"
    composition: Composition | None = None
    length: MixEvidence | None = None
    roles: MixEvidence | None = None
    threshold: float | None = None
    incidents: IncidentRates | None = None
    spans_per_trace: dict[
        str, tuple[float, float]
    ] = {}  # reference, current: mean, standard deviation
    role_shares: dict[str, tuple[float, float]] = {}  # role: reference, current
    lengths: tuple[tuple[int, int], ...] = ()  # traces by log2 bucket: reference, current
    window: int = 0
    window_ms: int = 0
    source_offset: int = 0
    schema_version: int = 1


class GateState(msgspec.Struct, frozen=True, tag_field="kind", tag="gate", kw_only=True):
    """Value of monitor.gates under service|scorer: may a per-unit policy's mean page?"""

    service: str
    scorer: str
    state: GateName
    why: str
    source_offset: int
    schema_version: int = 1


class BaselineRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="baseline", kw_only=True):
    """Value of monitor.baselines: a control as it was applied, or why it was not."""

    service: str
    scorer: str
    action: str
    model_version: str | None
    previous: str | None
    scorer_versions: tuple[str, ...]
    applied: bool
    detail: str
    who: str
    at_ms: int
    why: str
    source_offset: int
    schema_version: int = 1


Output = DriftReport | MixReport


def report_id(*what: object) -> str:
    """32 hex digits; the same words give the same id, so that a repeated report is known as one."""
    return hashlib.sha256("\x1f".join(map(str, what)).encode()).hexdigest()[:32]
