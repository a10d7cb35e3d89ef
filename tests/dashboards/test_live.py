"""Every query and rule run by a real Prometheus that scraped our own /metrics."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dashboards import build
from monitor.model import Fault, Forensics, Scalar
from monitor.stack import Prometheus
from monitor.telemetry import Telemetry
from monitor.web import Readiness, WebServer, create_web
from tests.dashboards.test_dashboards import queries
from tests.promql import RULES, alerts
from tests.telemetry.records import (
    dead_letter,
    drift_report,
    gate,
    incident,
    mix_report,
    reduction,
    verdict,
)

# What stays empty here, and on a healthy monitor, and why.
MAY_BE_EMPTY = {
    "unless count by (version) (agent_monitor_build_info offset": "no worker of another version started",
    'alertstate="firing"': "no alert has been firing for its time yet",
    "ratio1d": "compares with what was 30 minutes ago",
}


@pytest.fixture(scope="module")
def prometheus(
    prometheus_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """It scrapes a worker in which something of everything happens, twice a second."""
    telemetry = Telemetry()
    folder = tmp_path_factory.mktemp("rules")
    with scraped(telemetry, lambda: happen(telemetry), folder) as server:
        wait_for(server, "count_over_time(agent_monitor_build_info[1m]) > 4")
        wait_for(server, "agent_monitor:critical_incidents_per_trace:ratio30m")
        yield server


@contextmanager
def scraped(
    telemetry: Telemetry, happens: Callable[[], None], folder: Path
) -> Iterator[Prometheus]:
    """A Prometheus with our rules, every second, on the /metrics of a worker where ``happens`` is called."""
    for path in RULES.glob("*.yml"):
        (folder / path.name).write_text(
            path.read_text("utf-8").replace("interval: 30s", "interval: 1s")
        )
    stop = threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        app = create_web(telemetry, readiness=Readiness)
        async with WebServer(app, "127.0.0.1", 0) as server:
            ports.append(server.port)
            while not stop.is_set():
                happens()
                await asyncio.sleep(0.2)

    worker = threading.Thread(target=lambda: asyncio.run(serve()))
    worker.start()
    try:
        while not ports:
            time.sleep(0.01)
        with Prometheus(
            targets={"agent-monitor": [f"127.0.0.1:{ports[0]}"]},
            rule_files=sorted(folder.glob("*.yml")),
            interval="1s",
        ) as server:
            yield server
    finally:
        stop.set()
        worker.join()


def happen(telemetry: Telemetry) -> None:
    """Something of every kind, under two services and versions: a join that is not unique fails."""
    for service, version in (("shop", "m-1"), ("shop", "m-2"), ("help", "m-1")):
        forensics = Forensics("rejected", (Fault("cycle", (), 1),))
        refused = Scalar(0.1, 4, False, ("scores_independent",))
        telemetry.observe_outputs(
            [
                verdict(service=service, model_version=version, cut=True, redelivered=1),
                verdict(
                    service=service,
                    forensics=forensics,
                    reductions=(reduction("pii", refused, planner=0.5),),
                ),
                verdict(
                    service=service,
                    reductions=(reduction("pii", Scalar(0.1, 4, True), planner=0.5),),
                ),
                verdict(service=service, reductions=()),
                verdict(service=service, revision=2),
                incident(service=service),
                incident(service=service, revision=2),
                incident(service=service, reason="policy", policy="exfil"),
                dead_letter(),
            ]
        )
        for role in ("planner", "tool_call"):
            for scorer_version in ("1", "2"):
                report = drift_report(
                    service=service,
                    role=role,
                    scorer_version=scorer_version,
                    decision="drift",
                    ticket=True,
                )
                telemetry.observe_report(report)
                telemetry.observe_report(
                    drift_report(service=service, role=role, comparison="past")
                )
        telemetry.observe_report(mix_report(service=service))
        telemetry.observe_gate(gate(service))
    for role in ("planner", "unknown"):
        telemetry.spans_total.labels(role).inc()
    telemetry.observe_unknown_roles({"lookup": 1})
    telemetry.policies_undecidable_total.inc()
    telemetry.labels_folded_total.labels("service").inc()
    for topic in ("agent-spans", "otlp_spans"):
        telemetry.input_records_total.labels(topic).inc()
        telemetry.input_bytes_total.labels(topic).inc(1000)
        telemetry.input_last_record_timestamp_seconds.labels(topic).set(time.time())
        telemetry.input_topic_missing.labels(topic).set(0)
    for partition in ("0", "1"):
        for gauge in (
            telemetry.open_lives,
            telemetry.closed_lives,
            telemetry.open_bytes,
            telemetry.closed_bytes,
        ):
            gauge.labels(partition).set(1)
        telemetry.snapshot_bytes.labels(partition).set(1)
        telemetry.tick_hold_seconds.labels(partition).set(1)
        telemetry.settings_outranked.labels(partition).set(0)
        telemetry.refused_partitions.labels("assemble", "monitor.fragments", partition).set(0)
        now_ms = int(time.time() * 1000)
        telemetry.observe_lag(
            "assemble", "monitor.fragments", int(partition), records=3, position_ms=now_ms
        )
    for state in ("open", "closed"):
        telemetry.bytes_limit.labels(state).set(100)
    telemetry.fold_events_total.labels("late_spans").inc()
    for stage in ("ingest", "assemble"):
        telemetry.beat(stage)
        telemetry.lanes.labels(stage, "live").set(8)
        telemetry.transactions_total.labels(stage, "committed").inc()
        telemetry.transaction_seconds.labels(stage).observe(0.1)
    telemetry.restore_seconds.observe(0.1)
    telemetry.agent_messages_total.labels("drift", "applied").inc()
    telemetry.deliveries_total.labels("am:9093", "ok").inc()
    telemetry.delivery_queue.set(0)
    telemetry.alerts_firing.labels("critical").set(1)
    telemetry.incidents_not_pushed_total.labels("shadow").inc()
    telemetry.span_to_page_seconds.labels("critical").observe(0.5)


def ask(server: Prometheus, query: str) -> list[Any]:
    text = query.replace("$__rate_interval", "30s")
    text = re.sub(r"\$(service|scorer|role)\b", ".*", text)
    url = f"{server.url}/api/v1/query?" + urllib.parse.urlencode({"query": text})
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            result: list[Any] = json.load(answer)["data"]["result"]
            return result
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{error.read().decode()}: {query}") from error


def wait_for(server: Prometheus, query: str) -> None:
    deadline = time.monotonic() + 40
    while not ask(server, query):
        assert time.monotonic() < deadline, f"no answer to {query}"
        time.sleep(0.3)


def test_every_panel_has_data(prometheus: Prometheus) -> None:
    asked = all_queries()
    assert len(asked) > 50
    empty = [query for query in asked if not ask(prometheus, query)]
    assert [query for query in empty if not any(part in query for part in MAY_BE_EMPTY)] == []
    assert (
        len(empty) <= 2 * len(build.BOARDS) + 2
    )  # the annotations of each board, and the day before


def test_no_rule_fails(prometheus: Prometheus) -> None:
    with urllib.request.urlopen(f"{prometheus.url}/api/v1/rules", timeout=10) as answer:
        groups = json.load(answer)["data"]["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert {rule["alert"] for rule in alerts()} <= set(rules)
    assert {name: rule["lastError"] for name, rule in rules.items() if rule.get("lastError")} == {}
    assert rules["AgentMonitorHeartbeat"]["state"] == "firing"
    assert rules["AgentMonitorDrift"]["state"] in ("pending", "firing")
    assert rules["AgentMonitorDown"]["state"] == "inactive"


def test_a_burst_under_labels_never_seen_before_is_counted(
    prometheus_binary: Path, tmp_path: Path
) -> None:
    """A series that is born at 60 has no sample at 0 before it: `increase` sees nothing, and the alert was silent."""
    telemetry = Telemetry()
    with scraped(telemetry, lambda: None, tmp_path) as server:
        wait_for(server, "count_over_time(agent_monitor_build_info[1m]) > 2")
        telemetry.dead_letters_total.labels("not_json", "agent-spans").inc(60)
        telemetry.observe_incident(incident(reason="policy", policy="exfil"))
        refused = 'agent_monitor:dead_letters:increase10m{reason="not_json",topic="agent-spans"}'
        policies = next(query for query in all_queries() if "policy_incidents_total" in query)
        opened = next(query for query in all_queries() if "[1h]" in query and "critical" in query)
        for query in (
            f"{refused} == 60",
            "sum(increase(agent_monitor_dead_letters_total[10m])) == 0",
            f"{policies} == 1",
            f"{opened} == 1",
            'ALERTS{alertname="AgentMonitorDeadLetters",alertstate="pending"}',
        ):
            wait_for(server, query)


def all_queries() -> list[str]:
    return [query for text in build.rendered().values() for query in queries(json.loads(text))]
