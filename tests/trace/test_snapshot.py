"""Snapshots and the closed log: what lies where, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from monitor.errors import PartitionRefused, UndecodableRecord
from monitor.model import Fragment, Score, SpanDetail
from monitor.trace.closed import decode_closed, encode_closed
from monitor.trace.fold import FOLD_VERSION, PartitionFold
from monitor.trace.snapshot import SCHEMA_VERSION, snapshot_fold_version
from tests.trace.folding import Log, late_score, scored, settings_of, settings_record, tid
from tests.trace.truth import sid, tokens


def busy_log() -> Log:
    """Open, clean closed and dirty closed lives, a score alone, a page, sums that are not flushed."""
    log = Log()
    log.gate("stationary", 7)
    log.spans("clean", scored(0), at=0)
    log.spans("dirty", scored(0), at=0)
    log.until(10)
    log.put(settings_record(settings_of(idle_ms=9_000), (0, 2)))
    log.spans("dirty", scored(1, 0, 0.9), at=11)
    log.spans("open", scored(1, 0, 0.6), at=11.5)
    log.scores("open", late_score("absent", 0.9))
    return log


def test_a_snapshot_holds_all_but_clean_closed_lives() -> None:
    log = busy_log()
    alone = PartitionFold.restore(3, log.fold.snapshot(), [])
    assert (alone.open_lives, alone.closed_lives) == (1, 1)
    assert log.fold.closed_lives == 2
    assert log.restored().closed_lives == 2


def test_a_restored_fold_goes_on_as_if_nothing_had_happened() -> None:
    log = busy_log()
    other = Log(settings=None)
    other.fold, other.offset, other.at = log.restored(), log.offset, log.at
    seen = len(log.records)
    for one in (log, other):
        one.scores("clean", late_score(0, 0.95), at=12)
        one.spans("open", scored(0), at=13)
        one.until(90)
    assert len(other.records) > 5
    assert other.records == log.records[seen:]
    assert other.fold.snapshot() == log.fold.snapshot()
    assert other.fold.counters == log.fold.counters


def test_a_restored_fold_knows_the_same() -> None:
    fold, back = busy_log().fold, busy_log().restored()
    for name in (
        "vt",
        "last_ts",
        "empty",
        "open_lives",
        "closed_lives",
        "bytes_open",
        "bytes_closed",
        "settings_sha",
        "settings_rank",
        "waiting_for_settings",
        "gates",
        "counters",
    ):
        assert getattr(back, name) == getattr(fold, name), name
    assert back.in_closed_memory((tid("clean"), 2))
    assert not back.in_closed_memory((tid("open"), 99))


def test_lives_of_the_closed_log_that_are_past_their_deadline_stay_away() -> None:
    log = Log(settings_of(root_grace_ms=1_000, late_window_ms=2_000))
    log.spans("a", scored(0), at=0)
    log.until(2.5)
    assert log.restored().closed_lives == 1
    log.until(3)
    assert log.restored().closed_lives == 0


def test_a_late_span_after_a_restore_is_no_phantom_trace() -> None:
    log = Log()
    log.spans("a", scored(1, 0), scored(0), at=0)
    log.until(12)
    fold = log.restored()
    log.fold = fold
    log.spans("a", scored(2, 0), at=13)
    log.until(15)
    assert [(v.life, v.revision, v.span_count) for v in log.verdicts] == [(1, 1, 2), (1, 2, 3)]


def test_an_empty_fold_has_a_snapshot() -> None:
    back = PartitionFold.restore(5, PartitionFold(5).snapshot(), [])
    assert back.empty
    assert back.waiting_for_settings
    assert (back.vt, back.last_ts) == (0, None)


def test_what_waits_for_settings_is_in_the_snapshot() -> None:
    log = Log(settings=None)
    log.spans("a", scored(0, None, 0.9), at=0)
    log.fold = log.restored()
    assert not log.fold.empty
    assert len(log.put(settings_record(settings_of()))) == 1


def test_the_fold_version_can_be_read_alone() -> None:
    assert snapshot_fold_version(busy_log().fold.snapshot()) == FOLD_VERSION
    with pytest.raises(UndecodableRecord):
        snapshot_fold_version(b"\xc1")


def test_a_snapshot_of_another_partition_or_schema_is_refused() -> None:
    snapshot = busy_log().fold.snapshot()
    with pytest.raises(PartitionRefused, match="partition 3 found for partition 4"):
        PartitionFold.restore(4, snapshot, [])
    other = msgspec.msgpack.encode([SCHEMA_VERSION + 1, *msgspec.msgpack.decode(snapshot)[1:]])
    with pytest.raises(PartitionRefused, match="reset-partition"):
        PartitionFold.restore(3, other, [])
    with pytest.raises(UndecodableRecord):
        PartitionFold.restore(3, snapshot[:-1], [])


def test_a_closed_log_with_a_hole_is_refused() -> None:
    log = Log()
    log.spans("a", scored(0), at=0)
    log.until(11)
    log.spans("a", scored(1, 0), at=12)
    log.until(15)
    assert len(log.closed) == 2
    with pytest.raises(PartitionRefused, match="holds 1 fragments"):
        PartitionFold.restore(3, log.fold.snapshot(), log.closed[1:])


def test_an_entry_of_the_closed_log_survives_its_bytes() -> None:
    log = busy_log()
    for entry in log.closed:
        assert decode_closed(encode_closed(entry)) == entry
    with pytest.raises(UndecodableRecord):
        decode_closed(b"\x00")


def test_an_entry_does_not_change_with_its_life() -> None:
    """The shell may encode it any time later."""
    log = Log()
    log.spans("a", scored(0), scored(1, 0, 0.5), at=0)
    log.until(10)
    before = encode_closed(log.closed[0])
    log.spans("a", scored(2, 0, 0.9), at=11)
    log.until(15)
    assert encode_closed(log.closed[0]) == before


def test_a_life_of_10000_spans_with_64_tokens_each() -> None:
    value = tokens(*(str(n) for n in range(64)))
    log = Log()
    spans = [
        scored(n, n // 2 if n else None, 0.1, detail=SpanDetail(argument_tokens=value))
        for n in range(10_000)
    ]
    for start in range(0, 10_000, 200):
        log.spans("a", *spans[start : start + 200], at=start / 1_000)
    [verdict] = log.verdicts
    assert (verdict.closed_by, verdict.span_count, verdict.forensics.status) == (
        "max_spans",
        10_000,
        "complete",
    )
    assert 6_000_000 < len(encode_closed(log.closed[0])) < 10_000_000
    log.spans("a", scored(1, 0, None), at=10.5)  # past max_spans: not kept
    back = log.restored()
    assert (back.closed_lives, back.bytes_closed) == (1, log.fold.bytes_closed)
    [page] = log.scores("a", late_score(9_999, 0.9), at=11)
    assert page.argmax_span_id == sid(9_999)


def test_scores_of_one_scorer_version_on_one_span_reach_the_sums_once() -> None:
    log = Log()
    twice = msgspec.structs.replace(
        scored(0), scores=(Score("judge", "1", 0.1), Score("judge", "1", 0.2))
    )
    log.put(Fragment(tid("a"), (twice,)), at=0)
    log.until(60)
    [entry] = log.deltas[0].entries
    assert entry.bins == (200,)
