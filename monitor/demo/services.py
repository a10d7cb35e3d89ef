"""What the demo runs on: a real broker, Alertmanager, Prometheus where present, and one worker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from monitor.stack import (
    Alertmanager,
    KafkaBroker,
    MissingBinaryError,
    Prometheus,
    WebhookReceiver,
    Worker,
    find_binary,
    free_ports,
)

INPUT_TOPIC: Final = "agent-spans"
INPUT_PARTITIONS: Final = 4
RULES: Final = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "rules"

# Minutes in production; seconds here, so that a trace closes, a window ends and sums flush while one watches.
SHORT_TIMES: Final = {
    "MONITOR_ROOT_GRACE": "1s",
    "MONITOR_IDLE": "3s",
    "MONITOR_REVISION_FLUSH": "1s",
    "MONITOR_DELTA_FLUSH": "1s",
    "MONITOR_DRIFT_WINDOW": "1s",
}


@dataclass(frozen=True)
class Services:
    kafka: KafkaBroker
    alertmanager: Alertmanager
    prometheus: Prometheus | None
    worker: Worker
    receiver: WebhookReceiver
    settings: dict[str, str]

    def urls(self) -> dict[str, str]:
        """What ``--keep`` shows."""
        urls = {
            "Kafka": self.kafka.bootstrap,
            "Alertmanager": self.alertmanager.url,
            "worker metrics": f"{self.worker.url}/metrics",
            "worker log": str(self.worker.log_path),
        }
        if self.prometheus is not None:
            urls["Prometheus"] = self.prometheus.url
        return urls


def worker_settings(bootstrap: str, alertmanager_url: str) -> dict[str, str]:
    """The demo worker's environment."""
    return {
        "MONITOR_BOOTSTRAP_SERVERS": bootstrap,
        "MONITOR_INPUTS": f"{INPUT_TOPIC}=json",
        "MONITOR_ALERTMANAGER_URLS": alertmanager_url,
        "MONITOR_TOKEN_KEY": secrets.token_hex(32),
        "MONITOR_START": "earliest",
        "MONITOR_PARTITIONS": "4",
        "MONITOR_LANES": "4",
        "MONITOR_LOG_FORMAT": "console",
        **SHORT_TIMES,
    }


@contextmanager
def services(more: Mapping[str, str] | None = None) -> Iterator[Services]:
    """All of them, ready; stopped in reverse order. ``more``: settings that win over the demo's.

    Raises MissingBinaryError before anything is started.
    """
    find_binary("java")
    find_binary("alertmanager")
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaBroker())
        receiver = stack.enter_context(WebhookReceiver())
        alertmanager = stack.enter_context(Alertmanager(receiver_url=receiver.url))
        settings = {**worker_settings(kafka.bootstrap, alertmanager.url), **(more or {})}
        asyncio.run(make_input_topic(kafka.bootstrap))
        port = free_ports(1)[0]
        prometheus = _prometheus(stack, f"127.0.0.1:{port}", alertmanager.url)
        worker = stack.enter_context(Worker(settings, port=port))
        yield Services(kafka, alertmanager, prometheus, worker, receiver, settings)


async def make_input_topic(bootstrap: str, name: str = INPUT_TOPIC) -> None:
    """A topic that agents write to; in production it belongs to them."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, INPUT_PARTITIONS, 1)])
    finally:
        await admin.close()


def _prometheus(stack: ExitStack, target: str, alertmanager_url: str) -> Prometheus | None:
    try:
        find_binary("prometheus")
    except MissingBinaryError:
        return None  # the pages do not need it: they are pushed to Alertmanager
    rules = sorted(RULES.glob("*.yml"))
    return stack.enter_context(
        Prometheus(
            targets={"agent-monitor": [target]},
            rule_files=rules,
            alertmanager_urls=[alertmanager_url],
        )
    )
