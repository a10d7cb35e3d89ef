"""The services really start, really serve, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from confluent_kafka import Consumer, Producer

from monitor.stack import (
    Alertmanager,
    ChildProcess,
    KafkaBroker,
    MissingBinaryError,
    Prometheus,
    StackError,
    WebhookReceiver,
    find_binary,
    free_ports,
)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended: only its parent's wait is missing.
    return ") Z " not in Path(f"/proc/{pid}/stat").read_text()


def until(condition: Callable[[], bool], *, timeout: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


async def create_topic(bootstrap: str, name: str, *, partitions: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])
    finally:
        await admin.close()


async def produce_in_transaction(bootstrap: str, topic: str, values: list[bytes]) -> None:
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-tx") as producer,
        producer.transaction(),
    ):
        for value in values:
            await producer.send_and_wait(topic, value)


async def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        return [(await consumer.getone()).value for _ in range(count)]


@pytest.mark.kafka
async def test_records_pass_between_both_clients(kafka: KafkaBroker, unique: str) -> None:
    await create_topic(kafka.bootstrap, unique)
    await produce_in_transaction(kafka.bootstrap, unique, [b"from aiokafka"])

    def confluent() -> bytes | None:
        consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "group.id": unique,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([unique])
        try:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            value = message.value()
        finally:
            consumer.close()
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(unique, b"from confluent-kafka")
        assert producer.flush(30) == 0
        return value

    assert await asyncio.to_thread(confluent) == b"from aiokafka"
    assert await consume(kafka.bootstrap, unique, 2) == [b"from aiokafka", b"from confluent-kafka"]


@pytest.mark.kafka
async def test_topics_are_not_made_by_a_misspelling(kafka: KafkaBroker, unique: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.timeout.ms": 2000})
        errors: list[str] = []
        producer.produce(unique, b"x", on_delivery=lambda error, _: errors.append(str(error)))
        await asyncio.to_thread(producer.flush, 30)
        assert len(errors) == 1
        assert unique not in await admin.list_topics()
    finally:
        await admin.close()


@pytest.mark.kafka
async def test_a_broker_keeps_its_records_over_stop_and_kill_and_then_leaves_nothing(
    unique: str,
) -> None:
    broker = KafkaBroker(overrides={"message.max.bytes": "123456"})
    folder = broker.data_dir
    with broker:
        first_pid, bootstrap = broker.pid, broker.bootstrap
        await create_topic(bootstrap, unique)
        await produce_in_transaction(bootstrap, unique, [b"1"])

        broker.stop()
        assert not alive(first_pid)
        broker.start()
        assert broker.bootstrap == bootstrap
        await produce_in_transaction(bootstrap, unique, [b"2"])
        # A commit returns before its marker is in the log. If the broker is killed in between, Kafka 4.3
        # writes the marker only once the same transactional id is opened again (else not within 150 s),
        # and no read_committed reader gets past that record until then.
        assert await consume(bootstrap, unique, 2) == [b"1", b"2"]

        second_pid = broker.pid
        broker.kill()
        assert not alive(second_pid)
        broker.start()
        assert await consume(bootstrap, unique, 2) == [b"1", b"2"]
        assert "message.max.bytes=123456" in (folder / "server.properties").read_text()
        assert "Kafka Server started" in broker.log_path.read_text()
        last_pid = broker.pid
    assert not alive(last_pid)
    assert not folder.exists()


@pytest.mark.kafka
def test_a_broker_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path, overrides={"num.network.threads": "none"})
    with pytest.raises(StackError, match=r"num\.network\.threads"):
        broker.start()
    assert not broker.running


@pytest.mark.kafka
def test_a_broker_whose_port_is_taken_says_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = KafkaBroker(port=taken.getsockname()[1])
        with pytest.raises(StackError, match="Address already in use"), broker:
            pytest.fail("it started on a port that another process has")


def test_properties_that_the_broker_sets_itself_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"listeners, node\.id"):
        KafkaBroker(tmp_path, overrides={"node.id": "7", "listeners": "PLAINTEXT://:1"})


def test_missing_jars_name_the_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_MONITOR_KAFKA_LIBS", str(tmp_path))
    with pytest.raises(StackError, match="make setup"):
        KafkaBroker(tmp_path)


def test_a_missing_program_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        MissingBinaryError, match="apt-get install prometheus-alertmanager"
    ) as caught:
        find_binary("alertmanager")
    assert caught.value.exit_code == 3


def test_free_ports_differ_and_can_be_bound() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


def sleeper(tmp_path: Path, code: str = "import time; time.sleep(600)") -> ChildProcess:
    return ChildProcess(
        "sleeper", [sys.executable, "-u", "-c", code], log_path=tmp_path / "sleeper.log"
    )


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = sleeper(
        tmp_path,
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up');"
        "time.sleep(600)",
    )
    child.start()
    child.wait_until(lambda: "up" in child.log(), timeout=30)
    assert child.stop(grace=0.2) == -signal.SIGKILL
    assert not alive(child.pid)


def test_a_paused_child_can_be_stopped(tmp_path: Path) -> None:
    child = sleeper(tmp_path, "import time; print('up'); time.sleep(600)")
    child.start()
    child.wait_until(lambda: "up" in child.log(), timeout=30)
    child.pause()
    assert child.stop() == -signal.SIGTERM


def test_a_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    child = sleeper(tmp_path, "import time; print('up'); time.sleep(600)")
    thread = threading.Thread(target=child.start)
    thread.start()
    thread.join()
    child.wait_until(lambda: "up" in child.log(), timeout=30)
    time.sleep(0.2)  # the death signal of an ended thread comes at once
    assert child.running
    child.stop()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_die_with_their_parent(tmp_path: Path, how: signal.Signals) -> None:
    script = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from monitor.stack import ChildProcess
        child = ChildProcess(
            "sleeper",
            [sys.executable, "-u", "-c", "import time; print('up'); time.sleep(600)"],
            log_path=Path({str(tmp_path / "child.log")!r}),
        )
        child.start()
        child.wait_until(lambda: "up" in child.log(), timeout=30)
        print(child.pid, flush=True)
        time.sleep(600)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        assert alive(child_pid)
        parent.send_signal(how)
        parent.wait(30)
    assert until(lambda: not alive(child_pid))


def test_a_child_that_ends_early_is_told_with_its_log(tmp_path: Path) -> None:
    child = sleeper(tmp_path, "import sys; sys.exit('no such luck')")
    child.start()
    with pytest.raises(StackError, match=r"exit code 1 before it was ready.*(?s:.*)no such luck"):
        child.wait_until(lambda: False, timeout=30)


def post_alert(url: str, name: str, *, ends_in: timedelta) -> None:
    now = datetime.now(UTC)
    alert = {
        "labels": {"alertname": name},
        "annotations": {"summary": "a test"},
        "startsAt": (now - timedelta(seconds=60)).isoformat(),
        "endsAt": (now + ends_in).isoformat(),
    }
    request = urllib.request.Request(
        f"{url}/api/v2/alerts",
        data=json.dumps([alert]).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.status == 200


def test_an_alert_reaches_the_webhook_when_it_fires_and_when_it_resolves(
    alertmanager: Alertmanager, webhook: WebhookReceiver, unique: str
) -> None:
    post_alert(alertmanager.url, unique, ends_in=timedelta(minutes=5))
    _, fired = webhook.wait_for(lambda alert: alert.labels["alertname"] == unique, timeout=20)
    assert (fired.status, fired.annotations["summary"]) == ("firing", "a test")

    post_alert(alertmanager.url, unique, ends_in=timedelta(seconds=-1))
    webhook.wait_for(
        lambda alert: alert.labels["alertname"] == unique and alert.status == "resolved", timeout=20
    )


def test_a_wait_for_an_alert_that_does_not_come_says_what_came() -> None:
    with WebhookReceiver() as receiver:
        request = urllib.request.Request(receiver.url, data=b"{}")
        with pytest.raises(OSError, match="400"):
            urllib.request.urlopen(request, timeout=10)
        with pytest.raises(TimeoutError, match=r"0 notifications .* 1 unreadable"):
            receiver.wait_for(lambda _: True, timeout=0.1)


def test_prometheus_scrapes_evaluates_and_pages(
    prometheus_binary: Path,
    alertmanager: Alertmanager,
    webhook: WebhookReceiver,
    unique: str,
    tmp_path: Path,
) -> None:
    assert prometheus_binary.exists()
    rules = tmp_path / "rules.yml"
    rule = {"alert": "SelfIsUp", "expr": 'up{job="self"} == 1', "labels": {"test": unique}}
    rules.write_text(json.dumps({"groups": [{"name": "test", "rules": [rule]}]}))
    port = free_ports(1)[0]
    with Prometheus(
        port=port,
        targets={"self": [f"127.0.0.1:{port}"]},
        rule_files=[rules],
        alertmanager_urls=[alertmanager.url],
    ) as prometheus:
        assert prometheus.url == f"http://127.0.0.1:{port}"
        _, alert = webhook.wait_for(lambda alert: alert.labels.get("test") == unique, timeout=60)
        pid = prometheus.pid
    assert alert.labels["alertname"] == "SelfIsUp"
    assert not alive(pid)


def test_prometheus_refuses_rules_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.yml"):
        Prometheus(targets={}, rule_files=[tmp_path / "missing.yml"])
