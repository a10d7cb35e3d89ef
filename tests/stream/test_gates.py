"""What is kept of the gates topic: the last of each key, and no more keys than the drift agent has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from monitor.drift.settings import DriftSettings
from monitor.settings import Settings
from monitor.stream.gates import GateReader


def record(partition: int, offset: int, service: str, state: str = "stationary") -> Any:
    value = {"service": service, "scorer": "guard", "state": state, "why": "a test"}
    return SimpleNamespace(
        partition=partition, offset=offset, value=msgspec.json.encode(value), key=b""
    )


def test_a_partition_has_a_bounded_number_of_gates_and_those_known_still_change() -> None:
    reader = GateReader(Settings.load({}))
    limit = DriftSettings().max_keys
    for n in range(limit + 300):
        reader._take(record(0, n, f"s{n}"))
    reader._take(record(0, 5000, "s0", "shifted"))
    reader._take(record(1, 0, "elsewhere"))
    gates = reader._gates
    assert len(gates) == limit + 1
    assert gates["s0", "guard"].state == "shifted"
    assert ("s299", "guard") in gates
    assert (f"s{limit}", "guard") not in gates
    assert ("elsewhere", "guard") in gates
