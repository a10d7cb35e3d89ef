"""The state of a fold as bytes, and back.

A snapshot holds all but clean closed lives; those lie in the closed log. It is small, and with the closed
log and the records since it gives the very same fold again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from monitor.drift.delta import DeltaAccumulator, ScoreDelta
from monitor.errors import PartitionRefused, UndecodableRecord
from monitor.trace.closed import ClosedEntry
from monitor.trace.life import Life, LifeState
from monitor.trace.records import FOLD_VERSION
from monitor.trace.residue import Residue
from monitor.trace.rules import Rules
from monitor.trace.timers import CLOSING, DELTAS, EVICTION, FLUSH, REVISIONS, VirtualTime

if TYPE_CHECKING:
    from monitor.trace.fold import PartitionFold

SCHEMA_VERSION: Final = 1  # of this file's structs; another one is refused

_CURE: Final = "run `monitor topics reset-partition` for it"


class _StoredLife(msgspec.Struct, frozen=True, array_like=True):
    state: LifeState
    stored: int  # of the fragments, how many lie in the closed log
    fragments: tuple[tuple[int, bytes], ...]


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
    rules: str | None  # sha256 of the settings in force
    rank: tuple[int, int]
    settings: dict[str, bytes]  # in force, and those that lives in memory were born under
    gates: tuple[_Gate, ...]
    held: tuple[tuple[int, bytes], ...]
    revisions_at: int | None
    deltas_at: int | None
    deltas: list[ScoreDelta]
    number: int
    lowest_number: int
    births: int
    opened: tuple[_StoredLife, ...]
    dirty: tuple[_StoredLife, ...]
    residues: tuple[Residue, ...]
    counters: dict[str, int]


class _Versions(msgspec.Struct, frozen=True, array_like=True):
    schema_version: int
    fold_version: int


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Snapshot)
_VERSIONS: Final = msgspec.msgpack.Decoder(_Versions)
_DECODER_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def snapshot_fold_version(snapshot: bytes) -> int:
    """The fold version that wrote it: a new one may start from it only if it stands at the commit.
    Raises UndecodableRecord."""
    try:
        return _VERSIONS.decode(snapshot).fold_version
    except _DECODER_ERRORS as error:
        raise UndecodableRecord(f"{len(snapshot)} bytes are no snapshot: {error}") from error


def take_snapshot(fold: PartitionFold) -> bytes:
    memory = fold.memory
    rules: dict[str, Rules] = {} if fold.rules is None else {fold.rules.sha256: fold.rules}
    for lives in (memory.opened, memory.closed):
        for life in lives.values():
            rules.setdefault(life.rules.sha256, life.rules)
    return _ENCODER.encode(
        _Snapshot(
            schema_version=SCHEMA_VERSION,
            fold_version=FOLD_VERSION,
            partition=fold.partition,
            vt=fold.time.vt,
            last_ts=fold.time.last_ts,
            rules=fold.settings_sha,
            rank=fold.rank,
            settings={sha: rules[sha].content for sha in sorted(rules)},
            gates=tuple(
                _Gate(*key, fold.gates[key], fold.gate_offsets[key]) for key in sorted(fold.gates)
            ),
            held=tuple(fold.held),
            revisions_at=fold.revisions_at,
            deltas_at=fold.deltas_at,
            deltas=fold.deltas.state(),
            number=memory.number,
            lowest_number=memory.lowest_number,
            births=memory.births,
            opened=tuple(_store(life) for life in memory.opened.values()),
            dirty=tuple(_store(memory.closed[nth]) for nth in sorted(memory.dirty)),
            residues=tuple(memory.residues.values()),
            counters=dict(sorted(fold.counters.items())),
        )
    )


def _store(life: Life) -> _StoredLife:
    return _StoredLife(life.state(), life.stored, tuple(life.fragments))


def restore_snapshot(fold: PartitionFold, snapshot: bytes, closed: Iterable[ClosedEntry]) -> None:
    """Put the state into a new fold. Raises PartitionRefused, UndecodableRecord."""
    partition = fold.partition
    _check_schema(partition, snapshot)
    try:
        stored = _DECODER.decode(snapshot)
    except _DECODER_ERRORS as error:
        raise UndecodableRecord(
            f"snapshot of partition {partition} does not decode: {error}"
        ) from error
    if stored.partition != partition:
        raise PartitionRefused(
            f"snapshot of partition {stored.partition} found for partition {partition}: {_CURE}"
        )
    rules = {sha: Rules.from_content(sha, content) for sha, content in stored.settings.items()}
    fold.time = VirtualTime(stored.vt, stored.last_ts)
    fold.now = stored.vt
    fold.rules = None if stored.rules is None else rules[stored.rules]
    fold.rank = stored.rank
    fold.gates = {(g.service, g.scorer): g.state for g in stored.gates}
    fold.gate_offsets = {(g.service, g.scorer): g.source_offset for g in stored.gates}
    fold.held = list(stored.held)
    fold.deltas = DeltaAccumulator.from_state(stored.deltas)
    fold.counters = dict(stored.counters)
    fold.revisions_at, fold.deltas_at = stored.revisions_at, stored.deltas_at
    timers = fold.timers
    if fold.revisions_at is not None:
        timers.push(fold.revisions_at, FLUSH, REVISIONS)
    if fold.deltas_at is not None:
        timers.push(fold.deltas_at, FLUSH, DELTAS)
    memory = fold.memory
    memory.number = stored.number
    memory.births = stored.births
    in_memory = _clean(partition, stored, closed, rules)
    for one in stored.dirty:
        life = Life.from_state(
            one.state, _rules(partition, rules, one.state), list(one.fragments), one.stored
        )
        in_memory[life.trace_id, life.birth] = life
        memory.dirty.add(life.nth)
    for life in sorted(in_memory.values(), key=lambda life: life.number):
        memory.add_closed(life)
        timers.push(life.deadline, EVICTION, life.nth)
    for one in stored.opened:
        life = Life.from_state(
            one.state, _rules(partition, rules, one.state), list(one.fragments), one.stored
        )
        memory.add_open(life)
        timers.push(life.scheduled, CLOSING, life.nth)
    for residue in stored.residues:
        memory.add_residue(residue)
        timers.push(residue.deadline, EVICTION, residue.nth)


def _clean(
    partition: int,
    stored: _Snapshot,
    closed: Iterable[ClosedEntry],
    rules: dict[str, Rules],
) -> dict[tuple[str, int], Life]:
    """The closed lives in memory, put together from their entries."""
    last: dict[tuple[str, int], ClosedEntry] = {}
    fragments: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for entry in closed:
        key = (entry.trace_id, entry.life)
        last[key] = entry
        fragments.setdefault(key, []).extend(entry.fragments)
    overridden = {(one.state.trace_id, one.state.birth) for one in stored.dirty}
    lives = {}
    for key, entry in last.items():
        if (
            entry.deadline_vt <= stored.vt
            or entry.number < stored.lowest_number
            or key in overridden
        ):
            continue
        if len(fragments[key]) != entry.state.fragments:
            raise PartitionRefused(
                f"closed log of partition {partition} holds {len(fragments[key])} fragments of life "
                f"{entry.life} of trace {entry.trace_id}, its last entry names {entry.state.fragments}: {_CURE}"
            )
        lives[key] = Life.from_state(
            entry.state, _rules(partition, rules, entry.state), fragments[key], len(fragments[key])
        )
    return lives


def _rules(partition: int, rules: dict[str, Rules], state: LifeState) -> Rules:
    found = rules.get(state.settings)
    if found is None:
        raise PartitionRefused(
            f"partition {partition}: life {state.birth} of trace {state.trace_id} was born under settings "
            f"{state.settings[:12]}, which the snapshot does not hold: {_CURE}"
        )
    return found


def _check_schema(partition: int, snapshot: bytes) -> None:
    try:
        version = _VERSIONS.decode(snapshot).schema_version
    except _DECODER_ERRORS as error:
        raise UndecodableRecord(
            f"snapshot of partition {partition} does not decode: {error}"
        ) from error
    if version != SCHEMA_VERSION:
        raise PartitionRefused(
            f"snapshot of partition {partition} has schema {version}, this build reads {SCHEMA_VERSION}: start "
            f"the build that wrote it, or {_CURE}"
        )
