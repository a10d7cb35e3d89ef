"""All that the fold and the judge are told: the content of a *settings* record.

Built from the environment by ``monitor.settings``, carried in the log, named by the sha256 of its
canonical JSON. Times are milliseconds of virtual time, sizes are bytes.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from monitor.model import UNDECLARED, is_per_unit
from monitor.policy.rules import Policy


class Lifecycle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    root_grace_ms: int = 10_000  # OTel's batch processor alone waits 5 s
    idle_ms: int = 30_000
    max_lifetime_ms: int = 900_000
    max_spans: int = 10_000
    late_window_ms: int = 600_000
    revision_flush_ms: int = 5_000
    delta_flush_ms: int = 60_000
    drift_window_ms: int = 3_600_000
    # A partition's memory. Open: 100,000 spans of ordinary size in traces of 20. Closed: three quarters of it for
    # traces, 120,000 spans: the whole late window at 200 spans a second and partition.
    open_bytes: int = 64_000_000
    closed_bytes: int = 96_000_000


class ScorerRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a scorer. One that is not listed is ``undeclared``: paged by role, never averaged."""

    policy_class: str = UNDECLARED
    independent: bool = False  # its scores do not depend on a sibling's content (condition 2)

    @property
    def per_unit(self) -> bool:
        return is_per_unit(self.policy_class)


class ThresholdOverride(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``service`` None means any. Order of precedence: service+scorer+role, scorer+role, role."""

    scorer: str
    role: str
    value: float
    service: str | None = None


DEFAULT_THRESHOLDS: dict[str, float] = {
    "planner": 0.30,
    "retrieval": 0.80,
    "tool_call": 0.30,
    "completion": 0.30,
    "unknown": 0.30,
}


class FoldSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lifecycle: Lifecycle = Lifecycle()
    thresholds: dict[str, float] = msgspec.field(default_factory=lambda: dict(DEFAULT_THRESHOLDS))
    threshold_overrides: tuple[ThresholdOverride, ...] = ()
    scalar_threshold: float = 0.30
    scorers: dict[str, ScorerRule] = {}
    policies: tuple[Policy, ...] = ()
    redelivery: Literal["collapse", "reject"] = "collapse"

    def canonical(self) -> bytes:
        """Canonical JSON: sorted keys, no white space; the same settings give the same bytes."""
        return _ENCODER.encode(self)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.canonical()).hexdigest()


_ENCODER = msgspec.json.Encoder(order="sorted")
