"""Faults on purpose, and the check that they changed nothing."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from monitor import codec
from monitor.model import Fragment, OrphanFault
from monitor.stack.process import ChildProcess
from monitor.stream.clients import SESSION_TIMEOUT_MS
from tests.chaos.crashing import POINTS, VARIABLE
from tests.chaos.lab import Lab, assert_same, last_verdicts
from tests.chaos.traffic import Traffic

WORKER: Final = "tests.chaos.crashing"

PAUSE_SECONDS: Final = SESSION_TIMEOUT_MS / 1000 + 3
"""Past the session and the transaction timeout: the paused worker has lost its lanes and does not know."""

TIGHT_MS: Final = 150
"""A trace whose fragments were all appended within this, in both runs, lies well inside every deadline."""


@dataclass
class Chaos:
    lab: Lab
    seed: int = 1
    say: Callable[[str], None] = print
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._slots: list[ChildProcess] = []

    def start(self, workers: int = 2) -> None:
        for number in range(workers):
            self._slots.append(self._new(number))
        for worker in self._slots:
            self._joined(worker)

    def _new(self, slot: int, **env: str) -> ChildProcess:
        # A static member: its restart is taken in at once, and not only after the dead one's session.
        env["MONITOR_INSTANCE"] = f"slot-{slot}"
        # Settings change under way; these move no verdict, so that runs can be compared.
        env["MONITOR_SCALAR_THRESHOLD"] = f"0.3{len(self.lab.workers) % 3}"
        return self.lab.start_worker(WORKER, **env)

    def _joined(self, worker: ChildProcess, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while worker.running and "lanes.assigned" not in worker.log():
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)

    def faults(self) -> int:
        return sum(self.done.values())

    def kills(self) -> int:
        """Of them the kill -9, at random and at a named point."""
        gentle = {"leave and join", "SIGSTOP"}
        return sum(
            count
            for what, count in self.done.items()
            if what not in gentle and not what.endswith((" SIGSTOP", " not reached"))
        )

    # --- faults ---------------------------------------------------------------------------------------

    def kill(self) -> None:
        slot = self._random.randrange(len(self._slots))
        self._slots[slot].kill()
        self._count("kill -9")
        time.sleep(self._random.uniform(0.0, 1.0))
        self._slots[slot] = self._new(slot)
        self._joined(self._slots[slot])

    def crash(self, stage: str | None = None, point: str | None = None) -> None:
        """A worker that kills itself at a named point takes a slot over, and is followed by a sound one."""
        stage = stage or self._random.choice(("ingest", "assemble"))
        point = point or self._random.choice(POINTS)
        if point == "restoring":
            stage = "assemble"
        slot = self._random.randrange(len(self._slots))
        self._slots[slot].kill()
        nth = 2 if point == "restoring" else self._random.randint(2, 25)
        worker = self._new(slot, **{VARIABLE: f"{stage}:{point}:{nth}:KILL"})
        try:
            code = worker.wait(timeout=25)
        except subprocess.TimeoutExpired:
            worker.kill()
            self._count(f"{stage}:{point} not reached")
        else:
            assert code == -signal.SIGKILL, worker.log_tail()
            self._count(f"{stage}:{point}")
        self._slots[slot] = self._new(slot)
        self._joined(self._slots[slot])

    def pause(self) -> None:
        slot = self._random.randrange(len(self._slots))
        worker = self._slots[slot]
        worker.pause()
        time.sleep(PAUSE_SECONDS)
        worker.resume()
        self._count("SIGSTOP")

    def pause_at(self, stage: str | None = None, point: str | None = None) -> None:
        """A worker stands still at a named point, past its session and its transaction, and then goes on."""
        stage = stage or self._random.choice(("ingest", "assemble"))
        point = point or self._random.choice([p for p in POINTS if p != "restoring"])
        slot = self._random.randrange(len(self._slots))
        self._slots[slot].kill()
        nth = self._random.randint(2, 10)
        worker = self._slots[slot] = self._new(slot, **{VARIABLE: f"{stage}:{point}:{nth}:STOP"})
        deadline = time.monotonic() + 25
        while not _stands_still(worker.pid):
            if time.monotonic() > deadline:
                self._count(f"{stage}:{point} not reached")
                return
            time.sleep(0.05)
        time.sleep(PAUSE_SECONDS)
        worker.resume()
        self._count(f"{stage}:{point} SIGSTOP")

    def leave_and_join(self) -> None:
        slot = self._random.randrange(len(self._slots))
        code = self._slots[slot].stop(grace=30)
        assert code == 0, self._slots[slot].log_tail()
        self._count("leave and join")
        self._slots[slot] = self._new(slot)
        self._joined(self._slots[slot])

    def random_fault(self) -> None:
        fault = self._random.choices(
            (self.kill, self.crash, self.pause, self.pause_at, self.leave_and_join),
            (50, 40, 3, 3, 4),
        )[0]
        fault()

    def _count(self, what: str) -> None:
        self.done[what] += 1
        self.say(f"{time.strftime('%H:%M:%S')} {self.faults():4} {what}")

    def settle(self, seconds: float = 120.0) -> None:
        """Until all is folded and closed; then stop the workers cleanly."""
        self.lab.wait("both stages at the end", self.lab.caught_up, seconds)
        self.lab.wait("every life closed", self.lab.all_closed, seconds)
        for worker in self._slots:
            code = worker.stop(grace=30)
            assert code == 0, f"{code}\n{worker.log_tail()}"


def _stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


# --- what must hold ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Account:
    """Every item of the input, by its coordinates, and what became of it in the log."""

    kept: Counter[
        tuple[int, int]
    ]  # (partition, offset) of spans, scores, faults and orphans in fragments
    input: Counter[tuple[int, int]]
    rejected: Counter[tuple[int, int]]  # of dead letters of ingest


def account(lab: Lab) -> Account:
    kept: Counter[tuple[int, int]] = Counter()
    for m in lab.read(lab.names.fragments):
        record = codec.decode_fold_record(m.value)
        if isinstance(record, Fragment):
            items = (*record.spans, *record.faults)
        elif isinstance(record, OrphanFault):
            items = (record.fault,)
        else:
            continue
        for item in items:
            kept[item.source.partition, item.source.offset] += 1
    rejected: Counter[tuple[int, int]] = Counter()
    for m in lab.read(lab.names.deadletters):
        letter = json.loads(m.value)
        topic, partition, offset, *_ = letter["source"]
        if topic == lab.input:
            rejected[partition, offset] += 1
    inputs = Counter((m.partition, m.offset) for m in lab.read(lab.input))
    return Account(kept, inputs, rejected)


def assert_exactly_once(lab: Lab) -> dict[str, int]:
    """(a) and (b) of the design's comparisons."""
    out = assert_same(lab)
    found = account(lab)
    doubled = [place for place, count in found.kept.items() if count > 1]
    assert not doubled, f"in fragments more than once: {doubled[:5]}"
    doubled = [place for place, count in found.rejected.items() if count > 1]
    assert not doubled, f"dead-lettered more than once: {doubled[:5]}"
    lost = found.input.keys() - found.kept.keys() - found.rejected.keys()
    assert not lost, f"{len(lost)} of {len(found.input)} input records are lost: {sorted(lost)[:5]}"
    return {
        "input records": len(found.input),
        "verdicts": sum(map(len, out.verdicts.values())),
        "incidents": sum(map(len, out.incidents.values())),
        "deltas": sum(out.deltas.values()),
        "dead letters": len(found.rejected),
    }


def tight_traces(lab: Lab) -> set[str]:
    """Trace ids whose fragments all lie within TIGHT_MS of the log."""
    times: dict[str, list[int]] = defaultdict(list)
    for m in lab.read(lab.names.fragments):
        record = codec.decode_fold_record(m.value)
        if isinstance(record, Fragment):
            times[record.trace_id].append(m.timestamp_ms or 0)
    return {trace for trace, at in times.items() if max(at) - min(at) <= TIGHT_MS}


def assert_same_verdicts(lab: Lab, clean: Lab) -> int:
    """(c): the last revision of each trace well inside every deadline, as a run without faults gives it."""
    tight = tight_traces(lab) & tight_traces(clean)
    ours, theirs = last_verdicts(lab), last_verdicts(clean)
    compared = 0
    for trace in tight:
        a, b = ours.get(trace), theirs.get(trace)
        assert a == b, f"trace {trace}: with faults {a}, without {b}"
        compared += a is not None
    return compared


def rerun(lab: Lab, **extra: Any) -> Lab:
    """The same input through another monitor, without faults."""
    clean = Lab(
        lab.bootstrap,
        f"{lab.prefix}-clean",
        lab.folder,
        {**lab.extra, **extra},
        lab.partitions,
        lab.lanes,
    )
    clean.use_input(lab.input)
    worker = clean.start_worker()
    clean.wait("the clean run at its end", clean.all_closed, 120)
    assert worker.stop(grace=30) == 0
    return clean


def traffic(lab: Lab, seed: int) -> Traffic:
    started = Traffic(lab, seed=seed)
    started.start()
    return started
