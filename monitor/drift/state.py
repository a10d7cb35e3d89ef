"""The two tables as one message sees them: values it has changed lie over those that are stored.

Nothing here changes a table; ``writes`` lists what a commit has to write, in an order in which a crash between
any two writes does no harm: windows, totals, ledger, and deletions after them.
"""

from __future__ import annotations

from monitor.drift.ledger import Ledger, decode_ledger, encode_ledger
from monitor.drift.sums import Sums, merge
from monitor.drift.values import (
    EMPTY_TOTAL,
    TOTALS,
    WINDOWS,
    Cached,
    TotalValue,
    WindowValue,
    encode_total,
    encode_window,
    ledger_key,
    total_key,
    window_key,
)

Write = tuple[str, bytes, bytes | None]  # table, key, value (None: delete)
Traffic = dict[str, tuple[int, int]]


class State:
    """Windows, totals and ledger of one (service, scorer), with the changes of one message."""

    def __init__(
        self,
        key: bytes,
        windows: Cached[WindowValue],
        totals: Cached[TotalValue],
        ledger: bytes | None,
    ) -> None:
        self.key = key
        self.ledger: Ledger = decode_ledger(ledger)
        self._windows = windows
        self._totals = totals
        self._new_windows: dict[int, WindowValue | None] = {}
        self._new_totals: dict[tuple[str, str], TotalValue | None] = {}
        self._sums: dict[tuple[str, str], tuple[Sums, Traffic]] = {}
        self.refused: dict[str, int] = {}  # bound -> rows of this message that it left out

    def refuse(self, bound: str, rows: int) -> None:
        if rows:
            self.refused[bound] = self.refused.get(bound, 0) + rows

    def window(self, start: int) -> WindowValue | None:
        if start in self._new_windows:
            return self._new_windows[start]
        return self._windows.get(window_key(self.key, start))

    def put_window(self, start: int, value: WindowValue | None) -> None:
        self._new_windows[start] = value
        self._sums.clear()

    def total(self, scorer_version: str, model_version: str) -> TotalValue | None:
        version = (scorer_version, model_version)
        if version in self._new_totals:
            return self._new_totals[version]
        return self._totals.get(total_key(self.key, *version))

    def put_total(self, scorer_version: str, model_version: str, value: TotalValue | None) -> None:
        self._new_totals[scorer_version, model_version] = value
        self._sums.clear()

    def sums(self, scorer_version: str, model_version: str) -> tuple[Sums, Traffic]:
        """Totals plus the windows not yet folded into them, with bins; traffic (sum n_w, sum n_w^2) by role.

        Scorer version "" gives the length and role mix of a verdict model version.
        """
        version = (scorer_version, model_version)
        if version not in self._sums:
            total = self.total(*version) or EMPTY_TOTAL
            parts, traffic = [total.sums], dict(total.traffic)
            for start in (
                *self.ledger.open,
                *self.ledger.strip,
            ):  # strip: should a fold have been lost
                value = self.window(start) if total.fence_of(start) is None else None
                if value is not None and value.sums.bins is not None:
                    part = version_part(value.sums, *version)
                    parts.append(part)
                    add_traffic(traffic, part)
            self._sums[version] = (merge(parts), traffic)
        return self._sums[version]

    def first_windows(self, scorer_version: str, model_version: str, limit: int) -> list[int]:
        """The version's first folded windows, ascending."""
        total = self.total(scorer_version, model_version)
        return [] if total is None else [w for w, _ in total.folded[:limit]]

    def window_sums(self, windows: list[int]) -> list[Sums]:
        """Sums of windows that still have a value (bins may be gone)."""
        values = [self.window(self.ledger.place_of(w)) for w in windows]
        return [v.sums for v in values if v is not None]

    def writes(self) -> list[tuple[Write, WindowValue | TotalValue | None]]:
        """Encoded changes, each with its decoded value."""
        found: list[tuple[Write, WindowValue | TotalValue | None]] = []
        deleted: list[tuple[Write, WindowValue | TotalValue | None]] = []
        for start, window in sorted(self._new_windows.items()):
            key = window_key(self.key, start)
            if window is None:
                deleted.append(((WINDOWS, key, None), None))
            else:
                found.append(((WINDOWS, key, encode_window(window)), window))
        for version, total in sorted(self._new_totals.items()):
            key = total_key(self.key, *version)
            if total is None:
                deleted.append(((TOTALS, key, None), None))
            else:
                found.append(((TOTALS, key, encode_total(total)), total))
        return found + deleted

    def ledger_write(self) -> Write:
        return TOTALS, ledger_key(self.key), encode_ledger(self.ledger)


def version_part(sums: Sums, scorer_version: str, model_version: str) -> Sums:
    """What of a window belongs to one totals value."""
    return (
        sums.of_version(scorer_version, model_version)
        if scorer_version
        else sums.of_mix(model_version)
    )


def versions_in(sums: Sums) -> list[tuple[str, str]]:
    """(scorer version, model version) of every totals value that these sums touch; "" for the mix."""
    return sorted({(k[0], k[1]) for k in sums.rows.keys} | {("", k[0]) for k in sums.mix.keys})


def traffic_of(part: Sums) -> dict[str, int]:
    """Traces of one window by role; role "" for the mix."""
    found: dict[str, int] = {}
    for key, n in zip(part.rows.keys, part.rows.data[:, 0].tolist(), strict=True):
        found[key[2]] = found.get(key[2], 0) + n
    for n in part.mix.data[:, 0].tolist():
        found[""] = found.get("", 0) + n
    return found


def add_traffic(traffic: Traffic, part: Sums) -> None:
    for role, n in traffic_of(part).items():
        total, squares = traffic.get(role, (0, 0))
        traffic[role] = (total + n, squares + n * n)


def nbar(traffic: Traffic, role: str) -> float:
    """sum n_w^2 / sum n_w: traces of the role in the window that a trace finds itself in."""
    n, squares = traffic.get(role, (0, 0))
    return squares / n if n > 0 else 0.0
