"""The unit: read by systemd itself, and no wider open than it must be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.cli.main import EXIT_USAGE
from monitor.settings import Settings

UNIT = Path(__file__).parents[2] / "deploy/systemd/agent-monitor.service"


def analyze(*words: str | Path) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not on this machine")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_systemd_reads_it_without_a_word(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/monitor/bin/monitor", sys.executable))
    said = analyze("verify", "--man=no", unit)
    assert UNIT.name not in said, said  # it would name the line that it ignores


def test_systemd_rates_it_as_safe() -> None:
    analyze(
        "security", "--offline=yes", "--threshold=20", UNIT
    )  # tenths: 2.0 of 10, which it calls OK


def test_what_it_sets_are_settings() -> None:
    lines = UNIT.read_text().splitlines()
    names = {line.split("=")[1] for line in lines if line.startswith("Environment=")}
    assert names == {"MONITOR_INSTANCE", "MONITOR_TOKEN_KEY_FILE"}
    assert names <= Settings.variables()
    assert f"RestartPreventExitStatus={EXIT_USAGE}" in lines
