"""Span to page on a running worker, and how long pages stop when one of two workers is killed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Producer

from benchmarks.load import OPEN_TRACES, make_topic, spans
from benchmarks.whole import settings_for
from monitor.codec import encode_json
from monitor.stack import Alertmanager, KafkaBroker, WebhookReceiver, Worker

PAGE_TIMEOUT: Final = 120.0


@dataclass(frozen=True)
class Latencies:
    pages: int
    p50: float
    p99: float
    worst: float


@dataclass
class Stack:
    kafka: KafkaBroker
    receiver: WebhookReceiver
    topic: str
    variables: dict[str, str]

    def producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 5, "acks": "all"})

    def wait_for_page(self, service: str) -> None:
        """Until Alertmanager has told its webhook of an alert of that service."""
        self.receiver.wait_for(
            lambda alert: alert.labels.get("service") == service, timeout=PAGE_TIMEOUT
        )

    def page(self, producer: Producer, service: str) -> float:
        """Send one bad span of a service never seen before; seconds until Alertmanager's webhook tells of it."""
        sent = time.perf_counter()
        producer.produce(self.topic, bad_span(service))
        producer.flush(10)
        self.wait_for_page(service)
        return time.perf_counter() - sent


@contextmanager
def stack(kafka: KafkaBroker, prefix: str, partitions: int = 8) -> Iterator[Stack]:
    topic = f"{prefix}spans"
    make_topic(kafka.bootstrap, topic, partitions)
    with WebhookReceiver() as receiver, Alertmanager(receiver_url=receiver.url) as alertmanager:
        variables = settings_for(
            kafka.bootstrap,
            topic,
            TOPIC_PREFIX=prefix,
            GROUP=prefix.rstrip("."),
            ALERTMANAGER_URLS=alertmanager.url,
        )
        yield Stack(kafka, receiver, topic, variables)


def bad_span(service: str) -> bytes:
    draw = random.SystemRandom()
    now = time.time_ns()
    return encode_json(
        {
            "trace_id": f"{draw.getrandbits(128) | 1:032x}",
            "span_id": f"{draw.getrandbits(64) | 1:016x}",
            "parent_span_id": None,
            "service": service,
            "name": "execute_tool run_shell",
            "role": "tool_call",
            "model_version": "m",
            "start_unix_nano": now,
            "end_unix_nano": now,
            "scores": [{"scorer": "injection-judge", "version": "3", "value": 0.91}],
            "attributes": {},
        }
    )


def latencies(kafka: KafkaBroker, *, rate: int, pages: int, prefix: str) -> Latencies:
    """Span to page at ``rate`` spans/s of ordinary traffic, ``pages`` pages one after another."""
    with (
        stack(kafka, prefix) as running,
        Worker(running.variables),
        background_load(running, rate),
    ):
        producer = running.producer()
        running.page(producer, "warm-up")
        seconds = sorted(running.page(producer, f"page-{n}") for n in range(pages))
    return Latencies(
        pages,
        seconds[len(seconds) // 2],
        seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))],
        seconds[-1],
    )


def failover(kafka: KafkaBroker, *, rate: int, prefix: str) -> float:
    """Seconds from kill -9 of one of two workers to the last of 16 pages for spans sent right after it.

    Sixteen spans under keys of their own lie in all partitions, so some were the dead worker's.
    """
    with ExitStack() as exits:
        running = exits.enter_context(stack(kafka, prefix))
        exits.enter_context(Worker(running.variables))
        doomed = exits.enter_context(Worker(running.variables))
        exits.enter_context(background_load(running, rate))
        producer = running.producer()
        running.page(producer, "before")
        time.sleep(2)
        doomed.kill()
        killed = time.perf_counter()
        services = [f"after-{n}" for n in range(16)]
        for service in services:
            producer.produce(running.topic, bad_span(service))
        producer.flush(10)
        for service in services:
            running.wait_for_page(service)
        return time.perf_counter() - killed


@contextmanager
def background_load(running: Stack, rate: int) -> Iterator[None]:
    """Ordinary spans at ``rate`` a second from a thread of this process, until the block ends."""
    stop = threading.Event()

    def send() -> None:
        producer = running.producer()
        started = time.perf_counter()
        for sent, line in enumerate(spans(10**9, seed=2), start=1):
            if stop.is_set():
                break
            producer.produce(running.topic, line)
            if sent % OPEN_TRACES == 0:
                producer.poll(0)
                ahead = sent / rate - (time.perf_counter() - started)
                if ahead > 0:
                    stop.wait(ahead)
        producer.flush(10)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(15)
