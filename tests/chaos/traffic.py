"""Traffic that lies across every deadline: long traces, a constant id, ids used again, late spans, bad input."""

from __future__ import annotations

import heapq
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Producer

from tests.chaos.lab import Lab

ROLES = ("planner", "retrieval", "tool_call", "completion")


class Traffic(threading.Thread):
    """``rate`` traces a second until :meth:`end`; every line's partition is chosen here."""

    def __init__(self, lab: Lab, *, rate: float = 40.0, seed: int = 1) -> None:
        super().__init__(name="traffic", daemon=True)
        self._lab = lab
        self._rate = rate
        self._random = random.Random(seed)
        self._ended = threading.Event()
        self._due: list[tuple[float, int, int, bytes]] = []  # (when, order, partition, line)
        self._count = 0
        self.good = 0
        self.bad = 0
        self._used: list[str] = []

    def end(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self._lab.bootstrap, "linger.ms": 5})
        constant = self._id(32)
        next_trace = next_constant = time.monotonic()
        while not self._ended.is_set():
            now = time.monotonic()
            while next_trace <= now:
                for after, partition, line in self._trace():
                    self._later(now + after, partition, line)
                next_trace += 1 / self._rate
            if next_constant <= now:
                span = self._span(constant, self._id(16), None)
                self._later(now, self._count % self._lab.partitions, json.dumps(span).encode())
                next_constant += 0.1
            self._send_due(producer, now)
            time.sleep(0.01)
        self._send_due(producer, float("inf"))
        assert producer.flush(60) == 0

    def _later(self, when: float, partition: int, line: bytes) -> None:
        self._count += 1
        heapq.heappush(self._due, (when, self._count, partition, line))

    def _send_due(self, producer: Producer, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, _, partition, line = heapq.heappop(self._due)
            producer.produce(self._lab.input, line, partition=partition)
        producer.poll(0)

    # --- kinds of traces --------------------------------------------------------------------------------

    def _trace(self) -> Iterator[tuple[float, int, bytes]]:
        rnd = self._random
        kind = rnd.choices(
            ("tight", "spread", "long", "again", "late", "rejected"), (50, 20, 4, 6, 12, 8)
        )[0]
        trace_id = self._id(32)
        if kind == "again" and len(self._used) > 400:
            trace_id = self._used[-400]  # 10 s ago at 40 a second: its memory is gone
        self._used.append(trace_id)
        size = rnd.randint(2, 12)
        spans = self._tree(trace_id, size)
        home = rnd.randrange(self._lab.partitions)
        for number, span in enumerate(spans):
            line = json.dumps(span).encode()
            self.good += 1
            if kind == "tight":
                yield 0.0, home, line
            elif kind == "long":
                yield number * rnd.uniform(0.5, 1.5), rnd.randrange(self._lab.partitions), line
            elif kind == "late" and number == size - 1:
                # Idle is 2 s, grace .3 s, the late window 6 s: before, at and after each.
                yield rnd.choice((0.29, 0.3, 0.31, 1.99, 2.0, 2.01, 5.9, 6.3, 8.0, 8.3)), home, line
            else:
                yield rnd.uniform(0, 0.4), rnd.randrange(self._lab.partitions), line
        if kind == "rejected":
            for line in self._bad(spans[0]):
                self.bad += 1
                yield 0.1, home, line

    def _tree(self, trace_id: str, size: int) -> list[dict[str, Any]]:
        root = self._id(16)
        spans = [self._span(trace_id, root, None)]
        spans += [self._span(trace_id, self._id(16), root) for _ in range(size - 1)]
        self._random.shuffle(spans)
        return spans

    def _span(self, trace_id: str, span_id: str, parent: str | None) -> dict[str, Any]:
        rnd = self._random
        score = rnd.random() ** 4
        return {
            "trace_id": trace_id,
            "span_id": span_id,
            "parent_span_id": parent,
            "service": f"service-{rnd.randrange(3)}",
            "name": "step",
            "role": rnd.choice(ROLES),
            "model_version": f"m-{rnd.randrange(2)}",
            "start_unix_nano": 1_700_000_000_000_000_000 + self._count,
            "end_unix_nano": 1_700_000_000_000_000_500 + self._count,
            "scores": [{"scorer": "toy", "version": "1", "value": round(score, 4)}],
            "attributes": {"gen_ai.operation.name": "chat"},
        }

    def _bad(self, good: dict[str, Any]) -> Iterator[bytes]:
        yield b"not json"
        yield json.dumps(good | {"trace_id": None, "span_id": self._id(16)}).encode()
        yield json.dumps(good | {"span_id": "0" * 16}).encode()
        yield json.dumps(
            good
            | {"span_id": self._id(16), "scores": [{"scorer": "toy", "version": "1", "value": 7}]}
        ).encode()

    def _id(self, digits: int) -> str:
        return f"{self._random.getrandbits(digits * 4):0{digits}x}"
