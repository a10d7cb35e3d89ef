"""The engine's tables: exact sums whatever is late, retracted, redelivered, lost in a crash or merged away."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.drift.delta import BaselineControl, DeltaAccumulator, decode_message, encode_message
from monitor.drift.engine import DriftEngine
from monitor.drift.ledger import decode_ledger
from monitor.drift.settings import DriftSettings
from monitor.drift.state import State
from monitor.drift.sums import Sums, merge, sums_by_window
from monitor.drift.values import decode_total, decode_window, ledger_key
from monitor.errors import UndecodableRecord
from tests.drift.traffic import Run, Table, log_of, trace

SMALL = DriftSettings(
    phi_windows=4, max_fences=7, min_reference=20, min_current=10, min_stratum=3, look_every=5
)
KEY = b"svc|guard"


def same(a: Sums, b: Sums) -> bool:
    """Equal in every integer, bins included."""
    assert a.bins is not None
    assert b.bins is not None
    return (
        a.rows.keys == b.rows.keys
        and np.array_equal(a.rows.data, b.rows.data)
        and a.tails.keys == b.tails.keys
        and np.array_equal(a.tails.data, b.tails.data)
        and a.mix.keys == b.mix.keys
        and np.array_equal(a.mix.data, b.mix.data)
        and np.array_equal(a.bins.at, b.bins.at)
        and np.array_equal(a.bins.weights, b.bins.weights)
        and np.array_equal(a.bins.counts, b.bins.counts)
    )


def state_of(engine: DriftEngine) -> State:
    return State(
        KEY, engine._windows, engine._totals, engine._tables["totals"].get(ledger_key(KEY))
    )


def expected(messages: list[bytes], version: tuple[str, str]) -> Sums:
    parts = [s for message in messages for s in sums_by_window(decode_message(message)).values()]
    return merge([s.of_version(*version) if version[0] else s.of_mix(version[1]) for s in parts])


def traffic(seed: int, windows: int = 24, per_window: int = 6, late: float = 0.2) -> list[bytes]:
    """A log with late parts and retractions, some of them many windows later; three versions."""
    rng = np.random.default_rng(seed)
    table = Table()
    messages, stored = [], []
    for window in range(windows):
        acc = DeltaAccumulator()
        for i in range(per_window):
            model = "m1" if window < windows // 2 or rng.random() < 0.2 else "m2"
            values = table.draw(rng, int(rng.integers(1, 9)))
            roles = {"planner": values, "tool_call": values[:2]} if i % 2 else {"planner": values}
            part = trace(
                roles, model=model, version="1" if rng.random() < 0.9 else "2", incident=i == 0
            )
            at = window if rng.random() > late else int(rng.integers(0, window + 1))
            acc.add(at, part, 1)
            stored.append((at, part))
            if rng.random() < late:
                back = stored.pop(int(rng.integers(0, len(stored))))
                acc.add(*back, -1)
            if i % 3 == 2:
                messages += [encode_message(d) for d in acc.flush()]
        messages += [encode_message(d) for d in acc.flush()]
    return messages


VERSIONS = [("1", "m1"), ("1", "m2"), ("2", "m1"), ("2", "m2"), ("", "m1"), ("", "m2")]


# 55, 82 and 91: late parts for windows that were dropped for age, of a version first seen late
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 55, 82, 91])
@pytest.mark.parametrize("options", [DriftSettings(), SMALL])
def test_sums_are_those_of_the_log(seed: int, options: DriftSettings) -> None:
    messages = traffic(seed, windows=40)
    run = Run(options).feed(messages)
    state = state_of(run.engine)
    for version in VERSIONS:
        sums, seen = state.sums(*version)
        assert same(sums, expected(messages, version))
        by_role: dict[str, int] = {}
        for key, row in zip(sums.rows.keys, sums.rows.data, strict=True):
            by_role[key[2]] = by_role.get(key[2], 0) + int(row[0])
        for role, n in by_role.items():
            assert seen[role][0] == n


def test_traffic_by_window_is_exact_with_late_parts_and_retractions() -> None:
    messages = traffic(9, windows=30)
    state = state_of(Run().feed(messages).engine)
    per_window: dict[int, int] = {}
    for message in messages:
        for window, sums in sums_by_window(decode_message(message)).items():
            mix = sums.of_mix("m1").mix.data
            per_window[window] = per_window.get(window, 0) + int(mix[:, 0].sum())
    _, seen = state.sums("", "m1")
    assert seen[""] == (sum(per_window.values()), sum(n * n for n in per_window.values()))


@pytest.mark.parametrize("seed", range(6))
def test_a_crash_between_any_two_writes_changes_nothing(seed: int) -> None:
    """Kill after any number of writes, redeliver some messages again: tables and reports as undisturbed."""
    rng = random.Random(seed)
    messages = traffic(seed)
    calm = Run(SMALL).feed(messages)
    windows: dict[bytes, bytes] = {}
    totals: dict[bytes, bytes] = {}
    said: dict[str, object] = {}
    committed = offset = crashes = 0
    while offset < len(messages):
        engine = DriftEngine(SMALL, windows, totals)
        offset = committed
        while offset < len(messages):
            plan = engine.plan(messages[offset], offset)
            for report in plan.outputs:
                assert said.setdefault(report.report_id, report) == report
            if rng.random() < 0.2 and crashes < 60:
                cut = rng.randint(0, len(plan.writes))
                plan.writes, plan.decoded = plan.writes[:cut], plan.decoded[:cut]
                engine.commit(plan)
                committed = max(committed, offset - rng.randint(0, 6))
                crashes += 1
                break
            engine.commit(plan)
            offset += 1
    assert crashes > 5
    assert windows == calm.windows
    assert totals == calm.totals
    assert list(said.values()) == calm.outputs


ROOMY = msgspec.structs.replace(SMALL, phi_windows=300, max_fences=1000)  # drops nothing for age


@pytest.mark.parametrize("options", [SMALL, ROOMY])
@pytest.mark.parametrize("seed", range(6))
def test_sums_survive_the_loss_of_any_writes_that_were_not_settled(
    seed: int, options: DriftSettings
) -> None:
    """The two changelogs need not become durable in order, and several folds can be lost together.

    Whatever was written since all was durable, a value comes back as it was at any moment since; the messages
    since then come again.
    """
    rng = random.Random(seed)
    messages = traffic(seed, windows=30)
    tables: dict[str, dict[bytes, bytes]] = {"windows": {}, "totals": {}}
    engine = DriftEngine(options, tables["windows"], tables["totals"])
    durable = 0  # messages before it need not come again
    # What may come back of each value, first what is durable.
    since: dict[tuple[str, bytes], list[bytes | None]] = {}
    losses = offset = 0
    while offset < len(messages):
        plan = engine.plan(messages[offset], offset)
        if plan.settle:
            durable = offset
            since.clear()
        for table, key, value in plan.writes:
            since.setdefault((table, key), [tables[table].get(key)]).append(value)
        engine.commit(plan)
        offset += 1
        if losses < 60 and rng.random() < 0.3:
            losses += 1
            for (table, key), values in since.items():
                back = values[max(0, len(values) - 1 - rng.choice((0, 0, 1, 2, 99)))]
                if back is None:
                    tables[table].pop(key, None)
                else:
                    tables[table][key] = back
            since.clear()
            engine = DriftEngine(options, tables["windows"], tables["totals"])
            offset = max(0, durable - rng.randint(0, 3))
    assert losses > 10
    state = state_of(DriftEngine(options, tables["windows"], tables["totals"]))
    for version in VERSIONS:
        assert same(state.sums(*version)[0], expected(messages, version)), version


def test_a_redelivered_message_is_skipped_whole() -> None:
    messages = traffic(1, windows=6)
    run = Run().feed(messages)
    for i, message in enumerate(messages):
        plan = run.engine.plan(message, i)
        assert (plan.skipped, plan.writes, plan.outputs, plan.gates) == (True, [], [], [])


def test_plan_changes_nothing() -> None:
    messages = traffic(2, windows=8)
    run = Run(SMALL).feed(messages[:-1])
    before = dict(run.windows), dict(run.totals)
    first = run.engine.plan(messages[-1], run.offset)
    again = run.engine.plan(messages[-1], run.offset)
    assert (run.windows, run.totals) == before
    assert first.writes == again.writes
    assert first.outputs == again.outputs


def test_the_same_log_gives_the_same_reports_from_any_restart() -> None:
    messages = traffic(3)
    whole = Run(SMALL).feed(messages)
    parts = Run(SMALL)
    for message in messages:
        parts.engine = DriftEngine(
            SMALL, parts.windows, parts.totals
        )  # nothing decoded is remembered
        parts.feed([message])
    assert [msgspec.json.encode(r) for r in parts.outputs] == [
        msgspec.json.encode(r) for r in whole.outputs
    ]
    assert parts.totals == whole.totals


@given(st.permutations(range(12)))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_order_of_deltas_does_not_move_sums(order: list[int]) -> None:
    messages = traffic(4, windows=8)[:12]
    assert len(messages) == 12
    state = state_of(Run(SMALL).feed([messages[i] for i in order]).engine)
    for version in VERSIONS:
        assert same(state.sums(*version)[0], expected(messages, version))


def test_old_windows_become_blocks_and_their_number_is_bounded() -> None:
    options = DriftSettings(phi_windows=4, max_fences=20, min_reference=20)
    rng = np.random.default_rng(0)
    parts = [(w, trace({"planner": rng.random(3)})) for w in range(600)]
    run = Run(options).feed(log_of(parts))
    ledger = decode_ledger(run.totals[b"L|" + KEY])
    sizes = [b.size for b in ledger.kept if b.start > 3]
    assert max(sizes.count(s) for s in set(sizes)) <= 2
    assert all(s in (1, 2, 4, 8, 16, 32, 64, 128, 256) for s in sizes)
    assert len(run.windows) <= 4 + 18 + 4
    assert sum(len(v) for v in run.windows.values()) < 40_000
    covered = [
        decode_window(run.windows[b"W|" + KEY + b"|%d" % b.start]).sums.mix.data[:, 0].sum()
        for b in ledger.kept
    ]
    assert sum(covered) == 600 - len(ledger.open) - len(ledger.strip)
    total = decode_total(run.totals[b"T|" + KEY + b"|1|m1"])
    assert len(total.folded) <= 20
    # a retraction inside a block still comes out of the totals
    acc = DeltaAccumulator()
    acc.add(*parts[300], -1)
    messages = log_of(parts) + [encode_message(d) for d in acc.flush()]
    run.feed(messages[600:])
    assert same(state_of(run.engine).sums("1", "m1")[0], expected(messages, ("1", "m1")))


def test_versions_and_strata_are_bounded() -> None:
    options = DriftSettings(max_versions=8, max_rows=30, phi_windows=4)
    rng = np.random.default_rng(0)
    parts = [
        (w, trace({"planner": rng.random(2)}, model=f"m{w}-{i}"))
        for w in range(30)
        for i in range(9)
    ]
    run = Run(options).feed(log_of(parts, flushes_a_window=3))
    ledger = decode_ledger(run.totals[b"L|" + KEY])
    assert len(ledger.versions) <= 8
    assert ledger.refused > 200
    assert len(run.totals) <= 1 + 8


def test_a_hostile_number_of_strata_in_one_window_is_left_out_and_counted() -> None:
    options = DriftSettings(max_rows=30, max_versions=500)
    parts = [(0, trace({"planner": [0.1]}, model=f"m{i}")) for i in range(200)]
    run = Run(options).feed(log_of(parts, flushes_a_window=20))
    value = decode_window(run.windows[b"W|" + KEY + b"|0"])
    assert len(value.sums.rows.keys) == 30
    assert value.dropped == 170
    assert decode_ledger(run.totals[b"L|" + KEY]).refused == 170


def test_bytes_that_are_no_delta_are_named() -> None:
    with pytest.raises(UndecodableRecord, match="score-deltas"):
        Run().engine.plan(b"nonsense", 0)
    run = Run().feed(traffic(0, windows=2))
    run.windows[next(iter(run.windows))] = b"broken"
    with pytest.raises(UndecodableRecord, match="windows"):
        Run.feed(run, traffic(0, windows=2)[:1])


def test_values_survive_a_round_trip() -> None:
    run = Run(SMALL).feed(traffic(5))
    for raw in run.windows.values():
        value = decode_window(raw)
        assert value.fence >= 0
    total = decode_total(run.totals[b"T|" + KEY + b"|1|m1"])
    assert total.sums.bins is not None
    assert decode_ledger(run.totals[b"L|" + KEY]).fence == run.offset - 1


def test_pin_and_promote_take_effect_at_one_offset_and_are_audited() -> None:
    rng = np.random.default_rng(0)
    parts = [
        (w, trace({"planner": rng.random(3)}, model="m1" if w < 6 else "m2"))
        for w in range(12)
        for _ in range(12)
    ]
    run = Run(SMALL).feed(log_of(parts))
    assert {r.reference for r in run.drift()} == {"m1"}
    run.feed(
        [encode_message(BaselineControl("svc", "guard", "promote", None, "ann", 5, "released"))]
    )
    (record,) = run.controls
    assert (record.applied, record.model_version, record.previous, record.who) == (
        True,
        "m2",
        "m1",
        "ann",
    )
    more = [(12, trace({"planner": rng.random(3)}, model="m1")) for _ in range(12)]
    run.outputs.clear()
    run.feed(log_of(more))
    assert {(r.reference, r.current) for r in run.outputs} == {("m2", "m1")}
    run.feed([encode_message(BaselineControl("svc", "guard", "pin", "m9", "bob", 6, "typo"))])
    assert not run.controls[-1].applied
    assert "m1, m2" in run.controls[-1].detail
    plan = run.engine.plan(
        encode_message(BaselineControl("svc", "guard", "pin", "m1", "x", 1, "")), run.offset - 1
    )
    assert plan.skipped
    assert plan.controls == []
