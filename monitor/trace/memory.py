"""What a partition holds: open lives, closed ones, residues; their bytes and who must go first."""

from __future__ import annotations

from monitor.trace.life import Life
from monitor.trace.residue import Residue


class Memory:
    """Lives are named by ``nth``, their birth's place among all births of the partition. Every order here is
    an order of the log: open lives by birth, closed ones by last number, residues by when their life left."""

    __slots__ = (
        "births",
        "by_trace",
        "bytes_closed",
        "bytes_open",
        "bytes_residues",
        "closed",
        "dirty",
        "number",
        "opened",
        "residue_of",
        "residues",
    )

    def __init__(self) -> None:
        self.by_trace: dict[str, Life] = {}  # the life that a fragment of this trace belongs to
        self.opened: dict[int, Life] = {}
        self.closed: dict[int, Life] = {}
        self.dirty: set[int] = set()
        self.residues: dict[int, Residue] = {}
        self.residue_of: dict[str, int] = {}
        self.bytes_open = 0
        self.bytes_closed = 0
        self.bytes_residues = 0
        self.number = 0  # of the next closing or revision
        self.births = 0

    @property
    def lowest_number(self) -> int:
        """Of a life in closed memory; the next number where there is none."""
        for life in self.closed.values():
            return life.number
        return self.number

    def add_open(self, life: Life) -> None:
        self.by_trace[life.trace_id] = life
        self.opened[life.nth] = life
        self.bytes_open += life.bytes

    def close(self, life: Life) -> None:
        del self.opened[life.nth]
        self.bytes_open -= life.bytes
        self.add_closed(life)

    def add_closed(self, life: Life) -> None:
        self.by_trace[life.trace_id] = life
        self.closed[life.nth] = life
        self.bytes_closed += life.bytes

    def renumber(self, life: Life) -> None:
        """The life's closing or revision is the latest: it goes to the end of the line."""
        life.number = self.number
        self.number += 1
        self.closed[life.nth] = self.closed.pop(life.nth)

    def forget(self, life: Life) -> None:
        del self.closed[life.nth]
        self.bytes_closed -= life.bytes
        if self.by_trace.get(life.trace_id) is life:
            del self.by_trace[life.trace_id]

    def add_residue(self, residue: Residue) -> None:
        self.residues[residue.nth] = residue
        self.residue_of[residue.trace_id] = residue.nth
        self.bytes_residues += residue.bytes

    def take_residue(self, nth: int) -> Residue | None:
        residue = self.residues.pop(nth, None)
        if residue is not None:
            del self.residue_of[residue.trace_id]
            self.bytes_residues -= residue.bytes
        return residue
