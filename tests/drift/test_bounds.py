"""The engine under senders that make names up: bounded, fair to what was there first, and never below zero."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from monitor.drift.delta import BaselineControl, DeltaAccumulator, decode_message, encode_message
from monitor.drift.engine import DriftEngine
from monitor.drift.ledger import decode_ledger
from monitor.drift.part import TracePart
from monitor.drift.settings import DriftSettings
from monitor.drift.sums import Sums, merge, sums_by_window
from monitor.drift.values import decode_total, decode_window, is_ledger_key
from tests.drift.test_engine import KEY, same, state_of
from tests.drift.traffic import Run, log_of, trace

TIGHT = DriftSettings(
    phi_windows=4,
    max_fences=7,
    max_rows=8,
    max_versions=6,
    dormant_windows=3,
    min_reference=5,
    min_current=3,
    min_stratum=2,
    look_every=4,
)


def all_sums(run: Run) -> list[Sums]:
    windows = [decode_window(raw).sums for raw in run.windows.values()]
    totals = [decode_total(raw).sums for key, raw in run.totals.items() if key.startswith(b"T|")]
    return windows + totals


def lowest(run: Run) -> int:
    """The least of all sums that hold counts of something."""
    least = 0
    for sums in all_sums(run):
        for data in (sums.rows.data, sums.tails.data, sums.mix.data):
            least = min(least, int(data.min(initial=0)))
        if sums.bins is not None:
            least = min(least, int(sums.bins.counts.min(initial=0)))
    return least


def made_up(rng: random.Random, window: int) -> TracePart:
    """Mostly of two steady versions; the rest of any version, length and role."""
    steady = rng.random() < 0.3
    return trace(
        {rng.choice(["planner", "tool_call"]): [rng.random() for _ in range(rng.randint(1, 40))]},
        model=rng.choice(["m1", "m2"]) if steady else f"x{window}-{rng.randrange(9)}",
        version="1" if steady else rng.choice(["1", "2", "3"]),
        incident=rng.random() < 0.3,
    )


@pytest.mark.parametrize("seed", range(12))
def test_no_sum_falls_below_zero_whatever_was_refused(seed: int) -> None:
    """Past every bound, with what was refused taken back later, from windows near and long gone."""
    rng = random.Random(seed)
    run = Run(TIGHT)
    held: list[tuple[int, TracePart]] = []
    window = fullest = 0
    for step in range(240):
        acc = DeltaAccumulator()
        for _ in range(rng.randint(1, 4)):
            at = window if rng.random() < 0.8 else rng.randint(0, window)
            part = made_up(rng, window)
            acc.add(at, part, 1)
            held.append((at, part))
        for _ in range(rng.randint(0, 4)):
            acc.add(*held.pop(rng.randrange(len(held))), -1)
            if not held:
                break
        run.feed([encode_message(d) for d in acc.flush()])
        if step % 10 == 9:
            assert lowest(run) == 0, step
            fullest = max(fullest, *(decode_window(raw).strata for raw in run.windows.values()))
        window += rng.random() < 0.25
    ledger = decode_ledger(run.totals[b"L|" + KEY])
    assert ledger.refused > 100
    assert len(ledger.versions) <= TIGHT.max_versions
    assert fullest == TIGHT.max_rows
    rng.shuffle(held)
    for at, part in held:
        acc.add(at, part, -1)
    run.feed([encode_message(d) for d in acc.flush()])
    assert lowest(run) == 0


def test_names_that_are_made_up_push_no_version_out() -> None:
    options = DriftSettings(max_versions=8, max_rows=200, phi_windows=4, min_reference=20)
    rng = np.random.default_rng(0)
    honest: list[tuple[int, TracePart]] = []
    parts: list[tuple[int, TracePart]] = []
    for window in range(40):
        for i in range(6):
            model = "m1" if i % 2 and window % 3 == 0 else "m0"  # m1 is quiet now and then
            honest.append((window, trace({"planner": rng.random(2)}, model=model)))
            parts += [
                honest[-1],
                (window, trace({"planner": rng.random(2)}, model=f"x{window}-{i}")),
                (window, trace({"planner": rng.random(2)}, version=f"v{window}-{i}")),
            ]
    run = Run(options).feed(log_of(parts, flushes_a_window=3))
    for model in ("m0", "m1"):
        found, _ = state_of(run.engine).sums("1", model)
        messages = [decode_message(m) for m in log_of(honest)]
        parts_of_it = [s for d in messages for s in sums_by_window(d).values()]
        assert same(found, merge([s.of_version("1", model) for s in parts_of_it])), model
    # Where they have been silent for long they make room, even as references.
    later = [(80, trace({"planner": rng.random(2)}, model="m2")) for _ in range(5)]
    run.feed(log_of([(70, honest[0][1]), *later]))
    names = {v.model_version for v in decode_ledger(run.totals[b"L|" + KEY]).versions}
    assert {"m0", "m2"} <= names
    assert len([k for k in run.totals if k.startswith(b"T|")]) <= options.max_versions


def test_a_version_that_comes_back_after_it_was_forgotten_counts_from_then_on() -> None:
    options = DriftSettings(max_versions=4, dormant_windows=3, phi_windows=4)
    old = trace({"planner": [0.1, 0.2]}, model="old")
    run = Run(options).feed(log_of([(0, old), (0, old)]))
    for window in range(4, 20, 5):
        run.feed(log_of([(window, trace({"planner": [0.5]}, model=f"new-{window}"))]))
    assert b"T|" + KEY + b"|1|old" not in run.totals
    acc = DeltaAccumulator()
    acc.add(30, old, 1)
    acc.add(0, old, -1)  # of what was forgotten with its version
    run.feed([encode_message(d) for d in acc.flush()])
    found, _ = state_of(run.engine).sums("1", "old")
    assert found.rows.data[:, 0].tolist() == [1]
    assert lowest(run) == 0


def deltas_of(services: range, window: int = 0) -> list[bytes]:
    acc = DeltaAccumulator()
    messages = []
    for n in services:
        acc.add(window, trace({"planner": [0.1]}), 1)
        (delta,) = acc.flush()
        messages.append(encode_message(msgspec.structs.replace(delta, service=f"s{n}")))
    return messages


def test_new_keys_past_the_bound_are_refused_and_old_ones_go_on() -> None:
    options = DriftSettings(max_keys=5)
    run = Run(options).feed(deltas_of(range(20)))
    assert sum(map(is_ledger_key, run.totals)) == 5
    before = dict(run.windows), dict(run.totals)
    plan = run.engine.plan(deltas_of(range(9, 10))[0], run.offset)
    assert (plan.refused, plan.writes, plan.outputs, plan.gates) == ({"keys": 1}, [], [], [])
    control = BaselineControl("s9", "guard", "pin", "m1", "ann", 5, "")
    plan = run.engine.plan(encode_message(control), run.offset)
    assert (plan.writes, [c.applied for c in plan.controls]) == ([], [False])
    run.engine.commit(plan)
    assert (run.windows, run.totals) == before
    run.feed(deltas_of(range(5), window=1))
    assert all(b"W|s%d|guard|1" % n in run.windows for n in range(5))


@pytest.mark.parametrize("seed", range(4))
def test_which_keys_get_in_is_the_same_after_any_restart(seed: int) -> None:
    options = DriftSettings(max_keys=5)
    rng = random.Random(seed)
    messages = [
        m
        for w in range(3)
        for n in rng.sample(range(12), 12)
        for m in deltas_of(range(n, n + 1), w)
    ]
    calm = Run(options).feed(messages)
    torn = Run(options)
    for offset, message in enumerate(messages):
        if rng.random() < 0.3:
            torn.engine = DriftEngine(options, torn.windows, torn.totals)
        plan = torn.engine.plan(message, offset)
        if rng.random() < 0.2:  # killed between two writes; the message comes again
            cut = rng.randint(0, len(plan.writes))
            plan.writes, plan.decoded = plan.writes[:cut], plan.decoded[:cut]
            torn.engine.commit(plan)
            torn.engine = DriftEngine(options, torn.windows, torn.totals)
            plan = torn.engine.plan(message, offset)
        torn.engine.commit(plan)
    assert (torn.windows, torn.totals) == (calm.windows, calm.totals)
    assert sum(map(is_ledger_key, calm.totals)) == 5


def test_every_partition_has_its_own_count_of_keys() -> None:
    """Two partitions share the tables of a worker, and another worker may hold only one of them."""
    windows: dict[bytes, bytes] = {}
    totals: dict[bytes, bytes] = {}
    held = {0: 0, 1: 0}
    engine = DriftEngine(DriftSettings(max_keys=3), windows, totals, keys_in=lambda p: held[p])
    first, second = deltas_of(range(5)), deltas_of(range(10, 15))
    for offset, (a, b) in enumerate(zip(first, second, strict=True)):
        engine.commit(engine.plan(a, offset, 0))
        engine.commit(engine.plan(b, offset, 1))
    keys = {k for k in totals if is_ledger_key(k)}
    assert keys == {b"L|s%d|guard" % n for n in (0, 1, 2, 10, 11, 12)}
    held = {0: 3, 1: 0}
    engine.recount()
    assert engine.plan(first[4], 9, 0).refused == {"keys": 1}
    assert engine.plan(second[4], 9, 1).refused == {}
