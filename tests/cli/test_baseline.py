"""A control goes where its key's deltas go; what became of it can be read back, bytes of hostile names shown as text."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from monitor.cli.kafka import committed_records
from monitor.codec import encode_json
from monitor.drift.messages import BaselineControl, decode_message
from monitor.settings import Settings
from monitor.stack import KafkaBroker
from monitor.stream import clients
from monitor.stream.placement import partition_of
from monitor.stream.topics import TopicNames, create, partition_counts, specs
from tests.drift.traffic import Run, log_of, trace
from tests.replay.test_replay import run


def test_without_kafka_it_says_so_in_one_line() -> None:
    done = run("baseline", "pin", "svc", "guard", "m1", "--why=x", BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert done.returncode == 4
    [line] = done.stderr.splitlines()
    assert "MONITOR_BOOTSTRAP_SERVERS" in line


def test_a_text_without_end_is_not_sent() -> None:
    done = run("baseline", "promote", "svc", "guard", "--why", "x" * 1001, "--who", "ann")
    assert done.returncode == 2
    assert "--why has 1001 characters" in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.kafka
def test_a_pin_is_applied_under_its_key_and_audited(kafka: KafkaBroker, unique: str) -> None:
    env = {"BOOTSTRAP_SERVERS": kafka.bootstrap, "TOPIC_PREFIX": f"{unique}."}
    settings = Settings.load(
        {f"MONITOR_{k}": v for k, v in env.items()} | {"MONITOR_TOKEN_KEY": "0" * 32}
    )
    names = TopicNames(settings.topic_prefix)

    async def made() -> int:
        async with clients.admin(settings) as admin:
            await create(admin, specs(settings))
            return (await partition_counts(admin, [names.score_deltas]))[names.score_deltas]

    count = asyncio.run(made())
    empty = run("baseline", "list", **env)
    assert (empty.returncode, empty.stdout.split()[0]) == (0, "nothing")
    before = time.time_ns() // 1_000_000
    done = run("baseline", "pin", "svc", "guard", "m1", "--why=r\x1b[31m", "--who=ann", **env)
    assert done.returncode == 0, done.stderr

    async def sent() -> list[tuple[int, bytes | None, bytes]]:
        found = committed_records(settings, names.score_deltas)
        return [(r.partition, r.key, r.value or b"") async for r in found]

    [(partition, key, value)] = asyncio.run(sent())
    control = decode_message(value)
    assert isinstance(control, BaselineControl)
    assert (key, partition) == (b"svc|guard", partition_of("svc|guard", count))
    assert (control.action, control.model_version, control.who) == ("pin", "m1", "ann")
    assert before <= control.at_ms <= time.time_ns() // 1_000_000

    [record] = Run().feed([*log_of([(0, trace({"planner": [0.1]}))]), value]).controls
    assert record.applied

    async def answer() -> None:
        async with clients.plain_producer(settings, "test") as producer:
            await producer.send_and_wait(names.baselines, encode_json(record), key=key)

    asyncio.run(answer())
    shown = run("baseline", "show", "svc", "guard", **env)
    assert shown.returncode == 0
    assert "ann" in shown.stdout
    assert "applied: m1 is the reference" in shown.stdout
    assert "\x1b[31m" not in shown.stdout
    [line] = run("baseline", "list", "--json", **env).stdout.splitlines()
    assert json.loads(line)["why"] == "r\x1b[31m"
    assert run("baseline", "show", "svc", "other", **env).returncode == 1
