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

from collections.abc import MutableMapping
from dataclasses import dataclass, field

from monitor.drift.baseline import apply_control
from monitor.drift.folding import fold_windows, strip_windows, take_in
from monitor.drift.look import Look
from monitor.drift.messages import BaselineControl, ScoreDelta, decode_message
from monitor.drift.notes import note
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
    ledger_key,
)

# Decoded values kept; about 50 kB each at the worst. More keys than that are decoded anew each time.
CACHED_WINDOWS = 2048
CACHED_TOTALS = 1024


@dataclass(slots=True)
class Plan:
    """What one message causes. Send outputs, gates and controls, await their acks, then ``commit``.

    ``skipped``: the message was evaluated before (it may still have writes that a crash had lost).
    """

    key: bytes = b""
    outputs: list[Output] = field(default_factory=list)
    gates: list[GateState] = field(default_factory=list)
    controls: list[BaselineRecord] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    skipped: bool = False
    decoded: list[WindowValue | TotalValue | None] = field(default_factory=list)


class DriftEngine:
    """All keys of some partitions of monitor.score-deltas; state lies in the two tables alone."""

    def __init__(
        self,
        settings: DriftSettings,
        windows: MutableMapping[bytes, bytes],
        totals: MutableMapping[bytes, bytes],
    ) -> None:
        self.settings = settings
        self._tables = {WINDOWS: windows, TOTALS: totals}
        self._windows: Cached[WindowValue] = Cached(windows, decode_window, CACHED_WINDOWS)
        self._totals: Cached[TotalValue] = Cached(totals, decode_total, CACHED_TOTALS)

    def plan(self, message: bytes, offset: int) -> Plan:
        """What the message at this offset of its partition causes. Changes nothing. Raises UndecodableRecord."""
        decoded = decode_message(message)
        state = State(
            decoded.key,
            self._windows,
            self._totals,
            self._tables[TOTALS].get(ledger_key(decoded.key)),
        )
        plan = Plan(decoded.key, skipped=state.ledger.fence >= offset)
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
        for (table, key, value), decoded in zip(plan.writes, plan.decoded, strict=True):
            if value is None:
                self._tables[table].pop(key, None)
                continue
            self._tables[table][key] = value
            if isinstance(decoded, WindowValue):
                self._windows.learn(key, value, decoded)
            elif isinstance(decoded, TotalValue):
                self._totals.learn(key, value, decoded)

    def _add_delta(self, state: State, delta: ScoreDelta, offset: int, plan: Plan) -> None:
        by_window = sums_by_window(delta)
        ledger = state.ledger
        before = ledger.highest
        if not plan.skipped:
            note(state, by_window, self.settings)
        take_in(state, by_window, offset, self.settings)
        if plan.skipped:
            return
        ledger.deltas += 1
        new_window = ledger.highest > before
        if new_window:
            strip_windows(state, offset, self.settings)
        fold_windows(state, offset, self.settings)
        if new_window or ledger.look_due or ledger.deltas % self.settings.look_every == 0:
            look = Look(state, delta.service, delta.scorer, offset, new_window, self.settings)
            look.run()
            plan.outputs, plan.gates = look.outputs, look.gates
            ledger.look_due = False
