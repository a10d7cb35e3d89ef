"""Records that are no fragments: settings, gates, orphans, resets, and what cannot be read or judged."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from monitor.codec import encode_fold_record
from monitor.model import Fragment, GateRecord, ResetRecord, SettingsRecord, Tick, Verdict
from monitor.trace import conclude
from monitor.trace.config import FoldSettings, ScorerRule
from monitor.trace.fold import FOLD_VERSION, PartitionFold
from monitor.trace.judge import Judgement
from monitor.trace.life import Life
from tests.trace.folding import START, Log, scored, settings_of, settings_record, tid, unusable

DEFAULT = FoldSettings()
STRICT = FoldSettings(thresholds={"tool_call": 0.05})


def test_what_comes_before_the_first_settings_waits_in_order() -> None:
    log = Log(settings=None)
    assert log.fold.waiting_for_settings
    log.spans("a", scored(1, 0, 0.5), at=0)
    log.orphan(unusable(0.9), at=1)
    log.spans("a", scored(0), at=2)
    assert log.records == []
    assert not log.fold.empty
    out = log.put(settings_record(DEFAULT), at=3)
    assert [i.reason for i in out] == ["threshold", "identity"]
    assert not log.fold.waiting_for_settings
    log.until(12.9)
    assert log.verdicts == []
    log.until(13)  # the grace counts from the record that let them in
    assert [(v.life, v.span_count) for v in log.verdicts] == [(0, 2)]


@pytest.mark.parametrize(
    ("settings", "rank", "applied"),
    [
        (STRICT, (0, 2), True),
        (STRICT, (1, 0), True),  # MONITOR_SETTINGS_REVISION comes before the start time
        (STRICT, (0, 1), False),  # not higher
        (STRICT, (0, 0), False),
        (DEFAULT, (9, 9), False),  # does not differ
    ],
)
def test_settings_apply_only_if_they_differ_and_rank_higher(
    settings: FoldSettings, rank: tuple[int, int], applied: bool
) -> None:
    log = Log(DEFAULT)
    log.put(settings_record(settings, rank))
    assert (log.fold.settings_sha == STRICT.sha256) == applied
    assert [s.sha256 for s in log.settings] == [DEFAULT.sha256] + [STRICT.sha256] * applied
    assert log.fold.settings_rank == (rank if applied else (0, 1))


def test_a_roll_back_of_settings_holds() -> None:
    log = Log(DEFAULT)
    log.put(settings_record(STRICT, (0, 2)))
    log.put(settings_record(DEFAULT, (0, 3)))
    assert log.fold.settings_sha == DEFAULT.sha256


def test_a_life_is_judged_by_the_settings_of_its_birth() -> None:
    log = Log(DEFAULT)
    log.spans("old", scored(0, None, 0.1), at=0)
    log.put(settings_record(STRICT, (0, 2)))
    assert log.spans("old", scored(1, 0, 0.1)) == []
    [page] = log.spans("new", scored(0, None, 0.1))
    assert page.provenance.settings == STRICT.sha256
    log.until(10)
    assert [v.provenance.settings for v in log.verdicts] == [DEFAULT.sha256, STRICT.sha256]


def test_a_life_closes_by_the_times_of_its_birth() -> None:
    log = Log(DEFAULT)
    log.spans("old", scored(0), at=0)
    log.put(settings_record(settings_of(root_grace_ms=2_000), (0, 2)))
    log.spans("new", scored(0), at=0)
    log.until(9)
    assert [v.trace_id for v in log.verdicts] == [tid("new")]
    log.until(10)
    assert [v.trace_id for v in log.verdicts] == [tid("new"), tid("old")]


def test_settings_that_do_not_decode_are_a_dead_letter() -> None:
    log = Log(DEFAULT)
    log.put(SettingsRecord(FOLD_VERSION, (0, 9), "0" * 64, b'{"no_such": 1}'))
    assert log.fold.settings_sha == DEFAULT.sha256
    assert [d.reason for d in log.dead_letters] == ["undecodable_fragment"]


PER_UNIT = FoldSettings(scorers={"judge": ScorerRule("per_unit:pii", independent=True)})


def gate_said(log: Log) -> str:
    return log.verdicts[-1].provenance.gate["judge"]


def test_the_gate_in_force_at_closing_counts() -> None:
    log = Log(PER_UNIT)
    log.spans("a", scored(0), at=0)
    log.gate("stationary", 7)
    log.until(10)
    assert gate_said(log) == "stationary"
    assert log.verdicts[0].reductions[0].scalar is not None
    assert log.verdicts[0].reductions[0].scalar.alertable
    log.gate("shifted", 8)
    log.spans("a", scored(1, 0), at=11)
    log.until(15)  # a revision is judged by the gate of its closing
    assert log.verdicts[-1].revision == 2
    assert gate_said(log) == "stationary"
    log.spans("b", scored(0), at=16)
    log.until(26)
    assert gate_said(log) == "shifted"


def test_a_gate_applies_only_from_a_higher_offset_of_its_key() -> None:
    log = Log(PER_UNIT)
    log.gate("stationary", 7)
    log.gate("shifted", 7)
    log.gate("shifted", 3)
    log.gate("shifted", 1, scorer="other")
    assert log.fold.gates == {
        ("agents", "judge"): ("stationary", 7),
        ("agents", "other"): ("shifted", 1),
    }
    assert log.fold.counters["gates_passed_over"] == 2


def test_an_orphan_over_its_threshold_is_an_identity_incident_under_its_coordinates() -> None:
    log = Log()
    assert log.orphan(unusable(0.29)) == []
    [page] = log.orphan(unusable(0.31))
    assert (page.incident_id, page.reason, page.severity) == ("f" * 32, "identity", "critical")
    assert page.trace_id is None
    assert page.life is None
    assert page.forensics.status == "rejected"
    assert page.evidence[0].source.offset == 99
    [echo] = log.orphan(unusable(0.81, role="retrieval"))
    assert echo.severity == "warning"
    assert log.orphan(unusable(0.79, role="retrieval")) == []


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x91\x63", encode_fold_record(Tick())[:-1]])
def test_an_undecodable_record_is_counted_named_and_skipped(raw: bytes) -> None:
    log = Log()
    log.spans("a", scored(0), at=0)
    [letter] = log.put(raw, at=1)
    assert letter.reason == "undecodable_fragment"
    assert (letter.source.partition, letter.source.offset) == (3, 2)
    assert letter.source.timestamp_ms == START + 1_000
    assert letter.value is None
    assert log.fold.counters["undecodable"] == 1
    log.until(10)
    assert len(log.verdicts) == 1


def test_an_undecodable_record_passes_time() -> None:
    log = Log()
    log.spans("a", scored(0), at=0)
    log.until(9.5)
    verdict, letter = log.put(b"\xc1", at=10)
    assert isinstance(verdict, Verdict)
    assert letter.reason == "undecodable_fragment"


def test_a_reset_empties_the_state_and_says_what_was_lost() -> None:
    log = Log()
    log.gate("stationary", 7)
    log.spans("a", scored(0), at=0)
    log.until(12)
    log.spans("b", scored(0, None, 0.2), at=12.5)
    reset = ResetRecord(settings_record(STRICT, (0, 0)), published_to=9)
    out = log.put(reset, at=13)
    [incident] = out
    assert (incident.reason, incident.policy, incident.severity) == (
        "fault",
        "state_lost",
        "critical",
    )
    assert incident.others["range"] == {"partition": 3, "from": 9, "to": log.offset}
    assert incident.opened_at_ms == START + 13_000
    assert (log.fold.vt, log.fold.last_ts) == (0, START + 13_000)
    assert log.fold.empty
    assert log.fold.gates == {}
    assert log.fold.settings_sha == STRICT.sha256


def test_a_reset_runs_no_timer_so_that_an_owner_may_begin_at_it() -> None:
    reset = encode_fold_record(ResetRecord(settings_record(DEFAULT), published_to=0))
    replayed, fresh = Log(), PartitionFold(3)
    replayed.spans("a", scored(0), at=0)
    out = replayed.put(reset, at=4)
    fresh.apply(replayed.offset, START + 4_000, reset)
    assert fresh.drain().records == out
    for at in (5, 10):
        replayed.put(Fragment(tid("b"), (scored(0),)), at=at)
        fresh.apply(
            replayed.offset,
            START + at * 1_000,
            encode_fold_record(Fragment(tid("b"), (scored(0),))),
        )
    assert fresh.vt == replayed.fold.vt


@pytest.fixture
def judging_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(life: Life, gates: Mapping[tuple[str, str], str]) -> Judgement:
        if life.trace_id == tid("bad"):
            raise ZeroDivisionError("of this trace only")
        return real(life, gates)

    real = conclude.judge_life
    monkeypatch.setattr(conclude, "judge_life", explode)


@pytest.mark.usefixtures("judging_fails")
def test_a_life_that_cannot_be_judged_stops_nobody_and_silences_nothing() -> None:
    log = Log()
    log.spans("bad", scored(0), scored(1, 0, 0.9), at=0)
    log.spans("good", scored(0), at=0)
    log.until(10)
    assert log.fold.counters["judge_errors"] == 1
    bad, good = log.verdicts
    assert (good.trace_id, good.forensics.status) == (tid("good"), "complete")
    assert bad.forensics.status == "rejected"
    assert [f.kind for f in bad.forensics.faults] == ["judge_error"]
    assert bad.reductions == ()
    threshold, fault = log.incidents[-2:]
    assert (threshold.reason, threshold.revision, threshold.max_score) == ("threshold", 2, 0.9)
    assert threshold.forensics.status == "rejected"
    assert (fault.reason, fault.policy, fault.severity) == ("fault", "judge_error", "critical")
    assert log.restored().snapshot() == log.fold.snapshot()


@pytest.mark.usefixtures("judging_fails")
def test_a_life_that_cannot_be_judged_enters_no_sums() -> None:
    log = Log()
    log.spans("bad", scored(0), at=0)
    log.until(61)
    assert log.deltas == []


def test_nothing_here_raises_for_a_gate_before_settings() -> None:
    log = Log(settings=None)
    log.put(GateRecord("agents", "judge", "stationary", 0, 3))
    log.spans("a", scored(0), at=0)
    log.put(settings_record(PER_UNIT))
    log.until(10)
    assert gate_said(log) == "stationary"


def test_lifecycle_times_are_at_least_a_millisecond() -> None:
    """A timer due the moment it is set would make the output depend on where a record ends."""
    zero = msgspec.structs.replace(
        DEFAULT.lifecycle, root_grace_ms=0, idle_ms=0, late_window_ms=0, revision_flush_ms=0
    )
    log = Log(FoldSettings(lifecycle=zero))
    log.spans("a", scored(0), at=0)
    log.spans("a", scored(1, 0), at=0)
    log.until(1)
    assert [v.span_count for v in log.verdicts] == [2]
