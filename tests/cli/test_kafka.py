"""What a command says when Kafka is not there."""

from __future__ import annotations

import pytest

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
