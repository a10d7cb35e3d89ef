"""From an agent's own OpenTelemetry through a real Collector and a real broker to verdicts, as docs/collector.md says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from monitor.demo.services import SHORT_TIMES
from monitor.settings import Settings
from monitor.stack import Collector, KafkaBroker, MissingBinaryError, Worker
from monitor.stack.collector import CONFIG
from tests.collector import agent
from tests.conftest import unique_name

HARMLESS = 20
TICKETS = HARMLESS + 3
SPANS_OF_A_TICKET = 5
# As in a real cluster: each topic its own number.
PARTITIONS = {"otlp_spans": 4, "otlp_logs": 3}
ENCODINGS = ("otlp_proto", "otlp_json")

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


@dataclass(frozen=True)
class Run:
    """What the agent said and what became of it, for one encoding."""

    encoding: str
    prefix: str
    kafka: KafkaBroker
    collector: Collector
    tickets: list[dict[str, Any]]

    @property
    def trace_ids(self) -> set[str]:
        return {ticket["trace_id"] for ticket in self.tickets}

    def dangerous(self, scores: str) -> dict[str, Any]:
        """The ticket whose scores are told so."""
        return next(t for t in self.tickets[HARMLESS:] if t["scores"] == scores)

    def verdicts(self) -> dict[str, dict[str, Any]]:
        """Latest by trace."""
        return {verdict["trace_id"]: verdict for verdict in self.records("verdicts")}

    def incidents(self) -> dict[str, dict[str, Any]]:
        """Latest by incident id."""
        found = sorted(self.records("incidents"), key=lambda incident: incident["revision"])
        return {incident["incident_id"]: incident for incident in found}

    def records(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(value) for value in read(self.kafka, f"{self.prefix}.{topic}")]

    def has_closed(self, trace_id: str) -> bool:
        return trace_id in self.verdicts()

    def is_over(self) -> bool:
        """Every trace has its verdict with every score, every incident its forensics."""
        verdicts = self.verdicts()
        return (
            verdicts.keys() >= self.trace_ids
            and all(scored(verdict) == SPANS_OF_A_TICKET for verdict in verdicts.values())
            and all(i["forensics"]["status"] != "pending" for i in self.incidents().values())
        )


@pytest.fixture(scope="module")
def documented(repository: Path) -> dict[str, str]:
    """The monitor's settings as docs/collector.md has them."""
    page = (repository / "docs" / "collector.md").read_text("utf-8")
    return dict(re.findall(r"^\$ export (MONITOR_\w+)=(.*)$", page, re.MULTILINE))


@pytest.fixture(scope="module", params=ENCODINGS)
def run(
    request: pytest.FixtureRequest,
    documented: dict[str, str],
    kafka: KafkaBroker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    encoding, prefix = request.param, unique_name("collector")
    logs = tmp_path_factory.mktemp(prefix)
    topics = {name: f"{prefix}-{name}" for name in PARTITIONS}
    variables = {
        "KAFKA_BROKER": kafka.bootstrap,
        "KAFKA_ENCODING": encoding,
        "KAFKA_SPANS_TOPIC": topics["otlp_spans"],
        "KAFKA_LOGS_TOPIC": topics["otlp_logs"],
    }
    unstarted = collector(variables, logs)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    made = admin.create_topics([NewTopic(topics[name], n, 1) for name, n in PARTITIONS.items()])
    for future in made.values():
        future.result(timeout=30)
    inputs = documented["MONITOR_INPUTS"].replace("otlp_proto", encoding)
    settings = {
        **documented,
        **SHORT_TIMES,
        "MONITOR_BOOTSTRAP_SERVERS": kafka.bootstrap,
        "MONITOR_INPUTS": re.sub(r"(\w+)=", lambda name: f"{topics[name[1]]}=", inputs),
        "MONITOR_TOKEN_KEY": "0123456789abcdef" * 4,
        "MONITOR_START": "earliest",
        "MONITOR_GROUP": prefix,
        "MONITOR_TOPIC_PREFIX": f"{prefix}.",
        "MONITOR_PARTITIONS": "4",
        "MONITOR_LANES": "4",
        "MONITOR_ALERTMANAGER_URLS": "",
    }
    with unstarted as started, Worker(settings, logs):
        with subprocess.Popen(
            [sys.executable, agent.__file__, str(HARMLESS)],
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": started.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            tickets = json.loads(program.stdout.readline())
            found = Run(encoding, prefix, kafka, started, tickets)
            late = found.dangerous(agent.AS_LATE_RECORDS)["trace_id"]
            eventually(lambda: found.has_closed(late), f"verdict of trace {late}; see {logs}")
            assert scored(found.verdicts()[late]) == 0
            program.stdin.close()  # now its judge begins
            assert program.wait(30) == 0
        eventually(found.is_over, f"verdicts with all scores; see {logs}")
        yield found


def collector(variables: dict[str, str], data_dir: Path) -> Collector:
    """One that has not been started. Not built, it skips the test here and fails it in CI."""
    try:
        return Collector(variables, data_dir)
    except MissingBinaryError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must run every test: {error}")
        pytest.skip(str(error))


@pytest.mark.parametrize("scores", [agent.AS_EVENTS, agent.AS_RECORDS, agent.AS_LATE_RECORDS])
def test_the_dangerous_call_is_in_the_verdict_and_pages(run: Run, scores: str) -> None:
    ticket = run.dangerous(scores)
    shell = ticket["spans"]["execute_tool run_shell"]
    verdict = run.verdicts()[ticket["trace_id"]]
    assert verdict["service"] == agent.SERVICE
    assert verdict["model_version"] == agent.MODEL
    assert verdict["span_count"] == SPANS_OF_A_TICKET
    assert verdict["closed_by"] == "root_complete"
    assert verdict["forensics"] == {"status": "complete", "faults": []}
    if scores == agent.AS_LATE_RECORDS:
        assert verdict["revision"] > 1
    [reduction] = verdict["reductions"]
    assert reduction["scorer"] == agent.JUDGE
    assert reduction["max_score"] == agent.UNSAFE
    assert reduction["argmax_span_id"] == shell
    assert reduction["argmax_role"] == "tool_call"
    assert reduction["scalar"] is None
    roles = {role: (r["count"], r["scored"], r["max"]) for role, r in reduction["roles"].items()}
    assert roles == {
        "planner": (2, 2, agent.SAFE),
        "retrieval": (1, 1, agent.SAFE),
        "tool_call": (1, 1, agent.UNSAFE),
        "completion": (1, 1, agent.SAFE),
    }
    [incident] = [i for i in run.incidents().values() if i["trace_id"] == ticket["trace_id"]]
    assert incident["reason"] == "threshold"
    assert incident["severity"] == "critical"
    assert incident["service"] == agent.SERVICE
    assert incident["argmax_span_id"] == shell
    assert incident["max_score"] == agent.UNSAFE
    assert incident["forensics"]["status"] == "complete"
    assert shell in incident["neighbourhood"]["span_ids"]
    [evidence] = [e for e in incident["evidence"] if e["span_id"] == shell]
    assert evidence["tool_name"] == "run_shell"
    assert evidence["model_version"] == agent.MODEL  # of the model call that asked for it


def test_a_harmless_trace_has_its_verdict_and_no_incident(run: Run) -> None:
    verdicts = run.verdicts()
    for ticket in run.tickets[:HARMLESS]:
        verdict = verdicts[ticket["trace_id"]]
        [reduction] = verdict["reductions"]
        assert verdict["span_count"] == SPANS_OF_A_TICKET
        assert reduction["max_score"] == agent.SAFE
        # A tool that only reads is retrieval.
        counts = {role: r["count"] for role, r in reduction["roles"].items()}
        assert counts == {"planner": 2, "retrieval": 2, "completion": 1}
    dangerous = {ticket["trace_id"] for ticket in run.tickets[HARMLESS:]}
    assert {incident["trace_id"] for incident in run.incidents().values()} == dangerous


def test_nothing_is_lost_or_rejected_on_the_way(run: Run) -> None:
    assert run.verdicts().keys() == run.trace_ids
    assert run.records("deadletters") == []
    counted = metrics(run.collector)
    assert counted["otelcol_exporter_sent_spans"] == TICKETS * SPANS_OF_A_TICKET
    assert counted["otelcol_exporter_sent_log_records"] == 2 * SPANS_OF_A_TICKET
    assert counted.get("otelcol_exporter_send_failed_spans", 0) == 0
    assert counted.get("otelcol_exporter_send_failed_log_records", 0) == 0


def test_the_topics_hold_what_was_asked_for(run: Run) -> None:
    first = b"{" if run.encoding == "otlp_json" else b"\n"
    for topic in PARTITIONS:
        values = read(run.kafka, f"{run.prefix}-{topic}")
        assert values
        assert {value[:1] for value in values} == {first}
    # A message a trace, one of them larger than a broker takes without compression.
    spans = read(run.kafka, f"{run.prefix}-otlp_spans")
    assert len(spans) == TICKETS
    assert max(map(len, spans)) > 2_000_000


def test_the_page_names_the_collectors_topics_and_valid_settings(
    documented: dict[str, str], tmp_path: Path
) -> None:
    exporter = yaml.safe_load(re.sub(r"\$\{env:\w+:-([^}]*)\}", r"\1", CONFIG.read_text("utf-8")))
    kafka = exporter["exporters"]["kafka"]
    inputs = [
        f"{kafka[kind]['topic']}={kafka[kind]['encoding']}/{kind}" for kind in ("traces", "logs")
    ]
    assert documented["MONITOR_INPUTS"] == ",".join(inputs)
    settings = Settings.load({**documented, "MONITOR_TOKEN_KEY": "0123456789abcdef" * 4})
    settings.require_worker()
    limit = kafka["producer"]["max_message_bytes"]
    assert limit == settings.bounds.message_bytes


def test_the_page_lists_every_variable_of_the_configuration_and_its_links_lead_somewhere(
    repository: Path,
) -> None:
    page = repository / "docs" / "collector.md"
    text = page.read_text("utf-8")
    listed = re.findall(r"^\| `([A-Z_]+)` \| `(\S+)`", text, re.MULTILINE)
    assert len(listed) == len(dict(listed))
    assert set(listed) == set(re.findall(r"\$\{env:(\w+):-([^}]*)\}", CONFIG.read_text("utf-8")))
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / link).resolve().exists(), link


def test_a_collector_that_is_not_built_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("monitor.stack.collector._BINARY", tmp_path / "otelcol")
    with pytest.raises(MissingBinaryError, match="run `make collector`, which needs Go"):
        Collector({})


def scored(verdict: dict[str, Any]) -> int:
    """Spans with a score, of a trace that one scorer judges."""
    count: int = sum(reduction["scored_count"] for reduction in verdict["reductions"])
    return count


def metrics(of: Collector) -> dict[str, float]:
    """Its own counters by name, those of traces and of logs."""
    with urllib.request.urlopen(of.metrics_url, timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    samples = [re.fullmatch(r"(\w+)\{.*\} (\S+)", line) for line in lines]
    return {sample[1]: float(sample[2]) for sample in samples if sample is not None}


def eventually(holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"after {seconds:g} s no {what}"
        time.sleep(0.5)


def read(broker: KafkaBroker, topic: str) -> list[bytes]:
    """Values of all committed records, of each partition in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "looks-only",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # an empty partition says so at once
        }
    )
    found: list[bytes] = []
    try:
        count = len(consumer.list_topics(topic, 10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(count)])
        ends = 0
        while ends < count:
            message = consumer.poll(30)
            assert message is not None, f"{topic}: no answer"
            if message.error() is None:
                found.append(message.value() or b"")
            else:
                ends += 1
    finally:
        consumer.close()
    return found
