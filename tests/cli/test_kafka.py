"""What a command says when Kafka is not there."""

from __future__ import annotations

import pytest

from monitor.settings import Settings
from monitor.stack import KafkaBroker
from monitor.stream.tables import changelog_specs
from monitor.stream.topics import specs
from tests.replay.test_replay import run


@pytest.mark.parametrize(
    "command", [("topics", "check"), ("topics", "dump", "agent-spans"), ("incidents", "list")]
)
def test_a_command_without_kafka_says_it_in_one_line_and_why(command: tuple[str, ...]) -> None:
    done = run(*command, BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert done.returncode == 4
    [line] = done.stderr.splitlines()
    assert "Connect call failed" in line
    assert "MONITOR_BOOTSTRAP_SERVERS" in line
    assert "AddressFamily" not in line


@pytest.mark.kafka
def test_topics_that_differ_are_one_line_and_missing_inputs_a_note(
    kafka: KafkaBroker, unique: str
) -> None:
    settings = {
        "BOOTSTRAP_SERVERS": kafka.bootstrap,
        "TOPIC_PREFIX": f"{unique}.",
        "GROUP": unique,
        "INPUTS": f"{unique}-gone=json",
    }
    made = run("topics", "create", PARTITIONS="4", **settings)
    assert made.returncode == 0
    assert f"{unique}-gone" in made.stderr
    fits = run("topics", "check", "--json", PARTITIONS="4", **settings)
    assert (fits.returncode, fits.stdout) == (0, "[]\n")  # no fault: senders make their topics
    assert f"{unique}-gone" in fits.stderr
    differs = run("topics", "check", PARTITIONS="8", **settings)
    assert differs.returncode == 1
    _, line = differs.stderr.splitlines()
    ours = [*specs(Settings()), *changelog_specs(Settings())]
    assert f"{len(ours)} topics: has 4 partitions, MONITOR_PARTITIONS is 8; " in line
