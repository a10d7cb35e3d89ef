"""The whole product as its user runs it: one worker, real Kafka, Alertmanager and Prometheus."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.agentdojo import load, two_halves
from monitor.demo.services import INPUT_TOPIC, Services, services
from monitor.demo.traffic import SHELL_SERVICE, Traffic

T = TypeVar("T")

OTLP_TOPIC = "otlp_spans"
CAPTURE = "otlp/langgraph_openinference.otlp_proto.jsonl.gz"

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def running(require_binary: Callable[[str], Path]) -> Iterator[Services]:
    for name in ("alertmanager", "prometheus"):
        require_binary(name)
    more = {
        "MONITOR_INPUTS": f"{INPUT_TOPIC}=json,{OTLP_TOPIC}=otlp_proto/traces",
        "MONITOR_ALERT_LABELS": "env=test",
    }
    with services(more) as started:
        admin = AdminClient({"bootstrap.servers": started.kafka.bootstrap})
        for future in admin.create_topics([NewTopic(OTLP_TOPIC, 3, 1)]).values():
            future.result(timeout=30)
        yield started


def test_one_bad_span_pages_and_prometheus_sees_it(running: Services) -> None:
    trace = Traffic(seed=1).buried_shell_call()
    produce(running, INPUT_TOPIC, [json.dumps(span).encode() for span in trace.spans])
    _, alert = running.receiver.wait_for(
        lambda a: a.labels.get("service") == SHELL_SERVICE, timeout=30
    )
    assert alert.labels["alertname"] == "AgentMonitorSpanOverThreshold"
    assert alert.labels["severity"] == "critical"
    assert alert.labels["env"] == "test"
    assert alert.annotations["trace_id"] == trace.trace_id
    assert alert.annotations["score"] == "0.9100"
    verdict = eventually(lambda: published(running, "monitor.verdicts").get(trace.trace_id))
    assert verdict["closed_by"] == "root_complete"
    assert verdict["reductions"][0]["scalar"] is None
    command = alert.annotations["show"].split()
    shown = monitor(running, *command[1:], "--json").splitlines()
    assert [json.loads(line)["trace_id"] for line in shown] == [trace.trace_id]
    listed = monitor(running, "incidents", "list", "--service", SHELL_SERVICE).decode()
    assert alert.annotations["incident_id"] in listed
    assert "0.910" in monitor(running, *command[1:]).decode()
    total = 'sum(agent_monitor_incidents_total{reason="threshold",severity="critical"})'
    assert eventually(lambda: query(running, total)) >= 1


def test_a_collectors_message_reaches_verdicts(running: Services, shared_data: Path) -> None:
    with gzip.open(shared_data / CAPTURE) as lines:
        values = [base64.b64decode(json.loads(line)["value_b64"]) for line in lines]
    produce(running, OTLP_TOPIC, values)
    decoded = json.loads(
        gzip.decompress((shared_data / "otlp/decoded/langgraph_openinference.json.gz").read_bytes())
    )
    traces = {span["trace"] for message in decoded for span in message["spans"]}
    found = eventually(
        lambda: (
            {t: v for t, v in published(running, "monitor.verdicts").items() if t in traces} or None
        )
    )
    found = eventually(lambda: _all_of(published(running, "monitor.verdicts"), set(found)))
    assert {verdict["service"] for verdict in found.values()} == {"support-bot"}
    assert any(
        role in r["roles"]
        for v in found.values()
        for r in v["reductions"]
        for role in ("tool_call", "planner")
    )


def test_broken_input_of_every_kind_is_dead_lettered_and_the_rest_goes_through(
    running: Services,
) -> None:
    good = Traffic(seed=2).buried_shell_call()
    span = dict(good.spans[0])
    cases: dict[str, bytes] = {
        "not JSON": b"{nope",
        "not UTF-8": json.dumps({**span, "name": "x"}).encode().replace(b'"x"', b'"\xff"'),
        "wrong type": json.dumps({**span, "start_unix_nano": "soon"}).encode(),
        "no trace id": json.dumps({**span, "trace_id": None}).encode(),
        "no span id": json.dumps({**span, "span_id": ""}).encode(),
        "nested": b'{"trace_id":' + b"[" * 1000 + b"]" * 1000 + b"}",
        "NaN": json.dumps(span).replace(str(span["scores"][0]["value"]), "NaN").encode(),
        "a score out of range": json.dumps(
            {**span, "scores": [{"scorer": "s", "version": "1", "value": 1.5}]}
        ).encode(),
    }
    produce(running, INPUT_TOPIC, [*cases.values(), *(json.dumps(s).encode() for s in good.spans)])
    letters = eventually(lambda: _at_least(dead_letters(running), len(cases)))
    reasons = {letter["reason"] for letter in letters}
    assert len(letters) == len(cases), reasons
    assert all(letter["source"] for letter in letters)
    verdict = eventually(lambda: published(running, "monitor.verdicts").get(good.trace_id))
    assert verdict["reductions"][0]["max_score"] == 0.91
    assert eventually(lambda: query(running, "sum(agent_monitor_dead_letters_total)")) >= len(cases)
    for stage in ("ingest", "assemble", "agents"):
        lag = f'max(agent_monitor_consumer_lag_seconds{{stage="{stage}"}}) == bool 0'
        assert eventually(lambda lag=lag: query(running, lag)) == 1  # known, and nothing waits


def test_the_heartbeat_fires_through_prometheus(running: Services) -> None:
    _, alert = running.receiver.wait_for(
        lambda a: a.labels["alertname"] == "AgentMonitorHeartbeat", timeout=60
    )
    assert alert.status == "firing"


def test_replay_of_the_fragments_gives_what_the_worker_gave(
    running: Services, tmp_path: Path
) -> None:
    trace = Traffic(seed=3).reused_span_ids()
    produce(running, INPUT_TOPIC, [json.dumps(span).encode() for span in trace.spans])
    eventually(lambda: published(running, "monitor.verdicts").get(trace.trace_id))
    before = folded(running)
    dump = tmp_path / "fragments.jsonl"
    dump.write_bytes(monitor(running, "topics", "dump", "monitor.fragments"))
    replayed = monitor(running, "replay", "--json", "--fragments", str(dump)).splitlines()
    found = Counter(
        line for line in replayed if json.loads(line)["kind"] in ("verdict", "incident")
    )
    after = folded(running)
    assert sum(before.values()) >= 4
    assert before <= found <= after  # bit for bit; the worker went on while the dump was made


def test_explain_derives_what_the_worker_published_again(running: Services) -> None:
    trace = Traffic(seed=4).reused_span_ids()
    produce(running, INPUT_TOPIC, [json.dumps(span).encode() for span in trace.spans])
    eventually(lambda: published(running, "monitor.verdicts").get(trace.trace_id))
    ids = {
        record["incident_id"]
        for value in values(running, "monitor.incidents")
        if (record := json.loads(value))["trace_id"] == trace.trace_id
    }
    assert ids
    for what in (trace.trace_id, *ids):
        [explained] = map(json.loads, monitor(running, "explain", "--json", what).splitlines())
        assert explained["same"] is True, explained["differences"]


def test_topics_check_passes_on_what_the_worker_made(running: Services) -> None:
    assert json.loads(monitor(running, "topics", "check", "--json")) == []


def test_an_attack_whose_halves_lie_in_two_traces_of_a_session_pages(
    running: Services, shared_data: Path, tmp_path: Path
) -> None:
    dojo = load(shared_data / "agentdojo")
    attacks = [
        two_halves(trace, dojo.labels[trace_id])
        for trace_id, trace in dojo.traces.items()
        if dojo.labels[trace_id]["policy_class"] == "compositional_exfiltration"
    ][::4]
    lines = [json.dumps(span).encode() for halves in attacks for half in halves for span in half]
    file = tmp_path / "spans.jsonl"
    file.write_bytes(b"\n".join(lines))
    replayed = map(json.loads, monitor(running, "replay", "--json", str(file)).splitlines())
    wanted = {r["incident_id"]: _said(r) for r in replayed if r.get("session")}
    assert sum("critical" in said for said in wanted.values()) >= len(attacks) // 2
    for n in (1, 0):  # the halves with the acts come first
        produce(
            running,
            INPUT_TOPIC,
            [json.dumps(span).encode() for halves in attacks for span in halves[n]],
        )
    found = eventually(
        lambda: seen if (seen := across_traces(running)).keys() >= wanted.keys() else None
    )
    assert {i: said for i, said in found.items() if i in wanted} == wanted
    _, alert = running.receiver.wait_for(
        lambda a: a.annotations.get("incident_id") in wanted, timeout=30
    )
    assert alert.labels["policy"] in ("tool_chaining", "compositional_exfiltration")


def across_traces(running: Services) -> dict[str, Any]:
    """What the last revision of each incident over several traces says."""
    return {
        r["incident_id"]: _said(r) for r in committed(running, "monitor.incidents") if r["session"]
    }


def _said(incident: Any) -> tuple[Any, ...]:
    traces = sorted(trace["trace_id"] for trace in incident["session"]["traces"])
    return (incident["policy"], incident["severity"], *traces)


def folded(running: Services) -> Counter[bytes]:
    """Verdicts and incidents that assemble published: what the fold of the fragments gives."""
    topics = ("monitor.verdicts", "monitor.incidents")
    found = (value for topic in topics for value in values(running, topic))
    return Counter(value for value in found if not json.loads(value).get("session"))


def monitor(running: Services, *arguments: str) -> bytes:
    """Standard output of the command line with the worker's settings."""
    done = subprocess.run(
        [sys.executable, "-m", "monitor", *arguments],
        env={**os.environ, **running.worker.settings},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def eventually(look: Callable[[], T | None], seconds: float = 40) -> T:
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"nothing after {seconds} s"
        time.sleep(0.5)
    return found


def produce(running: Services, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": running.kafka.bootstrap, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def published(running: Services, topic: str) -> dict[str, Any]:
    """Last committed record by trace id."""
    return {record["trace_id"]: record for record in committed(running, topic)}


def dead_letters(running: Services) -> list[Any]:
    return list(committed(running, "monitor.deadletters"))


def committed(running: Services, topic: str) -> Iterator[Any]:
    return map(json.loads, values(running, topic))


def values(running: Services, topic: str) -> Iterator[bytes]:
    """Values of all committed records, read by another client than the worker's."""
    consumer = Consumer(
        {
            "bootstrap.servers": running.kafka.bootstrap,
            "group.id": "looks-only",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    partitions = int(running.settings["MONITOR_PARTITIONS"])
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    ends = 0
    try:
        while ends < partitions:
            message = consumer.poll(10)
            assert message is not None, f"{topic}: no answer"
            if message.error():
                ends += 1
            else:
                yield message.value() or b"null"
    finally:
        consumer.close()


def query(running: Services, expression: str) -> float | None:
    assert running.prometheus is not None
    url = f"{running.prometheus.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(url, timeout=5) as answer:
        result = json.load(answer)["data"]["result"]
    return float(result[0]["value"][1]) if result else None


def _at_least(found: list[Any], count: int) -> list[Any] | None:
    return found if len(found) >= count else None


def _all_of(found: dict[str, Any], wanted: set[str]) -> dict[str, Any] | None:
    kept = {trace: verdict for trace, verdict in found.items() if trace in wanted}
    return kept if len(kept) == len(wanted) else None
