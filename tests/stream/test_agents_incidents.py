"""The incident agent on a real broker: exact counts over kills and standstills, and pages that arrive."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.alerting import groups
from monitor.alerting.alertmanager import wall_clock
from monitor.model import Incident
from monitor.stack import Alertmanager, KafkaBroker, WebhookReceiver
from monitor.stack.process import free_ports
from monitor.stream.routing import Router, alert_group, encode_alert_group
from monitor.stream.tables import ALERT_GROUPS
from tests.alerting.incidents import incident
from tests.stream.agents_lab import AgentsLab, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


@pytest.fixture
def lab(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[AgentsLab]:
    made = AgentsLab(kafka.bootstrap, unique, tmp_path)
    yield made
    made.stop_all()


def many(count: int, *, seed: int) -> tuple[list[Incident], Counter[bytes]]:
    """Incidents of twelve groups, a third of them with a revision later; and how many there are by group."""
    rng = random.Random(seed)
    sent: list[Incident] = []
    counts: Counter[bytes] = Counter()
    for n in range(count):
        first = incident(f"i-{n}", service=f"svc-{rng.randrange(12)}", caused_at_ms=wall_clock())
        sent.append(first)
        counts[encode_alert_group(alert_group(first))] += 1
        if n % 3 == 0:
            old = sent[max(0, len(sent) - rng.randrange(1, 40))]
            sent.append(incident(old.incident_id, service=old.service, revision=old.revision + 1))
    return sent, counts


def totals(lab: AgentsLab) -> Counter[bytes]:
    return Counter(
        {key: groups.decode_row(row).total for key, row in lab.rows(ALERT_GROUPS).items()}
    )


def test_the_key_of_the_topic_is_the_key_of_the_table() -> None:
    made = incident(service='a|"b"', policy=None)
    key = encode_alert_group(alert_group(made))
    assert groups.encode_key(groups.group_of(made)) == key
    assert groups.decode_key(key) == groups.group_of(made)


async def test_killed_workers_count_every_incident_once(lab: AgentsLab) -> None:
    """Five kill -9 of one of two workers while incidents stream in, in transactions of which some are aborted."""
    await lab.make_topics()
    sent, counts = many(4000, seed=1)
    router = Router(lab.settings)
    running = [lab.start_worker("a"), lab.start_worker("b")]
    await asyncio.sleep(4)
    stream = asyncio.create_task(lab.send([router.route(i) for i in sent], seconds=25))
    rng = random.Random(2)
    for kill in range(5):
        await asyncio.sleep(3 + rng.random() * 2)
        victim = kill % 2
        running[victim].kill()
        running[victim] = lab.start_worker("ab"[victim])
    await stream
    await until(lambda: totals(lab).total() >= counts.total(), 60, f"{counts.total()} incidents")
    await asyncio.sleep(1)
    assert totals(lab) == counts
    begun = time.monotonic()
    codes = [worker.stop() for worker in running]
    assert codes == [0, 0], lab.workers[-1].log_tail()
    assert time.monotonic() - begun < 10


async def test_a_worker_that_stood_still_past_its_session_changes_nothing(lab: AgentsLab) -> None:
    """SIGSTOP for longer than the session, then SIGCONT, with a full buffer; twice."""
    await lab.make_topics()
    sent, counts = many(3000, seed=3)
    router = Router(lab.settings)
    one, _two = lab.start_worker(), lab.start_worker()
    await asyncio.sleep(6)
    stream = asyncio.create_task(lab.send([router.route(i) for i in sent], seconds=30))
    for _ in range(2):
        await asyncio.sleep(2)
        one.pause()
        await asyncio.sleep(13)
        one.resume()
    await stream
    await until(lambda: totals(lab).total() >= counts.total(), 60, f"{counts.total()} incidents")
    await asyncio.sleep(1)
    assert totals(lab) == counts
    assert one.running


async def test_pages_arrive_once_each_after_alertmanager_was_away(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    lab = AgentsLab(
        kafka.bootstrap,
        unique,
        tmp_path,
        {"alertmanager_urls": f"http://127.0.0.1:{port}", "alert_labels": f"test={unique}"},
    )
    await lab.make_topics()
    router = Router(lab.settings)
    services = [f"svc-{n}" for n in range(8)]
    try:
        worker = lab.start_worker()
        await lab.send(
            [
                router.route(incident(f"i-{s}", service=s, caused_at_ms=wall_clock()))
                for s in services
            ]
        )
        await until(lambda: totals(lab).total() == 8, 40, "8 incidents")
        worker.kill()  # what it owed, the next one owes
        lab.start_worker()
        await asyncio.sleep(3)
        with WebhookReceiver() as webhook, Alertmanager(receiver_url=webhook.url, port=port):
            for service in services:
                await asyncio.to_thread(
                    webhook.wait_for, lambda a, s=service: a.labels["service"] == s, timeout=40
                )
            await asyncio.sleep(2)
            firing = Counter(a.labels["service"] for a in webhook.alerts if a.status == "firing")
            assert firing == dict.fromkeys(services, 1)
    finally:
        lab.stop_all()


async def test_an_incident_is_a_page_within_half_a_second(
    kafka: KafkaBroker,
    alertmanager: Alertmanager,
    webhook: WebhookReceiver,
    unique: str,
    tmp_path: Path,
) -> None:
    extra = {"alertmanager_urls": alertmanager.url, "alert_labels": f"test={unique}"}
    lab = AgentsLab(kafka.bootstrap, unique, tmp_path, extra)
    await lab.make_topics()
    router = Router(lab.settings)
    try:
        lab.start_worker()
        waits = []
        for n in range(12):
            begun = time.monotonic()
            made = incident(f"i-{n}", service=f"svc-{n}", caused_at_ms=wall_clock())
            await lab.send([router.route(made)])
            await asyncio.to_thread(
                webhook.wait_for,
                lambda a, n=n: a.labels.get("test") == unique and a.labels["service"] == f"svc-{n}",
                timeout=40,
            )
            if n >= 2:  # the first ones wait for the worker to start
                waits.append(time.monotonic() - begun)
            await asyncio.sleep(0.3)
        assert sorted(waits)[len(waits) // 2] < 0.5, waits
    finally:
        lab.stop_all()
