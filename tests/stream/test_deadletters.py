"""Redrive against a real broker: what was refused reaches the fragments log once, whatever happens in between."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from monitor.codec import decode_fold_record
from monitor.model import DeadLetter, Fragment, Source
from monitor.settings import Settings
from monitor.stack import KafkaBroker
from monitor.stream import clients, redrive
from monitor.stream.deadletters import MARKER_KEY, Wanted, marker
from monitor.stream.routing import Router
from monitor.stream.tables import changelog_specs
from monitor.stream.topics import create, specs
from monitor.stream.transaction import Fenced
from tests.chaos.lab import SHORT_LIVES, Lab, spans_in_fragments
from tests.intake.common import native

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

# The command, in a process that kills itself where a transaction is whole but not committed, or just committed.
DYING = """
import os, signal, sys
from aiokafka import AIOKafkaProducer
from monitor.stream import redrive
redrive.CHUNK_LETTERS = 10
commit, left, point = AIOKafkaProducer.commit_transaction, int(sys.argv.pop(1)), sys.argv.pop(1)
async def dying(self):
    global left
    left -= 1
    if left == 0 and point == "sent":
        os.kill(os.getpid(), signal.SIGKILL)
    await commit(self)
    if left == 0 and point == "committed":
        os.kill(os.getpid(), signal.SIGKILL)
AIOKafkaProducer.commit_transaction = dying
from monitor.cli.main import main
main()
"""


@pytest.fixture
def lab(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(kafka.bootstrap, unique, tmp_path, SHORT_LIVES)
    made.make_input()
    yield made
    made.kill_workers()


def command(lab: Lab, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return _python(lab, ("-m", "monitor", "deadletters", *arguments), env)


def _python(
    lab: Lab, arguments: tuple[str, ...], env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MONITOR_")}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**clean, **lab.env, **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def make_topics(lab: Lab) -> None:
    async def run() -> None:
        settings = lab.settings()
        async with clients.admin(settings) as admin:
            await create(admin, (*specs(settings), *changelog_specs(settings)))

    asyncio.run(run())


def put_letters(lab: Lab, count: int) -> None:
    """Letters of good spans, as a worker writes them that took the topic for another encoding."""
    make_topics(lab)
    router = Router(lab.settings())
    for n in range(count):
        letter = DeadLetter(
            reason="not_protobuf",
            detail="no OTLP",
            source=Source(lab.input, n % lab.partitions, n, 0, int(time.time() * 1000) - 60_000),
            value=native(trace_id=f"{n + 1:032x}", span_id=f"{n + 1:016x}"),
        )
        place, key, value = router.route(letter)
        lab.produce_to(place.topic, place.partition, key, value)


def sent(lab: Lab) -> Counter[str]:
    """Span ids in the input topic, as a reader of committed records sees them."""
    return Counter(json.loads(message.value)["span_id"] for message in lab.read(lab.input))


def headers_and_times(lab: Lab) -> list[tuple[str, int]]:
    consumer = Consumer({"bootstrap.servers": lab.bootstrap, "group.id": f"{lab.prefix}-headers"})
    try:
        consumer.assign([TopicPartition(lab.input, p, OFFSET_BEGINNING) for p in range(4)])
        found = []
        while (message := consumer.poll(3)) is not None:
            headers: Any = message.headers() or [("", b"")]
            found.append((headers[0][1].decode(), message.timestamp()[1]))
    finally:
        consumer.close()
    return found


def test_what_a_wrong_encoding_refused_reaches_the_fragments_once_when_that_is_cured(
    lab: Lab,
) -> None:
    wrong = {"MONITOR_INPUTS": f"{lab.input}=otlp_proto/traces"}
    lab.produce(native(trace_id=f"{n + 1:032x}", span_id=f"{n + 1:016x}") for n in range(40))
    lab.start_worker(**wrong)
    lab.wait("all refused", lambda: _count(lab, lab.names.deadletters) == 40)
    assert lab.stop_workers() == [0]

    listed = command(lab, "list", "--json", **wrong)
    records = [json.loads(line) for line in listed.stdout.splitlines()]
    assert len(records) == 40, listed.stderr
    assert {r["reason"] for r in records} == {"not_protobuf"}
    assert not any(r["redriven"] for r in records)
    too_soon = command(lab, "redrive", "--yes", **wrong)
    assert too_soon.returncode == 1
    assert "would be refused again" in too_soon.stdout

    lab.start_worker()
    done = command(lab, "redrive", "--yes")
    assert done.returncode == 0, done.stderr
    assert "sent 40 items" in done.stdout
    lab.wait("all in fragments", lambda: sum(spans_in_fragments(lab).values()) >= 40)
    again = command(lab, "redrive", "--yes")
    assert (again.returncode, "nothing to send" in again.stdout) == (0, True)
    lab.wait("every life closed", lab.all_closed)
    assert lab.stop_workers()[1:] == [0]
    ids = Counter(span_id for _, span_id, _, _ in spans_in_fragments(lab).elements())
    assert ids == Counter(f"{n + 1:016x}" for n in range(40))
    assert _count(lab, lab.names.deadletters) == 40
    records = [json.loads(line) for line in command(lab, "list", "--json").stdout.splitlines()]
    assert all(r["redriven"] for r in records)


def test_a_refused_score_joins_its_span_once_its_scorer_is_known(lab: Lab, tmp_path: Path) -> None:
    table = tmp_path / "scorers.toml"
    table.write_text("[scorers.judge]\nbooleans = true\n")
    lab.produce([native(parent_span_id=None, scores=[{"scorer": "judge", "value": True}])])
    lab.env["MONITOR_LATE_WINDOW"] = "60s"
    lab.start_worker()
    lab.wait("refused", lambda: _count(lab, lab.names.deadletters) == 1)
    assert lab.stop_workers() == [0]
    known = {"MONITOR_SCORERS": str(table)}
    lab.start_worker(**known)
    done = command(lab, "redrive", "--reason", "score_boolean", "--yes", **known)
    assert done.returncode == 0, done.stdout + done.stderr
    lab.wait("incident", lambda: _count(lab, lab.names.incidents) > 0)
    lab.wait("revised", lambda: json.loads(lab.read(lab.names.verdicts)[-1].value)["revision"] > 1)
    assert lab.stop_workers()[1:] == [0]
    [score] = [
        score
        for message in lab.read(lab.names.fragments)
        if isinstance(record := decode_fold_record(message.value), Fragment)
        for score in record.scores
    ]
    verdict = json.loads(lab.read(lab.names.verdicts)[-1].value)
    [reduction] = verdict["reductions"]
    assert (reduction["max_score"], reduction["span_count"]) == (score.score.value, 1) == (1.0, 1)
    assert reduction["argmax_span_id"] == score.span_id
    assert _count(lab, lab.names.deadletters) == 1


@pytest.mark.parametrize("point", ["sent", "committed"])
def test_killed_in_the_middle_and_run_again_each_is_sent_once(lab: Lab, point: str) -> None:
    put_letters(lab, 45)
    killed = _python(lab, ("-c", DYING, "3", point, "deadletters", "redrive", "--yes"), {})
    assert killed.returncode == -9, killed.stderr
    assert sum(sent(lab).values()) == (20 if point == "sent" else 30)
    done = command(lab, "redrive", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert sent(lab) == Counter(f"{n + 1:016x}" for n in range(45))
    assert json.loads(done.stdout)["sent"][0]["items"] == (25 if point == "sent" else 15)


def test_filters_leave_gaps_that_stay_redrivable_and_limits_are_kept(lab: Lab) -> None:
    put_letters(lab, 12)
    first = command(lab, "redrive", "--yes", "--json", "--limit", "5")
    assert json.loads(first.stdout)["sent"][0]["items"] == 5
    assert sum(sent(lab).values()) == 5
    none = command(lab, "redrive", "--yes", "--json", "--until", "1h")
    assert json.loads(none.stdout)["sent"] == []
    done = command(lab, "redrive", "--yes", "--json", "--since", "1h", "--topic", lab.input)
    assert json.loads(done.stdout)["sent"][0]["items"] == 7
    assert sent(lab) == Counter(f"{n + 1:016x}" for n in range(12))
    places, times = zip(*headers_and_times(lab), strict=True)
    assert len(set(places)) == 12  # each names its letter
    assert all(50_000 < time.time() * 1000 - at < 170_000 for at in times)  # the items' own


def test_no_record_is_sent_that_its_topic_would_drop_at_once_for_its_age(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    lab = Lab(kafka.bootstrap, unique, tmp_path)
    lab.make_input({"retention.ms": "20000"})
    put_letters(lab, 1)
    assert command(lab, "redrive", "--yes").returncode == 0
    [(_, at)] = headers_and_times(lab)
    assert time.time() * 1000 - at < 20_000


def test_a_topic_of_small_messages_takes_them_in_small_batches(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    lab = Lab(kafka.bootstrap, unique, tmp_path)
    lab.make_input({"max.message.bytes": "2000"})
    put_letters(lab, 200)
    done = command(lab, "redrive", "--yes")
    assert done.returncode == 0, done.stderr
    assert sent(lab) == Counter(f"{n + 1:016x}" for n in range(200))


def test_a_marker_behind_an_open_transaction_of_another_is_waited_for(lab: Lab) -> None:
    put_letters(lab, 8)
    settings = lab.settings()

    async def run() -> int:
        other = _producer(settings, "other")
        ours = _producer(settings, "ours")
        topic = lab.names.deadletters
        places = [(m.partition, m.offset) for m in lab.read(topic)]
        await other.start()
        await ours.start()
        try:
            await other.begin_transaction()
            for partition in range(lab.partitions):
                await other.send_and_wait(topic, b"{}", key=b"x", partition=partition)
            async with ours.transaction():
                for partition, offset in places:
                    value = marker([offset], 1)
                    await ours.send_and_wait(topic, value, key=MARKER_KEY, partition=partition)
            running = asyncio.create_task(redrive.redrive(settings, Wanted(), None, lambda _: None))
            await asyncio.sleep(2)
            assert not running.done()
            await other.commit_transaction()
            return (await running).sent.total()
        finally:
            await other.stop()
            await ours.stop()

    assert asyncio.run(run()) == 0
    assert not sent(lab)


def test_a_second_redrive_ends_the_first(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    put_letters(lab, 30)
    settings = lab.settings()
    monkeypatch.setattr(redrive, "CHUNK_LETTERS", 10)
    first_sent = 0

    async def run() -> None:
        nonlocal first_sent
        paused, go_on = asyncio.Event(), asyncio.Event()
        transact = redrive._transact
        calls = 0

        async def held(*args: object) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                paused.set()
                await go_on.wait()
            await transact(*args)  # type: ignore[arg-type]

        def count(letters: int) -> None:
            nonlocal first_sent
            first_sent += letters

        monkeypatch.setattr(redrive, "_transact", held)
        first = asyncio.create_task(redrive.redrive(settings, Wanted(), None, count))
        await paused.wait()
        second = await redrive.redrive(settings, Wanted(), None, lambda _: None)
        assert second.sent.total() == 20
        go_on.set()
        with pytest.raises(Fenced):
            await first

    asyncio.run(run())
    assert first_sent == 10
    assert sent(lab) == Counter(f"{n + 1:016x}" for n in range(30))


def _producer(settings: Settings, name: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        **settings.kafka_client_args(), transactional_id=f"{settings.group}-{name}"
    )


def _count(lab: Lab, topic: str) -> int:
    """Records but markers; none where the topic is not made yet."""
    try:
        return sum(message.key != MARKER_KEY for message in lab.read(topic))
    except (KeyError, AssertionError):
        return 0
