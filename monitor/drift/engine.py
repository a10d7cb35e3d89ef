"""The drift agent's logic over its two tables: pure, with a fence in every value.

``plan`` says what a message causes: outputs to send, then values to write. The agent sends the outputs and
awaits their acks *before* it calls ``commit``. Redelivered messages and a crash between any two writes leave
sums as if nothing had happened: every value takes a message in only if its own fence lies below it. A message
at or under the ledger's fence is not evaluated again.

A window is folded into the totals of its versions while a delta two or more windows later is applied; its bins
are dropped one fold later, so no order in which the two writes become durable loses them. A part that comes
later for a folded window is added to the totals, if above both the fence the window had when folded and the
totals' own.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field

from monitor.drift.baseline import apply_control
from monitor.drift.folding import fold_windows, strip_windows, take_in
from monitor.drift.look import Look
from monitor.drift.messages import BaselineControl, ScoreDelta, decode_message
from monitor.drift.notes import note, of_known_versions
from monitor.drift.report import BaselineRecord, GateState, Output
from monitor.drift.settings import DriftSettings
from monitor.drift.state import State, Write
from monitor.drift.sums import sums_by_window
from monitor.drift.values import (
    TOTALS,
    WINDOWS,
    Cached,
    TotalValue,
    WindowValue,
    decode_total,
    decode_window,
    is_ledger_key,
    ledger_key,
)

# Decoded values kept; about 50 kB each at the worst. More keys than that are decoded anew each time.
CACHED_WINDOWS = 2048
CACHED_TOTALS = 1024


@dataclass(slots=True)
class Plan:
    """What one message causes. Send outputs, gates and controls, await their acks, then ``commit``.

    ``skipped``: the message was evaluated before (it may still have writes that a crash had lost).
    ``settle``: every earlier write must be durable before these are made, for they drop what those have moved.
    ``refused``: bound -> what of the message it left out: "keys" (the whole message, since the partition has
    ``max_keys``), "versions" and "strata" (rows).
    """

    key: bytes = b""
    outputs: list[Output] = field(default_factory=list)
    gates: list[GateState] = field(default_factory=list)
    controls: list[BaselineRecord] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    skipped: bool = False
    settle: bool = False
    refused: dict[str, int] = field(default_factory=dict)
    partition: int = 0
    is_new_key: bool = False
    decoded: list[WindowValue | TotalValue | None] = field(default_factory=list)


class DriftEngine:
    """All keys of some partitions of monitor.score-deltas; state lies in the two tables alone."""

    def __init__(
        self,
        settings: DriftSettings,
        windows: MutableMapping[bytes, bytes],
        totals: MutableMapping[bytes, bytes],
        keys_in: Callable[[int], int] | None = None,
    ) -> None:
        """keys_in: partition -> how many keys the tables hold of it; by default all are of one partition."""
        self.settings = settings
        self._keys_in = keys_in or (lambda _: sum(map(is_ledger_key, totals)))
        self._keys: dict[int, int] = {}
        self._tables = {WINDOWS: windows, TOTALS: totals}
        self._windows: Cached[WindowValue] = Cached(windows, decode_window, CACHED_WINDOWS)
        self._totals: Cached[TotalValue] = Cached(totals, decode_total, CACHED_TOTALS)

    def plan(self, message: bytes, offset: int, partition: int = 0) -> Plan:
        """What the message at this offset of its partition causes. Changes nothing. Raises UndecodableRecord.

        A key that is new where the partition has ``max_keys`` is refused whole, and no key ever gives way to
        another: so what was refused once is refused for ever, and nothing of it can be taken back.
        """
        decoded = decode_message(message)
        ledger = self._tables[TOTALS].get(ledger_key(decoded.key))
        state = State(decoded.key, self._windows, self._totals, ledger)
        plan = Plan(decoded.key, skipped=state.ledger.fence >= offset, partition=partition)
        plan.is_new_key = ledger is None
        if plan.is_new_key and self._count(partition) >= self.settings.max_keys:
            plan.refused["keys"] = 1
            if isinstance(decoded, BaselineControl):
                plan.controls.append(apply_control(state.ledger, decoded, offset))
            return plan
        if isinstance(decoded, BaselineControl):
            if not plan.skipped:
                plan.controls.append(apply_control(state.ledger, decoded, offset))
        else:
            self._add_delta(state, decoded, offset, plan)
        changes = state.writes()
        plan.writes = [write for write, _ in changes]
        plan.decoded = [value for _, value in changes]
        if not plan.skipped:
            state.ledger.fence = offset
            plan.writes.append(state.ledger_write())
            plan.decoded.append(None)
        return plan

    def commit(self, plan: Plan) -> None:
        """The plan's writes, in order."""
        if plan.is_new_key and plan.writes:
            self._keys[plan.partition] = self._count(plan.partition) + 1
        for (table, key, value), decoded in zip(plan.writes, plan.decoded, strict=True):
            if value is None:
                self._tables[table].pop(key, None)
                continue
            self._tables[table][key] = value
            if isinstance(decoded, WindowValue):
                self._windows.learn(key, value, decoded)
            elif isinstance(decoded, TotalValue):
                self._totals.learn(key, value, decoded)

    def recount(self) -> None:
        """The tables were restored, or partitions came and went."""
        self._keys.clear()

    def _count(self, partition: int) -> int:
        if partition not in self._keys:
            self._keys[partition] = self._keys_in(partition)
        return self._keys[partition]

    def _add_delta(self, state: State, delta: ScoreDelta, offset: int, plan: Plan) -> None:
        by_window = sums_by_window(delta)
        ledger = state.ledger
        before = ledger.highest
        if plan.skipped:
            take_in(state, of_known_versions(state, by_window), offset, self.settings)
            return
        take_in(state, note(state, by_window, self.settings), offset, self.settings)
        plan.refused = state.refused
        ledger.refused += sum(state.refused.values())
        ledger.deltas += 1
        new_window = ledger.highest > before
        if new_window:
            plan.settle = bool(ledger.strip)
            strip_windows(state, offset, self.settings)
        fold_windows(state, offset, self.settings)
        if new_window or ledger.look_due or ledger.deltas % self.settings.look_every == 0:
            look = Look(state, delta.service, delta.scorer, offset, new_window, self.settings)
            look.run()
            plan.outputs, plan.gates = look.outputs, look.gates
            ledger.look_due = False
