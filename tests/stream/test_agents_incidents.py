"""The incident agent on a real broker: exact counts over kills and standstills, and pages that arrive."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from monitor.alerting import groups
from monitor.alerting.alertmanager import wall_clock
from monitor.alerting.board import ALERT_LIMIT
from monitor.model import Incident
from monitor.stack import Alertmanager, KafkaBroker, WebhookReceiver
from monitor.stack.alertmanager import webhook_config
from monitor.stack.process import free_ports
from monitor.stream.routing import Router, alert_group, encode_alert_group
from monitor.stream.tables import ALERT_GROUPS
from tests.alerting.incidents import incident
from tests.stream.agents_lab import AgentsLab, until

STORM = 3000  # of the 10,000 of a real one, which the groups' own test counts
MADE_UP = 500

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


async def test_a_storm_is_a_few_pages_with_the_right_counts(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    """Thousands of incident traces at once, of three services and of many made-up names: exact counts, few pages."""
    config = json.loads(webhook_config("unused"))
    with WebhookReceiver() as webhook:
        config["route"]["group_by"] = ["alertname", "service", "reason", "policy", "severity"]
        config["receivers"][0]["webhook_configs"][0]["url"] = webhook.url
        with Alertmanager(config=json.dumps(config)) as alertmanager:
            extra = {"alertmanager_urls": alertmanager.url, "alert_labels": f"test={unique}"}
            lab = AgentsLab(kafka.bootstrap, unique, tmp_path, extra)
            await lab.make_topics()
            router = Router(lab.settings)
            # The worst of a service comes somewhere in the middle.
            sent = [
                incident(
                    f"i-{n}",
                    service=f"svc-{n % 3}",
                    trace_id=f"{n:032x}",
                    max_score=0.99 if n // 3 == 700 else 0.6,
                    caused_at_ms=wall_clock(),
                )
                for n in range(STORM)
            ]
            made_up = [
                incident(
                    f"m-{n}", service=f"made-up-{n}", severity="info", caused_at_ms=wall_clock()
                )
                for n in range(MADE_UP)
            ]
            try:
                lab.start_worker()
                await lab.send([router.route(i) for i in (*sent, *made_up)], seconds=8)
                await until(lambda: totals(lab).total() >= STORM + MADE_UP, 90, "all incidents")
                counts = totals(lab)
                assert sorted(counts.values())[-3:] == [STORM // 3] * 3
                assert counts.total() == STORM + MADE_UP
                held = await alerts_of(alertmanager.url, STORM // 3)
                for n in range(3):
                    notes = held["AgentMonitorSpanOverThreshold", f"svc-{n}"]
                    assert notes["count"] == str(STORM // 3)
                    assert notes["incident_id"] == f"i-{2100 + n}"
                    assert f"first i-{n} " in notes["examples"]
                # 200 at most singly, the three critical ones among them, the others in one.
                assert len(held) == ALERT_LIMIT + 1
                more = held["AgentMonitorMoreIncidents", "other"]
                assert more["count"] == str(MADE_UP + 3 - ALERT_LIMIT)
                critical = [a for a in webhook.alerts if a.labels["severity"] == "critical"]
                assert Counter(a.labels["service"] for a in critical) == {
                    "svc-0": 1,
                    "svc-1": 1,
                    "svc-2": 1,
                }
            finally:
                lab.stop_all()


async def alerts_of(url: str, count: int) -> dict[tuple[str, str], dict[str, str]]:
    """Annotations of the firing alerts by name and service, once the last count has arrived."""
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.get(f"{url}/api/v2/alerts") as got:
                held = {
                    (a["labels"]["alertname"], a["labels"]["service"]): a["annotations"]
                    for a in await got.json()
                }
            counts = [notes["count"] for notes in held.values()]
            if counts.count(str(count)) == 3 and len(held) > ALERT_LIMIT:
                return held
            await asyncio.sleep(0.2)
    raise AssertionError(Counter(counts))


async def test_a_restart_of_alertmanager_is_no_second_page_and_it_learns_again_what_fires(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    """Its alerts are in memory, its log of what it told whom on its disk."""
    (port,) = free_ports(1)
    lab = AgentsLab(
        kafka.bootstrap, unique, tmp_path, {"alertmanager_urls": f"http://127.0.0.1:{port}"}
    )
    await lab.make_topics()
    router = Router(lab.settings)
    with WebhookReceiver() as webhook:
        alertmanager = Alertmanager(tmp_path / "am", receiver_url=webhook.url, port=port)
        try:
            await asyncio.to_thread(alertmanager.start)
            lab.start_worker()
            await lab.send([router.route(incident("i-1", caused_at_ms=wall_clock()))])
            await asyncio.to_thread(webhook.wait_for, lambda a: a.status == "firing", timeout=40)
            await asyncio.sleep(2)  # it notes whom it told only once the receiver has answered
            await asyncio.to_thread(alertmanager.stop)
            # While it is away another one of the group comes: a change is told at once when it is back.
            await lab.send([router.route(incident("i-2", caused_at_ms=wall_clock()))])
            await until(lambda: totals(lab).total() == 2, 20, "2 incidents")
            await asyncio.to_thread(alertmanager.start)
            async with aiohttp.ClientSession() as session:
                for _ in range(100):
                    async with session.get(f"{alertmanager.url}/api/v2/alerts") as got:
                        held = await got.json()
                    if held:
                        break
                    await asyncio.sleep(0.2)
            assert [a["annotations"]["count"] for a in held] == ["2"]
            await asyncio.sleep(3)
            assert [a.status for a in webhook.alerts] == ["firing"]
        finally:
            lab.stop_all()
            await asyncio.to_thread(alertmanager.close)
