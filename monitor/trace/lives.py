"""The lives of a partition: born by a fragment, closed by a timer or a limit, kept for what comes late, gone.

Everything happens at ``now``, a moment of virtual time: a timer's own deadline, or that of the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from monitor.drift.delta import DeltaAccumulator, TracePart
from monitor.model import Fragment
from monitor.trace.closed import ClosedEntry
from monitor.trace.conclude import conclude
from monitor.trace.life import CUTTING, OPEN, ClosedBy, Life
from monitor.trace.memory import Memory
from monitor.trace.output import Outbox
from monitor.trace.paging import Pager
from monitor.trace.pieces import ITEM_BYTES, items_weight, pieces
from monitor.trace.records import scores_no_member, span_not_in_memory
from monitor.trace.residue import keep_past, residue_of
from monitor.trace.rules import Rules
from monitor.trace.timers import (
    CLOSING,
    DELTAS,
    EVICTION,
    FLUSH,
    REVISIONS,
    Timers,
    VirtualTime,
    next_multiple,
)

STEP_SPANS: Final = (
    2_000  # 20 ms of ordinary spans; of the worst that a sender can make half a second
)


class Lives:
    """State and behaviour of all lives of one partition under the settings in force, ``rules``."""

    def __init__(self, out: Outbox, time: VirtualTime, rules: Rules) -> None:
        self.out = out
        self.time = time
        self.now = time.vt
        self.rules = rules
        self.timers = Timers()
        self.memory = Memory()
        self.deltas = DeltaAccumulator()
        self.gates: dict[tuple[str, str], str] = {}
        self.revisions_at: int | None = None
        self.deltas_at: int | None = None
        self.judged_spans = 0  # since the last stop on the way

    @property
    def empty(self) -> bool:
        memory = self.memory
        return not (memory.opened or memory.closed or memory.residues) and self.deltas_at is None

    # --- timers ----------------------------------------------------------------------------------------

    def run_timers(self, vt: int) -> Iterator[None]:
        """Every timer that is due at ``vt``, each at its own deadline. Stops on the way after each STEP_SPANS
        judged: one moment may close many lives, and large ones."""
        timers = self.timers
        while timers.due(vt):
            deadline, order, nth = timers.pop()
            self.now = deadline
            if order == CLOSING:
                self._close_if_due(nth, deadline)
            elif order == EVICTION:
                self._evict_if_due(nth, deadline)
            elif nth == REVISIONS:
                yield from self._flush_revisions()
            else:
                self._flush_deltas()
            if self.judged_spans >= STEP_SPANS:
                self.judged_spans = 0
                yield
        self.now = vt

    def _close_if_due(self, nth: int, deadline: int) -> None:
        life = self.memory.opened.get(nth)
        if life is None or life.scheduled != deadline:
            return
        due, by = life.closing()
        if due > deadline:
            life.scheduled = due
            self.timers.push(due, CLOSING, nth)
        else:
            self._close(life, by)

    def _evict_if_due(self, nth: int, deadline: int) -> None:
        life = self.memory.closed.get(nth)
        if life is not None:
            self._leave(life)
            return
        residue = self.memory.residues.get(nth)
        if residue is not None and residue.deadline == deadline:
            self.memory.take_residue(nth)

    def _flush_revisions(self) -> Iterator[None]:
        self.revisions_at = None
        for nth in sorted(self.memory.dirty):
            life = self.memory.closed[nth]
            if life.revisable_at <= self.now:
                self._revise(life)
                if self.judged_spans >= STEP_SPANS:
                    self.judged_spans = 0
                    yield
        if self.memory.dirty:
            self._flush_at_next_multiple()

    def _flush_deltas(self) -> None:
        self.deltas_at = None
        self.out.records += self.deltas.flush()

    # --- fragments ---------------------------------------------------------------------------------------

    def take(self, offset: int, raw: bytes, fragment: Fragment) -> None:
        """What came of one trace: whole where no limit is near, else item by item, which gives the same."""
        memory = self.memory
        items = len(fragment.spans) + len(fragment.faults)
        if not (items or fragment.scores):
            return  # no moment of any life
        life = memory.by_trace.get(fragment.trace_id) or self._born(fragment.trace_id, offset)
        size = items_weight(raw, fragment)
        self.out.count("spans", len(fragment.spans))
        if life.number == OPEN:
            # The span that fills the life closes it, so one short of max_spans is still ordinary.
            fits = (
                life.count + items < life.rules.max_spans
                and memory.bytes_open + size <= self.rules.open_budget
            )
        else:
            self.out.count("late_spans", len(fragment.spans))
            self.out.count("late_scores", len(fragment.scores))
            fits = (
                life.count + items <= life.rules.max_spans
                and memory.bytes_closed + size <= self.rules.closed_budget
            )
        if fits:
            self._keep(life, offset, raw, fragment, size)
            return
        for piece_raw, piece, piece_size in pieces(raw, fragment):
            self._take_piece(offset, piece_raw, piece, piece_size)

    def _take_piece(self, offset: int, raw: bytes, piece: Fragment, size: int) -> None:
        """A budget may take the life away between two items; the next one then opens another. No two
        lives are born by one record: see _keep_closed_budget."""
        life = self.memory.by_trace.get(piece.trace_id) or self._born(piece.trace_id, offset)
        if life.number != OPEN and self._full(life, piece, size):
            # Judged and counted, not kept.
            self._look(life, offset, piece, kept=False)
            if piece.spans:
                self.out.count("past_max_spans")
                life.unkept += 1
                self.memory.bytes_closed += keep_past(life, piece.spans[0])
                self._dirty(life)
                self._keep_closed_budget()
            return
        self._keep(life, offset, raw, piece, size)
        if life.number == OPEN and life.count >= life.rules.max_spans:
            self._close(life, "max_spans")
        self.keep_budgets()

    def _full(self, life: Life, piece: Fragment, size: int) -> bool:
        """Whether a closed life may keep no more: by its spans, or since it alone would exceed the budget of all
        closed ones (the latest never leaves by budget)."""
        return (
            life.count >= life.rules.max_spans and not piece.scores
        ) or life.bytes + size > self.rules.closed_budget

    def _born(self, trace_id: str, offset: int) -> Life:
        memory = self.memory
        rules = self.rules
        life = Life(trace_id, offset, memory.births, rules, self.now)
        memory.births += 1
        earlier = memory.residue_of.get(trace_id)
        residue = None if earlier is None else memory.take_residue(earlier)
        if residue is not None:
            self.out.count("continued")
            life.continues = residue.life
            life.residue = residue.spans
            life.bytes += residue.bytes
            life.cut = True
        memory.add_open(life)
        life.scheduled = self.now + rules.max_lifetime_ms
        self.timers.push(life.scheduled, CLOSING, life.nth)
        return life

    def _keep(self, life: Life, offset: int, raw: bytes, fragment: Fragment, size: int) -> None:
        """Keep what the fragment holds and look at its scores."""
        spans = fragment.spans
        life.keep(offset, raw, fragment, size)
        if life.number == OPEN:
            self.memory.bytes_open += size
            life.last_vt = self.now
            life.complete = life.grow(spans)
            deadline = life.closing()[0]
            if deadline < life.scheduled:
                life.scheduled = deadline
                self.timers.push(deadline, CLOSING, life.nth)
        else:
            self.memory.bytes_closed += size
            self._dirty(life)
        if life.waiting or fragment.scores or fragment.faults:
            self._look(life, offset, fragment, kept=True)
            return
        lowest = life.rules.lowest  # nearly all scores are below every threshold there is
        for span in spans:
            for score in span.scores:
                if score.value >= lowest:
                    self._look(life, offset, fragment, kept=True)
                    return

    def _look(self, life: Life, offset: int, fragment: Fragment, *, kept: bool) -> None:
        pager = Pager(self.out, life, offset, self.time.date(self.now))
        pager.look(fragment, kept=kept)
        if pager.paged and life.number != OPEN:
            self._dirty(life)

    def _dirty(self, life: Life) -> None:
        """Something came late: the next flush at which the life may be revised does so."""
        if life.dirty:
            return
        life.dirty = True
        self.memory.dirty.add(life.nth)
        if self.revisions_at is None:
            self._flush_at_next_multiple()

    def _flush_at_next_multiple(self) -> None:
        self.revisions_at = next_multiple(self.rules.revision_flush_ms, self.now)
        self.timers.push(self.revisions_at, FLUSH, REVISIONS)

    # --- lives end ---------------------------------------------------------------------------------------

    def _close(self, life: Life, by: ClosedBy) -> None:
        rules = life.rules
        self.out.count(f"closed_{by}")
        life.closed_by = by
        life.closed_at_ms = self.time.date(self.now)
        life.window = life.closed_at_ms // rules.drift_window_ms
        life.deadline = self.now + rules.late_window_ms
        if by in CUTTING:
            life.cut = True
        if life.cut:
            self.out.count("cut")
        life.shape = None
        self.memory.close(life)
        self._conclude(life, closing=True)
        self.timers.push(life.deadline, EVICTION, life.nth)
        self._keep_closed_budget()

    def _revise(self, life: Life) -> None:
        """One revision for all that came late since the last flush."""
        self.out.count("revised")
        self.memory.dirty.discard(life.nth)
        self._conclude(life, closing=False)

    def _conclude(self, life: Life, *, closing: bool) -> None:
        out = self.out
        self.judged_spans += life.bytes // ITEM_BYTES  # scores cost time too
        done = conclude(out.partition, life, self.gates, self.time.date(self.now), closing=closing)
        if done.error is not None:
            out.count("judge_errors")
        if done.published:
            life.revision += 1
        elif closing:
            out.count("unpublished")
        out.records += done.records
        if done.steps:
            out.count("session_steps", len(done.steps))
            out.records += done.steps
        if done.replaced > life.replaced:
            out.count("scores_replaced", done.replaced - life.replaced)
            life.replaced = done.replaced
        life.pages = done.pages
        if done.gates:
            life.gates = {**done.gates, **life.gates}
        if done.part != life.part:
            self._contribute(life.window, life.part, done.part)
            life.part = done.part
        life.dirty = False
        life.content = None
        # Judging costs time by the size of the life, being late costs its sender one score: each revision
        # waits one flush longer than the last. Thresholds do not wait for it.
        life.revisable_at = self.now + life.judged * self.rules.revision_flush_ms
        life.judged += 1
        self.memory.renumber(life)
        new, life.stored = life.fragments[life.stored :], len(life.fragments)
        out.closed.append(
            ClosedEntry(
                life.trace_id,
                life.birth,
                life.number,
                life.revision,
                life.deadline,
                life.state(),
                tuple(new),
            )
        )

    def _contribute(self, window: int, old: TracePart | None, new: TracePart | None) -> None:
        """Take the old contribution out of the window of the life's closing, and put the new one in."""
        if old is not None:
            self.deltas.add(window, old, -1)
        if new is not None:
            self.deltas.add(window, new, 1)
        if self.deltas.full:
            self.out.records += self.deltas.flush()
        if self.deltas_at is None:
            self.deltas_at = next_multiple(self.rules.delta_flush_ms, self.now)
            self.timers.push(self.deltas_at, FLUSH, DELTAS)

    def _leave(self, life: Life) -> None:
        """Its memory is gone: what came late is revised first, what never found its span is a dead letter."""
        if life.dirty:
            self._revise(life)
        alone = life.alone()
        if alone:
            bears = life.load().bears
            for score in alone:
                evaluator = bears(score.span_id)
                self.out.count("scores_of_no_member" if evaluator else "span_not_in_memory")
                letter = scores_no_member if evaluator else span_not_in_memory
                self.out.records.append(letter(life.trace_id, score))
        self.memory.forget(life)
        self.judged_spans += 1 + len(alone)
        if life.cut:
            self.judged_spans += life.bytes // ITEM_BYTES
            deadline = self.now + life.rules.max_lifetime_ms
            self.memory.add_residue(residue_of(life, deadline))
            self.timers.push(deadline, EVICTION, life.nth)
            self._keep_residue_budget()

    # --- budgets -------------------------------------------------------------------------------------------

    def keep_budgets(self) -> None:
        """Open lives: the oldest birth first. Then those that this closed, and residues."""
        memory = self.memory
        while memory.opened and memory.bytes_open > self.rules.open_budget:
            self._close(next(iter(memory.opened.values())), "pressure")
        self._keep_closed_budget()
        self._keep_residue_budget()

    def _keep_closed_budget(self) -> None:
        """The lowest last number first, whatever number its last revision gets on the way out. The latest
        always stays: a life that a record opened and closed cannot leave before the record's end."""
        memory = self.memory
        while memory.bytes_closed > self.rules.closed_budget and len(memory.closed) > 1:
            self.out.count("evicted_by_budget")
            life = next(iter(memory.closed.values()))
            life.deadline = self.now  # says in the closed log that it is gone
            self._leave(life)

    def _keep_residue_budget(self) -> None:
        memory = self.memory
        while memory.bytes_residues > self.rules.residue_budget and memory.residues:
            self.out.count("residues_dropped")
            memory.take_residue(next(iter(memory.residues)))
