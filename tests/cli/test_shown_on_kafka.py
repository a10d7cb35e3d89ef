"""Commands that count what the verdicts topic holds, on a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest
from aiokafka import AIOKafkaProducer

from monitor.codec import encode_json
from monitor.model import Incident, Verdict
from monitor.stack import KafkaBroker
from tests.alerting.incidents import incident
from tests.replay.test_replay import run
from tests.trace.test_commonness import AT, OWN, verdict

pytestmark = pytest.mark.kafka


async def send(bootstrap: str, topic: str, records: Iterable[Verdict | Incident]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        for record in records:
            key = (record.trace_id or "").encode()
            await producer.send_and_wait(topic, encode_json(record), key=key)
    finally:
        await producer.stop()


@pytest.fixture
def settings(kafka: KafkaBroker, unique: str) -> dict[str, str]:
    found = {
        "BOOTSTRAP_SERVERS": kafka.bootstrap,
        "TOPIC_PREFIX": f"{unique}.",
        "GROUP": unique,
        "PARTITIONS": "4",
    }
    assert run("topics", "create", **found).returncode == 0
    others = [verdict(f"t{n}", n / 20) for n in range(20)]
    asyncio.run(send(kafka.bootstrap, f"{unique}.verdicts", [*others, OWN]))
    shown = incident("i-1", trace_id="own", life=7, opened_at_ms=AT, max_score=0.5)
    asyncio.run(send(kafka.bootstrap, f"{unique}.incidents", [shown]))
    return found


def test_an_incident_says_how_common_so_high_a_score_is(settings: dict[str, str]) -> None:
    done = run("incidents", "show", "i-1", **settings)
    assert done.returncode == 0, done.stderr
    assert "how common: 10 of 20 earlier traces of shop with 8 to 15 spans" in done.stdout


def test_thresholds_are_proposed_from_the_verdicts(settings: dict[str, str]) -> None:
    done = run("thresholds", "suggest", "--json", "--days", "1", "--pages-per-day", "3", **settings)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["traces"] == 21
    assert {one["role"]: one["over"] for one in found["roles"]} == {"planner": 21, "tool_call": 0}
