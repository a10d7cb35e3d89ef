"""One battery of checks over every detector: pure, mergeable, order-free, retractable, picklable, bounded, sane."""

from __future__ import annotations

import pickle
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np
import pytest

from monitor.drift.classical import classical
from monitor.drift.composition import kitagawa
from monitor.drift.decision import figures
from monitor.drift.delta import DeltaAccumulator, ScoreDelta, decode_message, encode_message
from monitor.drift.evidence import compare_counts, compare_role, mixture_weights, variance
from monitor.drift.mix import MixPhis, MixSums, mix_evidence
from monitor.drift.part import TracePart
from monitor.drift.phi import Phi
from monitor.drift.report import DriftReport
from monitor.drift.series import by_role
from monitor.drift.settings import DriftSettings
from monitor.drift.sums import RoleSums, Sums, merge, sums_by_window
from monitor.drift.tail import log_tail_evidence, tail_strata
from tests.drift.traffic import Run, Table, log_of, trace

SETTINGS = DriftSettings(min_stratum=2, min_reference=5, min_current=3)
TABLE = Table()
PHI = Phi(1.5, 10, 20.0)


class Sides:
    """Sums of two versions, all that a detector sees. ``windows``: the reference's, in order."""

    def __init__(self, ref: Sums, cur: Sums, windows: list[Sums]) -> None:
        self.ref, self.cur, self.windows = ref, cur, windows

    def role(self, role: str) -> tuple[RoleSums, RoleSums]:
        ref, cur = self.ref.of_version("1", "m1"), self.cur.of_version("1", "m2")
        return RoleSums(ref, role), RoleSums(cur, role)


Detector = Callable[[Sides], Any]


def behaviour(sides: Sides) -> Any:
    """Role and counts, with the evidence of both."""
    ref, cur = sides.role("planner")
    if ref.total <= 0 or cur.total <= 0:
        return None
    m, _ = variance(
        np.array([ref.total]), ref.s1.sum(axis=0, keepdims=True), ref.s2.sum(axis=0, keepdims=True)
    )
    phis = PHI.sides(10.0)
    found = figures(
        compare_role(ref, cur, phis),
        compare_counts(ref, cur, phis, SETTINGS.min_stratum),
        mixture_weights(m[0]),
        SETTINGS,
    )
    return asdict(found)


def tail(sides: Sides) -> Any:
    strata = tail_strata(*sides.role("planner"), 0.3, SETTINGS.min_stratum)
    return None if strata is None else log_tail_evidence(*strata, 1.5)


def mix(what: str) -> Detector:
    def detect(sides: Sides) -> Any:
        ref, cur = MixSums.of(sides.ref, "m1"), MixSums.of(sides.cur, "m2")
        if ref.traces <= 0 or cur.traces <= 0:
            return None
        phis = MixPhis([MixSums.of(w, "m1") for w in sides.windows])
        d0 = {"d0": 0.0} if what == "incidents" else {}
        return mix_evidence(ref, cur, what, getattr(phis, what), 10.0, 5.0, SETTINGS, **d0)

    return detect


def over_dispersion(sides: Sides) -> Any:
    series = by_role(sides.windows, "1", "m1").get("planner")
    return None if series is None else (*series.phis(), series.tail_phi(0.3))


DETECTORS: dict[str, Detector] = {
    "behaviour": behaviour,
    "tail": tail,
    "length": mix("length"),
    "roles": mix("roles"),
    "incidents": mix("incidents"),
    "composition": lambda s: kitagawa(s.ref.of_version("1", "m1"), s.cur.of_version("1", "m2")),
    "classical": lambda s: classical(*s.role("planner")),
    "over_dispersion": over_dispersion,
}


@pytest.fixture(params=DETECTORS)
def detect(request: pytest.FixtureRequest) -> Detector:
    return DETECTORS[request.param]


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    """A division by zero that somebody catches later is none of sane."""
    with warnings.catch_warnings(), np.errstate(divide="raise", invalid="raise", over="raise"):
        warnings.simplefilter("error")
        yield


Placed = Sequence[tuple[int, TracePart]]


def traffic(seed: int, model: str, n: int = 120, d: float = 0.0) -> Placed:
    """Traces over 12 windows, in two roles and several lengths."""
    rng = np.random.default_rng(seed)
    return [
        (
            i * 12 // n,
            trace(
                {
                    "planner": TABLE.draw(rng, int(rng.integers(1, 9)), d=d),
                    "tool_call": TABLE.draw(rng, int(rng.integers(1, 4))),
                },
                model=model,
                incident=rng.random() < 0.1,
            ),
        )
        for i in range(n)
    ]


def summed(deltas: Sequence[ScoreDelta]) -> tuple[Sums, list[Sums]]:
    """All sums, and by window."""
    windows: dict[int, list[Sums]] = {}
    for delta in deltas:
        for window, sums in sums_by_window(delta).items():
            windows.setdefault(window, []).append(sums)
    by_window = [merge(windows[w]) for w in sorted(windows)]
    return merge(by_window), by_window


def deltas_of(parts: Placed, moves: Placed = ()) -> list[ScoreDelta]:
    """``moves`` are added and taken back."""
    acc = DeltaAccumulator()
    for sign, some in ((1, moves), (1, parts), (-1, moves)):
        for window, part in some:
            acc.add(window, part, sign)
    return acc.flush()


def sides_of(ref: Placed, cur: Placed) -> Sides:
    a, windows = summed(deltas_of(ref))
    return Sides(a, summed(deltas_of(cur))[0], windows)


def exactly(found: Any) -> bytes:
    """A result as bytes: equal bit for bit, or not."""
    return pickle.dumps(msgspec.to_builtins(found, enc_hook=_plain, order="sorted"))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value)


def test_pure(detect: Detector) -> None:
    """Asked twice it says the same, and its input is as it was."""
    sides = sides_of(traffic(1, "m1"), traffic(2, "m2", d=0.2))
    before = pickle.dumps(sides)
    first = exactly(detect(sides))
    assert exactly(detect(sides)) == first
    assert pickle.dumps(sides) == before


def test_mergeable_and_free_of_order(detect: Detector) -> None:
    """Any workers, in any order, in any number of flushes: the same to the last bit."""
    ref, cur = traffic(1, "m1"), traffic(2, "m2", d=0.2)
    expected = exactly(detect(sides_of(ref, cur)))
    rng = random.Random(3)
    for workers in (2, 7):
        found = []
        for parts in (ref, cur):
            mixed = rng.sample(list(parts), len(parts))
            flushes = [d for w in range(workers) for d in deltas_of(mixed[w::workers])]
            rng.shuffle(flushes)
            sent = [decode_message(encode_message(delta)) for delta in flushes]
            found.append(summed([d for d in sent if isinstance(d, ScoreDelta)]))
        assert exactly(detect(Sides(found[0][0], found[1][0], found[0][1]))) == expected


def test_retractable(detect: Detector) -> None:
    ref, cur = traffic(1, "m1"), traffic(2, "m2", d=0.2)
    expected = exactly(detect(sides_of(ref, cur)))
    a, windows = summed(deltas_of(ref, traffic(5, "m1", 40)))
    b, _ = summed([*deltas_of(cur, traffic(6, "m2", 40))])
    assert exactly(detect(Sides(a, b, windows))) == expected
    back = DeltaAccumulator()
    extra = traffic(7, "m2", 40)
    for window, part in extra:
        back.add(window, part, -1)
    c, _ = summed([*deltas_of([*cur, *extra]), *back.flush()])  # taken back after a flush
    assert exactly(detect(Sides(a, c, windows))) == expected


def test_picklable(detect: Detector) -> None:
    sides = sides_of(traffic(1, "m1"), traffic(2, "m2", d=0.2))
    found = detect(sides)
    assert exactly(detect(pickle.loads(pickle.dumps(sides)))) == exactly(found)
    assert exactly(pickle.loads(pickle.dumps(found))) == exactly(found)


def test_bounded(detect: Detector) -> None:
    """A hundred times the traces take no more room than their strata and bins."""
    parts = [
        (w, trace({"planner": [0.1 * k, 0.5]}, model="m1")) for w in range(9) for k in range(9)
    ]
    few, many = sides_of(parts, parts), sides_of(parts * 100, parts * 100)
    detect(many)
    for a, b in ((few.ref, many.ref), (few.windows[0], many.windows[0])):
        assert a.rows.data.shape == b.rows.data.shape
        assert a.bins is not None
        assert b.bins is not None
        assert a.bins.at.tolist() == b.bins.at.tolist()


def constant(value: float, model: str, n: int, spans: int = 2) -> Placed:
    return [(i * 12 // n, trace({"planner": [value] * spans}, model=model)) for i in range(n)]


ODD: dict[str, tuple[Placed, Placed]] = {
    "nothing": ((), ()),
    "no current": (traffic(1, "m1"), ()),
    "no reference": ((), traffic(2, "m2")),
    "one trace each": (traffic(1, "m1", 1), traffic(2, "m2", 1)),
    "one span against many": (constant(0.5, "m1", 1, 1), traffic(2, "m2")),
    "three each": (traffic(1, "m1", 3), traffic(2, "m2", 3)),
    "all zero": (constant(0.0, "m1", 60), constant(0.0, "m2", 60)),
    "all one": (constant(1.0, "m1", 60), constant(1.0, "m2", 60)),
    "all tied": (constant(0.3, "m1", 60), constant(0.3, "m2", 60)),
    "zero against one": (constant(0.0, "m1", 60), constant(1.0, "m2", 60)),
    "long traces": (constant(0.2, "m1", 12, 3000), constant(0.2, "m2", 12, 3000)),
    "no length in common": (constant(0.2, "m1", 60, 1), constant(0.2, "m2", 60, 40)),
    "nothing scored": (
        [(i, trace({"planner": [0.1], "tool_call": []}, model="m1")) for i in range(12)],
        [(i, trace({"tool_call": [0.1]}, model="m2")) for i in range(12)],
    ),
}


@pytest.mark.parametrize("odd", ODD)
def test_sane_on_odd_input(detect: Detector, odd: str) -> None:
    """A result with finite numbers, or none."""
    found = detect(sides_of(*ODD[odd]))
    assert all(
        np.isfinite(number) for number in numbers(msgspec.to_builtins(found, enc_hook=_plain))
    )


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float):
        yield float(value)


@pytest.mark.parametrize("odd", ODD)
def test_the_whole_engine_is_sane_on_odd_input(odd: str) -> None:
    """What it says is JSON with finite numbers, and what did not change is not drift."""
    ref, cur = ODD[odd]
    later = [(20 + window, part) for window, part in cur]
    run = Run(SETTINGS).feed(log_of([*ref, *later, *[(40, p) for _, p in later[:1]]]))
    for said in (*run.outputs, *run.gates):
        again = msgspec.json.decode(msgspec.json.encode(said))
        assert all(np.isfinite(number) for number in numbers(again))
        if isinstance(said, DriftReport) and odd != "zero against one":
            assert said.decision != "drift", odd


def test_what_is_certain_is_found() -> None:
    """The battery can tell: all zero against all one is drift."""
    ref, cur = ODD["zero against one"]
    run = Run(SETTINGS).feed(log_of([*ref, *[(20 + w, p) for w, p in cur]]))
    assert "drift" in {r.decision for r in run.drift()}
    assert behaviour(sides_of(ref, cur))["role"]["d"] == 1.0
