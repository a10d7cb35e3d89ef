"""The settings that a life is judged by, ready for use: thresholds looked up, severities decided."""

from __future__ import annotations

import hashlib
from typing import Final, Literal

import msgspec

from monitor.errors import UndecodableRecord
from monitor.policy.match import Matcher
from monitor.policy.session import Caring
from monitor.trace.config import FoldSettings, ScorerRule
from monitor.trace.thresholds import Thresholds

Severity = Literal["critical", "warning", "info"]
SEVERITY_RANK: Final[dict[str, int]] = {"info": 0, "warning": 1, "critical": 2}

_UNLISTED: Final = ScorerRule()
_DECODER: Final = msgspec.json.Decoder(FoldSettings)


class Rules:
    """Settings of a partition and what follows from them. One object per content, shared by its lives.

    The lifecycle's times are at least 1 ms here: a timer that is due the moment it is set would make the
    output depend on where one record ends and the next begins.
    """

    __slots__ = (
        "caring",
        "closed_budget",
        "content",
        "delta_flush_ms",
        "drift_window_ms",
        "idle_ms",
        "late_window_ms",
        "lowest",
        "matcher",
        "max_lifetime_ms",
        "max_spans",
        "named_scorers",
        "open_budget",
        "residue_budget",
        "revision_flush_ms",
        "root_grace_ms",
        "settings",
        "sha256",
        "thresholds",
    )

    def __init__(self, settings: FoldSettings, sha256: str, content: bytes) -> None:
        self.settings = settings
        self.sha256 = sha256
        self.content = content
        self.thresholds = Thresholds(settings)
        self.lowest = self.thresholds.lowest
        self.named_scorers = frozenset(settings.scorers) | {
            rule.scorer for rule in settings.threshold_overrides
        }
        self.matcher = Matcher(settings.policies, self.thresholds)
        self.caring = Caring(settings.policies)
        life = settings.lifecycle
        self.root_grace_ms = max(1, life.root_grace_ms)
        self.idle_ms = max(1, life.idle_ms)
        self.max_lifetime_ms = max(1, life.max_lifetime_ms)
        self.late_window_ms = max(1, life.late_window_ms)
        self.revision_flush_ms = max(1, life.revision_flush_ms)
        self.delta_flush_ms = max(1, life.delta_flush_ms)
        self.drift_window_ms = max(1, life.drift_window_ms)
        self.max_spans = max(1, life.max_spans)
        self.open_budget = life.open_bytes
        # Residues of cut lives have a quarter of what closed lives may take to themselves: neither starves
        # the other, and both together stay within the figure that the operator set.
        self.residue_budget = life.closed_bytes // 4
        self.closed_budget = life.closed_bytes - self.residue_budget

    @classmethod
    def from_content(cls, sha256: str, content: bytes) -> Rules:
        """Raises UndecodableRecord where ``content`` is no FoldSettings, or not those that ``sha256`` names."""
        if hashlib.sha256(content).hexdigest() != sha256:
            raise UndecodableRecord(
                f"settings {sha256[:12]} have another sha256: they were changed"
            )
        try:
            settings = _DECODER.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UndecodableRecord(f"settings {sha256[:12]} do not decode: {error}") from error
        return cls(settings, sha256, content)

    def scorer(self, scorer: str) -> ScorerRule:
        return self.settings.scorers.get(scorer, _UNLISTED)

    def severity(self, scorer: str, role: str) -> Severity:
        """A retrieval alone is a warning, since an echoed chunk scores high by itself; a scorer that judges
        one unit at a time means what it says of a retrieval too."""
        if role == "retrieval" and not self.scorer(scorer).per_unit:
            return "warning"
        return "critical"


def higher(a: Severity, b: Severity) -> Severity:
    """The graver of two severities."""
    return a if SEVERITY_RANK[a] >= SEVERITY_RANK[b] else b
