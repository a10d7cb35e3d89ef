"""The real services that the product talks to, started on this machine: the one way that the demo,
the tests, the benchmarks and CI share. Every server takes free ports, has a data folder of its own and
a log file, and ends with the process that started it."""

from monitor.stack.alertmanager import Alertmanager
from monitor.stack.collector import Collector
from monitor.stack.kafka import KafkaBroker
from monitor.stack.process import (
    MISSING_BINARY_EXIT_CODE,
    ChildProcess,
    MissingBinaryError,
    StackError,
    find_binary,
    free_ports,
)
from monitor.stack.prometheus import Prometheus
from monitor.stack.webhook import Notification, NotifiedAlert, WebhookReceiver
from monitor.stack.worker import Worker

__all__ = [
    "MISSING_BINARY_EXIT_CODE",
    "Alertmanager",
    "ChildProcess",
    "Collector",
    "KafkaBroker",
    "MissingBinaryError",
    "Notification",
    "NotifiedAlert",
    "Prometheus",
    "StackError",
    "WebhookReceiver",
    "Worker",
    "find_binary",
    "free_ports",
]
