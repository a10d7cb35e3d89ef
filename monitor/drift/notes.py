"""What a delta tells the ledger: its windows, the versions seen in them, the thresholds in force."""

from __future__ import annotations

from bisect import insort

from monitor.drift.ledger import RoleThreshold, Version
from monitor.drift.settings import DriftSettings
from monitor.drift.state import State, versions_in
from monitor.drift.sums import Sums


def note(state: State, by_window: dict[int, Sums], settings: DriftSettings) -> None:
    ledger = state.ledger
    for window, sums in by_window.items():
        ledger.highest = max(ledger.highest, window)
        known = (
            window in ledger.open or window in ledger.strip or ledger.block_of(window) is not None
        )
        if not known:
            insort(ledger.open, window)
        for version in versions_in(sums):
            _note_version(state, version, window, settings)
        for (key, threshold), (traces, _) in zip(sums.tails.keys, sums.tails.data, strict=True):
            if traces > 0:
                _note_threshold(state, key[0], key[2], window, threshold)


def _note_version(
    state: State, version: tuple[str, str], window: int, settings: DriftSettings
) -> None:
    ledger = state.ledger
    known = ledger.version(*version)
    if known is not None:
        known.first, known.last = min(known.first, window), max(known.last, window)
        return
    ledger.versions.append(Version(*version, window, window))
    if len(ledger.versions) > settings.max_versions:
        _forget_one(state)


def _forget_one(state: State) -> None:
    """The version longest without traces goes, with its totals; never a reference."""
    ledger = state.ledger
    held = {(r.scorer_version, r.model_version) for r in ledger.references}
    held |= {("", r.model_version) for r in ledger.references}
    free = [v for v in ledger.versions if (v.scorer_version, v.model_version) not in held]
    if not free:
        return
    oldest = min(free, key=lambda v: (v.last, v.first, v.scorer_version, v.model_version))
    sv, mv = oldest.scorer_version, oldest.model_version
    ledger.versions.remove(oldest)
    ledger.forgotten += 1
    if sv:
        ledger.pairs = [p for p in ledger.pairs if (p.scorer_version, p.current) != (sv, mv)]
        ledger.phis = [p for p in ledger.phis if (p.scorer_version, p.model_version) != (sv, mv)]
    else:
        ledger.mix_pairs = [p for p in ledger.mix_pairs if p.current != mv]
    state.put_total(sv, mv, None)


def _note_threshold(
    state: State, scorer_version: str, role: str, window: int, threshold: float
) -> None:
    for known in state.ledger.thresholds:
        if (known.scorer_version, known.role) == (scorer_version, role):
            if (window, threshold) >= (known.window, known.value):
                known.window, known.value = window, threshold
            return
    state.ledger.thresholds.append(RoleThreshold(scorer_version, role, window, threshold))
