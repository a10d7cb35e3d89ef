"""Match composition policies against the spans of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from monitor.model import Span
from monitor.policy.rules import Finding, Policy


class TraceView(Protocol):
    """What matching reads of a trace: `monitor.trace.identity.IdentityReport` has it."""

    @property
    def status(self) -> str: ...
    @property
    def spans(self) -> Sequence[Span]: ...
    @property
    def parents(self) -> dict[str, str | None]: ...


class ThresholdTable(Protocol):
    """`monitor.trace.thresholds.Thresholds`."""

    def value(self, service: str, scorer: str, role: str) -> float: ...


def match(
    trace: TraceView, policies: Sequence[Policy], thresholds: ThresholdTable, *, cut: bool
) -> tuple[Finding, ...]:
    """Findings in the order of ``policies``, at most one each; none where identity is rejected."""
    raise NotImplementedError
