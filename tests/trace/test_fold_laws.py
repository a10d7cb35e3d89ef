"""Laws of the fold, over random logs: what a cut, a tick, a batch or a fragment's boundary must not change.

The logs hold what breaks such things: a constant trace id, ids used again after their memory is gone, late
spans on either side of every deadline, settings changes, gates, faults, broken records, budgets that are reached all the time,
and a clock that steps an hour ahead or ten seconds back.
"""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.codec import decode_fold_record, encode_fold_record
from monitor.model import (
    EVALUATOR,
    MEMBER,
    PLAIN,
    Fragment,
    GateRecord,
    OrphanFault,
    Score,
    Source,
    Span,
    SpanDetail,
    SpanFault,
    SpanScore,
    Tick,
)
from monitor.policy.rules import Policy, Step
from monitor.trace.closed import ClosedEntry, decode_closed, encode_closed
from monitor.trace.config import FoldSettings, Lifecycle, ScorerRule
from monitor.trace.fold import PartitionFold
from tests.trace.folding import START, json_of, settings_record, tid
from tests.trace.truth import sid, tokens

POLICY = Policy(
    "read then send",
    "compositional_exfiltration",
    steps=(
        Step("read", tags=("private_read",)),
        Step("send", tags=("egress",), flow_from=("read",)),
    ),
)
LIFECYCLE = Lifecycle(
    root_grace_ms=2_000,
    idle_ms=3_000,
    max_lifetime_ms=9_000,
    max_spans=7,
    late_window_ms=6_000,
    revision_flush_ms=1_000,
    delta_flush_ms=2_500,
    drift_window_ms=10_000,
)
ROOMY = FoldSettings(
    lifecycle=LIFECYCLE,
    policies=(POLICY,),
    scorers={"judge": ScorerRule("per_unit:pii", independent=True)},
)
# Budgets of a handful of spans, reached again and again.
TIGHT = FoldSettings(
    lifecycle=msgspec.structs.replace(LIFECYCLE, open_bytes=12_000, closed_bytes=20_000),
    policies=(POLICY,),
)
STRICT = FoldSettings(
    lifecycle=msgspec.structs.replace(
        LIFECYCLE, idle_ms=1_000, late_window_ms=3_000, open_bytes=5_000, closed_bytes=8_000
    ),
    thresholds={"tool_call": 0.2},
    redelivery="reject",
)
SETTINGS = (ROOMY, TIGHT, STRICT)

# Milliseconds between two records: on either side of every deadline above, and the steps of a broken clock.
GAPS = (
    *(0, 0, 0, 1, 5, 100, 400, 999, 1_000, 1_001, 1_999, 2_000, 2_001, 2_999, 3_000, 3_001),
    *(4_999, 5_000, 5_001, 6_000, 8_000, -10_000, -3_600, 3_600_000),
)
SEEDS = st.integers(0, 2**40)
TRACES = (tid("constant"), tid("a"), tid("b"))
VALUES = (0.0, 0.05, 0.25, 0.29, 0.3, 0.5, 0.79, 0.8, 0.95, 1.0)
IDS = tuple(map(sid, range(6)))


@dataclasses.dataclass(frozen=True)
class Entry:
    """A record of the log: milliseconds after the one before it; not ``stamped``: of another time type."""

    gap: int
    raw: bytes
    stamped: bool = True


def _good_span(n: int) -> Span:
    """Of a good tree of six: its root is a planner, its steps alternate."""
    tags = (("private_read",), ("egress",), ())[n % 3]
    return Span(
        span_id=IDS[n],
        role=("planner", "tool_call", "retrieval", "tool_call")[n % 4],
        scores=(Score("judge", "1", (0.25, 0.1, 0.5, 0.29, 0.0, 0.9)[n]),),
        parent_span_id=IDS[(n - 1) // 2] if n else None,
        service="agents",
        model_version="m1",
        start_unix_nano=10 * n + 10,
        end_unix_nano=100,
        content_hash=bytes([n]) * 16,
        source=Source("agent-spans", 1, n, 0, START),
        detail=SpanDetail(
            tags=tags, argument_tokens=tokens("secret"), result_tokens=tokens("secret")
        ),
    )


GOOD = tuple(map(_good_span, range(6)))


def a_span(rng: Random) -> Span:
    """Mostly one of a good tree, so that copies are re-deliveries; else something else."""
    if rng.random() < 0.8:
        return rng.choice(GOOD)
    tags = rng.choice([(), (), ("private_read",), ("egress",)])
    return Span(
        span_id=rng.choice(IDS),
        role=rng.choice(["planner", "retrieval", "tool_call"]),
        scores=tuple(
            Score(rng.choice(["judge", "other"]), rng.choice("12"), rng.choice(VALUES))
            for _ in range(rng.randrange(3))
        ),
        parent_span_id=rng.choice([None, *IDS]),
        service=rng.choice(["agents", "tools"]),
        model_version=rng.choice(["m1", "unknown"]),
        start_unix_nano=rng.choice([0, 10, 20]),
        end_unix_nano=rng.choice([0, 30]),
        kind=rng.choice([MEMBER, MEMBER, MEMBER, EVALUATOR, PLAIN]),
        content_hash=rng.choice([b"a" * 16, b"b" * 16]),
        source=Source("agent-spans", 1, rng.randrange(10), 0, START),
        detail=SpanDetail(
            tags=tags,
            argument_tokens=rng.choice([None, tokens("secret"), tokens("x")]),
            result_tokens=tokens("secret"),
        )
        if tags
        else None,
    )


def a_fragment(rng: Random) -> Fragment:
    def score() -> Score:
        return Score("judge", "1", rng.choice(VALUES))

    return Fragment(
        rng.choice(TRACES),
        tuple(a_span(rng) for _ in range(rng.randrange(5))),
        tuple(
            SpanScore(rng.choice(IDS), score(), "agents", "retrieval")
            for _ in range(rng.choice([0, 0, 1, 2]))
        ),
        tuple(
            SpanFault("missing_id", "span_id", "agents", "tool_call", scores=(score(),))
            for _ in range(rng.choice([0] * 12 + [1]))
        ),
    )


def a_record(rng: Random) -> bytes:
    kind = rng.choice(["tick", "tick", "settings", "gate", "orphan", "broken", *["fragment"] * 18])
    match kind:
        case "fragment":
            return encode_fold_record(a_fragment(rng))
        case "settings":
            rank = (0, rng.randint(1, 4))
            return encode_fold_record(settings_record(rng.choice(SETTINGS), rank))
        case "gate":
            state = rng.choice(["stationary", "shifted"])
            return encode_fold_record(GateRecord("agents", "judge", state, 0, rng.randrange(6)))
        case "orphan":
            scores = (Score("judge", "1", rng.choice(VALUES)),)
            fault = SpanFault("malformed_id", "trace_id", role="tool_call", scores=scores)
            return encode_fold_record(OrphanFault("e" * 32, fault))
        case "broken":
            return b"\xc1"
    return encode_fold_record(Tick())


def an_entry(seed: int) -> Entry:
    rng = Random(seed)
    return Entry(rng.choice(GAPS), a_record(rng), rng.random() < 0.95)


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Begins with settings, after up to two records that must wait for them. One draw an entry, so that a
    failing log shrinks by leaving entries out."""
    body = [an_entry(seed) for seed in draw(st.lists(SEEDS, min_size=1, max_size=60))]
    first = Entry(0, encode_fold_record(settings_record(draw(st.sampled_from(SETTINGS)))))
    body.insert(draw(st.integers(0, min(2, len(body)))), first)
    # Time enough at the end for everything to leave.
    return body + [Entry(5_000, encode_fold_record(Tick()))] * 6


@dataclasses.dataclass
class Run:
    fold: PartitionFold
    records: list[Any] = dataclasses.field(default_factory=list)
    closed: list[ClosedEntry] = dataclasses.field(default_factory=list)
    settings: list[Any] = dataclasses.field(default_factory=list)

    def drain(self) -> None:
        output = self.fold.drain()
        self.records += output.records
        self.closed += output.closed
        self.settings += output.settings

    def restart(self) -> None:
        """Snapshot and closed log through their bytes into a new fold."""
        self.drain()
        entries = [decode_closed(encode_closed(entry)) for entry in self.closed]
        self.fold = PartitionFold.restore(self.fold.partition, self.fold.snapshot(), entries)


def run(log: list[Entry], *, restart_at: frozenset[int] = frozenset(), drain_every: int = 1) -> Run:
    done = Run(PartitionFold(2))
    now = START
    for offset, entry in enumerate(log):
        if offset in restart_at:
            done.restart()
        now += entry.gap if entry.stamped else 0
        done.fold.apply(offset, now if entry.stamped else None, entry.raw)
        if offset % drain_every == 0:
            done.drain()
    done.drain()
    return done


def comparable(run: Run, original: list[int]) -> list[Any]:
    """What was published, offsets by their place in the original log and ids made of them taken out.

    ``original[offset]`` is the original place of the record at ``offset``.
    """
    return [_comparable(json_of(record), original) for record in run.records]


def _comparable(value: Any, original: list[int]) -> Any:
    if isinstance(value, list):
        return [_comparable(item, original) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {}
    for key, item in value.items():
        if key in ("incident_id", "digest", "fragment_digests"):
            continue
        if key in ("life", "causing_offset", "continues") and item is not None:
            item = original[item]
        elif key == "fragment_offsets":
            item = sorted({original[offset] for offset in item})
        elif key == "source" and item[0] == "monitor.fragments":
            item = [*item[:2], original[item[2]], *item[3:]]
        else:
            item = _comparable(item, original)
        changed[key] = item
    return changed


def same(log: list[Entry]) -> list[int]:
    return list(range(len(log)))


@given(logs())
@settings(max_examples=150, deadline=None)
def test_the_same_log_gives_the_same_bytes(log: list[Entry]) -> None:
    first, second = run(log), run(log)
    assert [msgspec.json.encode(r) for r in first.records] == [
        msgspec.json.encode(r) for r in second.records
    ]
    assert [encode_closed(e) for e in first.closed] == [encode_closed(e) for e in second.closed]
    assert first.fold.snapshot() == second.fold.snapshot()


@given(logs(), st.sets(st.integers(0, 60), max_size=4))
@settings(max_examples=300, deadline=None)
def test_a_snapshot_at_any_cut_changes_nothing(log: list[Entry], cuts: set[int]) -> None:
    whole, cut = run(log), run(log, restart_at=frozenset(cuts))
    assert cut.records == whole.records
    assert cut.closed == whole.closed
    assert cut.settings == whole.settings
    assert cut.fold.snapshot() == whole.fold.snapshot()


@given(logs(), st.integers(0, 60), st.integers(0, 30))
@settings(max_examples=300, deadline=None)
def test_recovery_from_an_older_snapshot_changes_nothing(
    log: list[Entry], at: int, replayed: int
) -> None:
    """As the shell does it: of the closed log only the range [cf, ce) as it stood at the snapshot, then the
    records since then in silence."""
    at = min(at, len(log) - 1)
    committed = min(at + replayed, len(log))
    stamps, now = [], START
    for entry in log:
        now += entry.gap if entry.stamped else 0
        stamps.append(now if entry.stamped else None)
    before = Run(PartitionFold(2))
    for offset in range(at):
        before.fold.apply(offset, stamps[offset], log[offset].raw)
    before.drain()
    snapshot = before.fold.snapshot()
    first = len(before.closed)
    for place, closed in reversed(list(enumerate(before.closed))):
        if before.fold.in_closed_memory((closed.trace_id, closed.life)):
            first = place
    after = Run(PartitionFold.restore(2, snapshot, before.closed[first:]))
    for offset in range(at, committed):
        after.fold.apply(offset, stamps[offset], log[offset].raw)
    after.fold.drain()
    for offset in range(committed, len(log)):
        after.fold.apply(offset, stamps[offset], log[offset].raw)
    after.drain()
    whole = run(log)
    silent = run(log[:committed])
    assert after.records == whole.records[len(silent.records) :]
    assert after.closed == whole.closed[len(silent.closed) :]
    assert after.fold.snapshot() == whole.fold.snapshot()


@given(logs(), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_batches_change_nothing(log: list[Entry], drain_every: int) -> None:
    assert run(log, drain_every=drain_every).records == run(log).records


@given(logs(), SEEDS)
@settings(max_examples=300, deadline=None)
def test_extra_ticks_change_nothing_but_offsets(log: list[Entry], seed: int) -> None:
    """A tick in a step that counts whole: one inside a step over 5 s would let time pass that does not, and one
    before the first stamped record would be the first, at which time begins."""
    rng = Random(seed)
    tick = encode_fold_record(Tick())
    begun = False
    ticked: list[Entry] = []
    original: list[int] = []
    for place, entry in enumerate(log):
        gap = entry.gap
        if begun and 0 <= gap <= 5_000 and entry.stamped:
            early = rng.choice([0, gap, rng.randint(0, gap)])
            ticked.append(Entry(early, tick))
            original.append(-1)
            entry = dataclasses.replace(entry, gap=gap - early)
        begun = begun or entry.stamped
        ticked.append(entry)
        original.append(place)
    assert comparable(run(ticked), original) == comparable(run(log), same(log))


@given(logs(), SEEDS)
@settings(max_examples=300, deadline=None)
def test_splitting_fragments_changes_nothing_but_offsets(log: list[Entry], seed: int) -> None:
    rng = Random(seed)
    pieces: list[Entry] = []
    original: list[int] = []
    for place, entry in enumerate(log):
        for n, piece in enumerate(_split(entry, rng)):
            pieces.append(piece if n == 0 else dataclasses.replace(piece, gap=0))
            original.append(place)
    assert comparable(run(pieces), original) == comparable(run(log), same(log))


def _split(entry: Entry, rng: Random) -> list[Entry]:
    if entry.raw == b"\xc1":
        return [entry]
    record = decode_fold_record(entry.raw)
    if not isinstance(record, Fragment):
        return [entry]
    items = (
        [Fragment(record.trace_id, (span,)) for span in record.spans]
        + [Fragment(record.trace_id, (), (score,)) for score in record.scores]
        + [Fragment(record.trace_id, (), (), (fault,)) for fault in record.faults]
    )
    if len(items) < 2:
        return [entry]
    groups: list[Fragment] = []
    for item in items:
        if groups and rng.random() < 0.5:
            last = groups[-1]
            groups[-1] = Fragment(
                record.trace_id,
                last.spans + item.spans,
                last.scores + item.scores,
                last.faults + item.faults,
            )
        else:
            groups.append(item)
    return [dataclasses.replace(entry, raw=encode_fold_record(group)) for group in groups]


@given(logs())
@settings(max_examples=100, deadline=None)
def test_memory_adds_up_and_is_empty_in_the_end(log: list[Entry]) -> None:
    done = Run(PartitionFold(2))
    now = START
    for offset, entry in enumerate(log):
        now += entry.gap if entry.stamped else 0
        done.fold.apply(offset, now if entry.stamped else None, entry.raw)
        lives = done.fold._lives
        if lives is None:
            continue
        memory = lives.memory
        assert memory.bytes_open == sum(life.bytes for life in memory.opened.values())
        assert memory.bytes_closed == sum(life.bytes for life in memory.closed.values())
        assert memory.bytes_residues == sum(r.bytes for r in memory.residues.values())
        assert memory.bytes_open <= lives.rules.open_budget
        assert memory.bytes_closed <= lives.rules.closed_budget or len(memory.closed) == 1
        assert memory.bytes_residues <= lives.rules.residue_budget
        numbers = [life.number for life in memory.closed.values()]
        assert numbers == sorted(numbers)
    for offset in range(len(log), len(log) + 40):
        now += 1_000
        done.fold.apply(offset, now, encode_fold_record(Tick()))
    assert done.fold.empty
    done.drain()
    numbers = [entry.number for entry in done.closed]
    assert numbers == list(range(len(numbers)))
