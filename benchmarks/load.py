"""The load: native JSON spans, 20 a trace, interleaved over 200 open traces, children before their root."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

SPANS_PER_TRACE: Final = 20
OPEN_TRACES: Final = 200
SCORER: Final = "injection-judge"

_ROLES: Final = ("planner", "retrieval", "tool_call", "completion")
_TOOLS: Final = {"retrieval": "search_documents", "tool_call": "update_ticket"}


def spans(count: int, *, seed: int = 1, incident_every: int = 0) -> Iterator[bytes]:
    """``count`` lines of about 450 bytes; every ``incident_every``-th trace (0: none) has one .9 tool call."""
    draw = random.Random(seed)
    made = 0
    trace_number = 0
    while made < count:
        traces = [f"{draw.getrandbits(128) | 1:032x}" for _ in range(OPEN_TRACES)]
        roots = [f"{draw.getrandbits(64) | 1:016x}" for _ in traces]
        bad = [
            incident_every > 0 and (trace_number + i) % incident_every == 0
            for i in range(OPEN_TRACES)
        ]
        trace_number += OPEN_TRACES
        now = time.time_ns()
        for index in range(SPANS_PER_TRACE):
            for trace, root, is_bad in zip(traces, roots, bad, strict=True):
                if made == count:
                    return
                made += 1
                last = index == SPANS_PER_TRACE - 1
                role = "planner" if last else _ROLES[index % 4]
                value = draw.randrange(290) / 1000
                if is_bad and index == 10:
                    role, value = "tool_call", 0.9
                yield _line(
                    trace,
                    root if last else f"{draw.getrandbits(64) | 1:016x}",
                    None if last else root,
                    role,
                    now + index * 1_000_000,
                    value,
                )


def _line(trace: str, span: str, parent: str | None, role: str, start: int, value: float) -> bytes:
    tool = _TOOLS.get(role)
    attributes = f'"gen_ai.tool.name":"{tool}","http.host":"a.example"' if tool else '"k":"v"'
    parent_json = f'"{parent}"' if parent else "null"
    return (
        f'{{"trace_id":"{trace}","span_id":"{span}","parent_span_id":{parent_json},"service":"support-bot",'
        f'"name":"{role} step","role":"{role}","model_version":"gpt-4o-mini-2024-07-18","start_unix_nano":{start},'
        f'"end_unix_nano":{start + 900_000},"scores":[{{"scorer":"{SCORER}","version":"3","value":{value}}}],'
        f'"attributes":{{{attributes}}}}}'
    ).encode()


def make_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Create it and wait until it is there."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(timeout=30)


def preload(
    bootstrap: str, topic: str, count: int, partitions: int, *, incident_every: int = 0
) -> int:
    """Put the load into a topic, a partition in turn (as nil keys are spread); returns its bytes."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 512_000,
            "queue.buffering.max.messages": 500_000,
            "acks": "all",
        }
    )
    size = 0
    for number, line in enumerate(spans(count, incident_every=incident_every)):
        size += len(line)
        while True:
            try:
                producer.produce(topic, line, partition=number // 50 % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush(60)
    return size
