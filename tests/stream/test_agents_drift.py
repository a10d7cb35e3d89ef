"""The drift agent on a real broker: tables and reports are those of the log, whatever dies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from monitor.drift.bins import BINS
from monitor.drift.engine import DriftEngine
from monitor.drift.messages import (
    BaselineControl,
    ScoreDelta,
    ScoreEntry,
    decode_message,
    encode_message,
)
from monitor.drift.report import DriftReport, GateState, MixReport
from monitor.model import ROLES
from monitor.stack import KafkaBroker
from monitor.stream.routing import Routed, Router
from monitor.stream.tables import DRIFT_TOTALS, DRIFT_WINDOWS
from tests.drift.test_engine import traffic
from tests.stream.agents_lab import AgentsLab, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

_REPORTS = msgspec.json.Decoder(DriftReport | MixReport)
_GATES = msgspec.json.Decoder(GateState)


@pytest.fixture
def lab(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[AgentsLab]:
    made = AgentsLab(kafka.bootstrap, unique, tmp_path)
    yield made
    made.stop_all()


def deltas(lab: AgentsLab, services: int, windows: int) -> list[Routed]:
    """Of several services in turn, each with late parts and retractions."""
    router = Router(lab.settings)
    columns: list[list[Routed]] = []
    for n in range(services):
        column = []
        for message in traffic(n, windows=windows):
            delta = decode_message(message)
            assert isinstance(delta, ScoreDelta)
            column.append(router.route(msgspec.structs.replace(delta, service=f"svc-{n}")))
        columns.append(column)
    longest = max(map(len, columns))
    return [column[i] for i in range(longest) for column in columns if i < len(column)]


class Oracle:
    """The engine over plain dicts, fed the topic's final log."""

    def __init__(self, lab: AgentsLab) -> None:
        self.windows: dict[bytes, bytes] = {}
        self.totals: dict[bytes, bytes] = {}
        self.reports: dict[str, Any] = {}
        self.gates: dict[bytes, GateState] = {}
        engines = [
            DriftEngine(lab.settings.drift_settings(), self.windows, self.totals)
            for _ in range(lab.partitions)
        ]
        for message in lab.messages(lab.names.score_deltas):
            engine = engines[message.partition()]
            plan = engine.plan(message.value(), message.offset())
            assert not plan.skipped
            engine.commit(plan)
            self.reports |= {report.report_id: report for report in plan.outputs}
            for gate in plan.gates:
                self.gates[plan.key] = gate


def compare(lab: AgentsLab, oracle: Oracle) -> None:
    assert lab.rows(DRIFT_WINDOWS) == oracle.windows
    assert lab.rows(DRIFT_TOTALS) == oracle.totals
    reports = [_REPORTS.decode(value) for _, value in lab.read(lab.names.drift_reports)]
    assert {r.report_id: r for r in reports} == oracle.reports
    by_id: dict[str, Any] = {}
    for report in reports:  # a repeated id says the same again
        assert by_id.setdefault(report.report_id, report) == report
    gates = {key: _GATES.decode(value) for key, value in lab.read(lab.names.gates)}
    assert gates == oracle.gates


async def caught_up(lab: AgentsLab, oracle: Oracle) -> None:
    await until(lambda: lab.rows(DRIFT_TOTALS) == oracle.totals, 90, "the totals of the log")
    await asyncio.sleep(1)


async def test_killed_workers_leave_the_tables_and_reports_of_the_log(lab: AgentsLab) -> None:
    """Four kill -9 of one of two workers while deltas stream in."""
    await lab.make_topics()
    sent = deltas(lab, services=8, windows=30)
    running = [lab.start_worker("a"), lab.start_worker("b")]
    await asyncio.sleep(4)
    stream = asyncio.create_task(lab.send(sent, batch=10, seconds=20))
    rng = random.Random(5)
    for kill in range(4):
        await asyncio.sleep(3 + rng.random() * 2)
        victim = kill % 2
        running[victim].kill()
        running[victim] = lab.start_worker("ab"[victim])
    await stream
    oracle = await asyncio.to_thread(Oracle, lab)
    assert len(oracle.reports) > 20
    await caught_up(lab, oracle)
    compare(lab, oracle)
    assert [worker.stop() for worker in running] == [0, 0], lab.workers[-1].log_tail()


async def test_a_worker_that_stood_still_past_its_session_changes_nothing(lab: AgentsLab) -> None:
    """SIGSTOP for longer than the session, then SIGCONT, in the middle of the stream; twice."""
    await lab.make_topics()
    sent = deltas(lab, services=8, windows=60)
    one, _two = lab.start_worker(), lab.start_worker()
    await asyncio.sleep(6)
    stream = asyncio.create_task(lab.send(sent, batch=10, seconds=30))
    for _ in range(2):
        await asyncio.sleep(2)
        one.pause()
        await asyncio.sleep(13)
        one.resume()
    await stream
    oracle = await asyncio.to_thread(Oracle, lab)
    assert len(oracle.reports) > 20
    await caught_up(lab, oracle)
    compare(lab, oracle)
    assert one.running


async def test_workers_that_join_and_leave_move_no_sum(lab: AgentsLab) -> None:
    """Dynamic members: each join and leave takes every partition from everybody, in the middle of the stream."""
    await lab.make_topics()
    sent = deltas(lab, services=8, windows=30)
    lab.start_worker()
    await asyncio.sleep(4)
    stream = asyncio.create_task(lab.send(sent, batch=10, seconds=20))
    for cycle in range(4):
        guest = lab.start_worker()
        # A process of a busy machine imports for seconds; a signal that comes before it listens says nothing.
        await until(lambda g=guest: "drift-totals" in g.log(), 40, "the guest's tables")  # type: ignore[misc]
        await asyncio.sleep(3)
        if cycle < 3:
            assert await asyncio.to_thread(guest.stop) == 0
            await asyncio.sleep(0.5)
    await stream
    oracle = await asyncio.to_thread(Oracle, lab)
    await caught_up(lab, oracle)
    compare(lab, oracle)


async def test_sums_of_much_traffic_are_larger_than_a_usual_message(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    """240 strata with scores in every bin; their values are written, and restored by another worker."""
    lab = AgentsLab(kafka.bootstrap, unique, tmp_path, partitions=1)
    try:
        await lab.make_topics()
        router = Router(lab.settings)
        sent = [router.route(delta) for window in range(4) for delta in dense_deltas(window)]
        first = lab.start_worker()
        await lab.send(sent[:-3], batch=4)
        oracle = await asyncio.to_thread(Oracle, lab)
        await caught_up(lab, oracle)
        assert max(map(len, oracle.totals.values())) > 1_200_000
        first.kill()
        lab.start_worker()
        await lab.send(sent[-3:])
        oracle = await asyncio.to_thread(Oracle, lab)
        await caught_up(lab, oracle)
        compare(lab, oracle)
    finally:
        lab.stop_all()


def dense_deltas(window: int) -> list[ScoreDelta]:
    rng = np.random.default_rng(window)
    entries = []
    for n in range(240):
        counts = 200 + rng.integers(0, 200, BINS)
        weights = counts * rng.integers(300_000, 720_720, BINS)
        entries.append(
            ScoreEntry(
                window,
                "1",
                "m1",
                ROLES[n % 5],
                n // 5 // 7,
                n // 5 % 7,
                traces=10_000,
                spans=int(counts.sum()),
                bins=tuple(range(BINS)),
                weights=tuple(weights.tolist()),
                counts=tuple(counts.tolist()),
            )
        )
    return [
        ScoreDelta("svc", "guard", tuple(entries[i : i + 24])) for i in range(0, len(entries), 24)
    ]


async def test_services_that_are_made_up_find_no_room(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    """More (service, scorer) than a partition takes, and a kill -9 in between: the first ones stay, and go on."""
    lab = AgentsLab(kafka.bootstrap, unique, tmp_path, partitions=1)
    limit = lab.settings.drift_settings().max_keys
    try:
        await lab.make_topics()
        router = Router(lab.settings)

        def of(service: str, window: int) -> Routed:
            entry = ScoreEntry(window, "1", "m1", "planner", 0, 0, traces=1, spans=1, spans2=1)
            return router.route(ScoreDelta(service, "guard", (entry,)))

        made_up = [of(f"svc-{n}", 0) for n in range(limit + 150)]
        half = lab.start_worker()
        await lab.send(made_up[: limit // 2], batch=50)
        await until(lambda: len(lab.rows(DRIFT_WINDOWS)) > limit // 4, 60, "a quarter")
        half.kill()
        lab.start_worker()
        await lab.send(made_up[limit // 2 :], batch=50)
        await lab.send([of("svc-0", 1), of("too-late", 1)])
        oracle = await asyncio.to_thread(Oracle, lab)
        assert len(oracle.windows) == limit + 1
        await caught_up(lab, oracle)
        compare(lab, oracle)
    finally:
        lab.stop_all()


async def test_a_baseline_control_takes_effect_once_and_is_copied(lab: AgentsLab) -> None:
    await lab.make_topics()
    worker = lab.start_worker()
    sent = deltas(lab, services=1, windows=12)
    await lab.send(sent)
    place, key, _ = sent[0]
    control = BaselineControl("svc-0", "guard", "pin", "m1", "me", 1, "a test")
    await lab.send([(place, key, encode_message(control))])
    await lab.send([(place, key, b"no delta")])
    await until(lambda: lab.read(lab.names.baselines), 40, "a baseline record")
    ((copied_key, copied),) = lab.read(lab.names.baselines)
    assert copied_key == control.key
    assert msgspec.json.decode(copied)["action"] == "pin"
    await until(lambda: lab.read(lab.names.deadletters), 20, "a dead letter")
    ((_, letter),) = lab.read(lab.names.deadletters)
    assert msgspec.json.decode(letter)["reason"] == "undecodable_record"
    assert worker.stop() == 0
