"""The state of a fold as bytes, and back.

A snapshot holds all but clean closed lives; those lie in the closed log. It is small, and with the closed
log and the records since it gives the very same fold again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from monitor.drift.delta import DeltaAccumulator, ScoreDelta
from monitor.errors import PartitionRefused, UndecodableRecord
from monitor.trace.closed import ClosedEntry
from monitor.trace.life import Life, LifeState
from monitor.trace.lives import Lives
from monitor.trace.output import Outbox
from monitor.trace.records import FOLD_VERSION
from monitor.trace.residue import Residue
from monitor.trace.rules import Rules
from monitor.trace.timers import CLOSING, DELTAS, EVICTION, FLUSH, REVISIONS, VirtualTime

SCHEMA_VERSION: Final = 1  # of this file's structs; another one is refused

_CURE: Final = "run `monitor topics reset-partition` for it"


class _StoredLife(msgspec.Struct, frozen=True, array_like=True):
    state: LifeState
    stored: int  # of the fragments, how many lie in the closed log
    fragments: tuple[tuple[int, bytes], ...]


class StoredLives(msgspec.Struct, frozen=True, array_like=True):
    """`Lives` but for its clean closed ones."""

    rules: str  # sha256 of the settings in force
    settings: dict[str, bytes]  # in force, and those that lives in memory were born under
    revisions_at: int | None
    deltas_at: int | None
    deltas: list[ScoreDelta]
    number: int
    lowest_number: int
    births: int
    opened: tuple[_StoredLife, ...]
    dirty: tuple[_StoredLife, ...]
    residues: tuple[Residue, ...]


class _Gate(msgspec.Struct, frozen=True, array_like=True):
    service: str
    scorer: str
    state: str
    source_offset: int


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    schema_version: int
    fold_version: int
    partition: int
    vt: int
    last_ts: int | None
    rank: tuple[int, int]
    gates: tuple[_Gate, ...]
    held: tuple[tuple[int, bytes], ...]
    counters: dict[str, int]
    lives: StoredLives | None


class _Versions(msgspec.Struct, frozen=True, array_like=True):
    schema_version: int
    fold_version: int


class FoldState:
    """What a fold is made of, as `decode_snapshot` gives it back."""

    def __init__(
        self,
        partition: int,
        time: VirtualTime,
        counters: dict[str, int],
        rank: tuple[int, int],
        gates: dict[tuple[str, str], tuple[str, int]],
        held: list[tuple[int, bytes]],
        lives: StoredLives | None,
    ) -> None:
        self.partition = partition
        self.time = time
        self.counters = counters
        self.rank = rank
        self.gates = gates
        self.held = held
        self.lives = lives


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Snapshot)
_VERSIONS: Final = msgspec.msgpack.Decoder(_Versions)
_DECODER_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def snapshot_fold_version(snapshot: bytes) -> int:
    """The fold version that wrote it: a new one may start from it only if it stands at the commit.
    Raises UndecodableRecord."""
    return _versions(snapshot).fold_version


def encode_snapshot(state: FoldState) -> bytes:
    return _ENCODER.encode(
        _Snapshot(
            SCHEMA_VERSION,
            FOLD_VERSION,
            state.partition,
            state.time.vt,
            state.time.last_ts,
            state.rank,
            tuple(_Gate(*key, *state.gates[key]) for key in sorted(state.gates)),
            tuple(state.held),
            dict(sorted(state.counters.items())),
            state.lives,
        )
    )


def decode_snapshot(partition: int, snapshot: bytes) -> FoldState:
    """Raises PartitionRefused for a snapshot of another build or partition, UndecodableRecord."""
    version = _versions(snapshot).schema_version
    if version != SCHEMA_VERSION:
        raise PartitionRefused(
            f"snapshot of partition {partition} has schema {version}, this build reads {SCHEMA_VERSION}: start "
            f"the build that wrote it, or {_CURE}"
        )
    try:
        found = _DECODER.decode(snapshot)
    except _DECODER_ERRORS as error:
        raise UndecodableRecord(
            f"snapshot of partition {partition} does not decode: {error}"
        ) from error
    if found.partition != partition:
        raise PartitionRefused(
            f"snapshot of partition {found.partition} found for partition {partition}: {_CURE}"
        )
    return FoldState(
        partition,
        VirtualTime(found.vt, found.last_ts),
        dict(found.counters),
        found.rank,
        {(g.service, g.scorer): (g.state, g.source_offset) for g in found.gates},
        list(found.held),
        found.lives,
    )


def stored(lives: Lives) -> StoredLives:
    memory = lives.memory
    rules = {lives.rules.sha256: lives.rules.content}
    for kept in (memory.opened, memory.closed):
        for life in kept.values():
            rules.setdefault(life.rules.sha256, life.rules.content)
    return StoredLives(
        lives.rules.sha256,
        dict(sorted(rules.items())),
        lives.revisions_at,
        lives.deltas_at,
        lives.deltas.state(),
        memory.number,
        memory.lowest_number,
        memory.births,
        tuple(_store(life) for life in memory.opened.values()),
        tuple(_store(memory.closed[nth]) for nth in sorted(memory.dirty)),
        tuple(memory.residues.values()),
    )


def restored(
    state: StoredLives, out: Outbox, time: VirtualTime, closed: Iterable[ClosedEntry]
) -> Lives:
    """Raises PartitionRefused where the snapshot and the closed log do not fit together."""
    rules = {sha: Rules.from_content(sha, content) for sha, content in state.settings.items()}
    lives = Lives(out, time, _rules(out.partition, rules, state.rules))
    lives.deltas = DeltaAccumulator.from_state(state.deltas)
    lives.revisions_at, lives.deltas_at = state.revisions_at, state.deltas_at
    timers = lives.timers
    if lives.revisions_at is not None:
        timers.push(lives.revisions_at, FLUSH, REVISIONS)
    if lives.deltas_at is not None:
        timers.push(lives.deltas_at, FLUSH, DELTAS)
    memory = lives.memory
    memory.number = state.number
    memory.births = state.births
    in_memory = _clean(out.partition, state, time.vt, closed, rules)
    for one in state.dirty:
        life = _life(out.partition, rules, one.state, list(one.fragments), one.stored)
        in_memory[life.trace_id, life.birth] = life
        memory.dirty.add(life.nth)
    for life in sorted(in_memory.values(), key=lambda life: life.number):
        memory.add_closed(life)
        timers.push(life.deadline, EVICTION, life.nth)
    for one in state.opened:
        life = _life(out.partition, rules, one.state, list(one.fragments), one.stored)
        memory.add_open(life)
        timers.push(life.scheduled, CLOSING, life.nth)
    for residue in state.residues:
        memory.add_residue(residue)
        timers.push(residue.deadline, EVICTION, residue.nth)
    return lives


def _clean(
    partition: int,
    state: StoredLives,
    vt: int,
    closed: Iterable[ClosedEntry],
    rules: dict[str, Rules],
) -> dict[tuple[str, int], Life]:
    """The closed lives in memory, put together from their entries; those of the snapshot override them."""
    last: dict[tuple[str, int], ClosedEntry] = {}
    fragments: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for entry in closed:
        key = (entry.trace_id, entry.life)
        last[key] = entry
        fragments.setdefault(key, []).extend(entry.fragments)
    overridden = {(one.state.trace_id, one.state.birth) for one in state.dirty}
    lives = {}
    for key, entry in last.items():
        if entry.deadline_vt <= vt or entry.number < state.lowest_number or key in overridden:
            continue
        if len(fragments[key]) != entry.state.fragments:
            raise PartitionRefused(
                f"closed log of partition {partition} holds {len(fragments[key])} fragments of life "
                f"{entry.life} of trace {entry.trace_id}, its last entry names {entry.state.fragments}: {_CURE}"
            )
        lives[key] = _life(partition, rules, entry.state, fragments[key], len(fragments[key]))
    return lives


def _store(life: Life) -> _StoredLife:
    return _StoredLife(life.state(), life.stored, tuple(life.fragments))


def _life(
    partition: int,
    rules: dict[str, Rules],
    state: LifeState,
    fragments: list[tuple[int, bytes]],
    stored: int,
) -> Life:
    return Life.from_state(state, _rules(partition, rules, state.settings), fragments, stored)


def _rules(partition: int, rules: dict[str, Rules], sha256: str) -> Rules:
    found = rules.get(sha256)
    if found is None:
        raise PartitionRefused(
            f"partition {partition}: the snapshot does not hold settings {sha256[:12]}, which a life in memory "
            f"was born under: {_CURE}"
        )
    return found


def _versions(snapshot: bytes) -> _Versions:
    try:
        return _VERSIONS.decode(snapshot)
    except _DECODER_ERRORS as error:
        raise UndecodableRecord(f"{len(snapshot)} bytes are no snapshot: {error}") from error
