"""What a delta tells the ledger: its windows, the versions seen in them, the thresholds in force.

The number of versions is bounded: a new one takes the place of one without traces for ``dormant_windows``, or is
refused. Established ones never give way to names that somebody makes up. What was refused in a window must not be
taken back from it later either, or counts would fall below zero; so a version that gets in afterwards counts from
the first window on in which nothing unknown was refused (``Ledger.closed``, ``Version.opened``).
"""

from __future__ import annotations

from bisect import insort

from monitor.drift.ledger import Ledger, RoleThreshold, Version
from monitor.drift.settings import DriftSettings
from monitor.drift.state import State, versions_in
from monitor.drift.sums import Sums


def note(state: State, by_window: dict[int, Sums], settings: DriftSettings) -> dict[int, Sums]:
    """Take note of a delta; returns what of it counts."""
    ledger = state.ledger
    for window, sums in by_window.items():
        ledger.highest = max(ledger.highest, window)
        for version in versions_in(sums):
            _note_version(state, version, window, settings)
    known = of_known_versions(state, by_window)
    for window, sums in known.items():
        if window > ledger.aged and not ledger.knows(window):
            insort(ledger.open, window)
        for (key, threshold), (traces, _) in zip(sums.tails.keys, sums.tails.data, strict=True):
            if traces > 0:
                _note_threshold(ledger, key[0], key[2], window, threshold)
    return known


def _of_versions(sums: Sums, here: set[tuple[str, str]]) -> tuple[Sums, int]:
    return sums.keep(lambda row: row[:2] in here, lambda mix: ("", mix[0]) in here)


def of_known_versions(state: State, by_window: dict[int, Sums]) -> dict[int, Sums]:
    """Without the versions that are not known, or not open in that window."""
    opened = {(v.scorer_version, v.model_version): v.opened for v in state.ledger.versions}
    found = {}
    for window, sums in by_window.items():
        here = {version for version, first in opened.items() if window >= first}
        kept, left_out = _of_versions(sums, here)
        state.refuse("versions", left_out)
        if kept:
            found[window] = kept
    return found


def _note_version(
    state: State, version: tuple[str, str], window: int, settings: DriftSettings
) -> None:
    ledger = state.ledger
    known = ledger.version(*version)
    if known is not None:
        if window >= known.opened:
            known.first, known.last = min(known.first, window), max(known.last, window)
        return
    full = len(ledger.versions) >= settings.max_versions
    dormant = _longest_dormant(ledger, settings) if full else None
    closed = ledger.closed if dormant is None else max(ledger.closed, dormant.last)
    if window <= closed or (full and dormant is None):
        ledger.closed = max(ledger.closed, window)
        return
    if dormant is not None:
        _forget(state, dormant)
    ledger.versions.append(Version(*version, window, window, ledger.closed + 1))


def _longest_dormant(ledger: Ledger, settings: DriftSettings) -> Version | None:
    """The version longest without traces, if that is long. A reference goes only with all of its scorer version."""
    floor = ledger.highest - settings.dormant_windows
    alive = {v.scorer_version for v in ledger.versions if v.last > floor}
    held = {
        (r.scorer_version, r.model_version)
        for r in ledger.references
        if r.pinned or r.scorer_version in alive
    }
    held |= {("", model_version) for _, model_version in held}
    free = [
        v
        for v in ledger.versions
        if v.last <= floor and (v.scorer_version, v.model_version) not in held
    ]
    return min(
        free, key=lambda v: (v.last, v.first, v.scorer_version, v.model_version), default=None
    )


def _forget(state: State, version: Version) -> None:
    """With its totals, and all that is remembered of it."""
    ledger = state.ledger
    sv, mv = version.scorer_version, version.model_version
    ledger.versions.remove(version)
    ledger.closed = max(ledger.closed, version.last)
    state.put_total(sv, mv, None)
    if not sv:
        ledger.mix_pairs = [p for p in ledger.mix_pairs if mv not in (p.reference, p.current)]
        return
    ledger.references = [
        r for r in ledger.references if (r.scorer_version, r.model_version) != (sv, mv)
    ]
    ledger.pairs = [
        p for p in ledger.pairs if p.scorer_version != sv or mv not in (p.reference, p.current)
    ]
    ledger.phis = [p for p in ledger.phis if (p.scorer_version, p.model_version) != (sv, mv)]
    if all(v.scorer_version != sv for v in ledger.versions):
        ledger.thresholds = [t for t in ledger.thresholds if t.scorer_version != sv]


def _note_threshold(
    ledger: Ledger, scorer_version: str, role: str, window: int, threshold: float
) -> None:
    for known in ledger.thresholds:
        if (known.scorer_version, known.role) == (scorer_version, role):
            if (window, threshold) >= (known.window, known.value):
                known.window, known.value = window, threshold
            return
    ledger.thresholds.append(RoleThreshold(scorer_version, role, window, threshold))
