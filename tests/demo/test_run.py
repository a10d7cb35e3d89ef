"""How a run ends, and what it tells whoever keeps it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monitor.demo.run import kept
from monitor.demo.services import worker_settings


def test_a_kept_run_says_what_to_do_next() -> None:
    running = SimpleNamespace(
        urls=lambda: {"Alertmanager": "http://x"},
        kafka=SimpleNamespace(bootstrap="127.0.0.1:9"),
        settings=worker_settings("127.0.0.1:9", "http://x"),
    )
    said = "\n".join(kept(cast(Any, running)))
    for words in (
        "export MONITOR_BOOTSTRAP_SERVERS=127.0.0.1:9",
        "MONITOR_INPUTS=agent-spans=json MONITOR_PARTITIONS=4 MONITOR_LANES=4",
        "monitor incidents list",
        "`for`",
        f"pid {os.getpid()}",
    ):
        assert words in said


@pytest.mark.kafka
@pytest.mark.timeout(120)
def test_sigterm_stops_everything_and_leaves_no_files(
    tmp_path: Path, require_binary: Callable[[str], Path]
) -> None:
    require_binary("alertmanager")
    demo = subprocess.Popen(
        [sys.executable, "-m", "monitor", "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("agent-monitor-worker-*")):  # the last to start
            assert demo.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        demo.send_signal(signal.SIGTERM)
        said, _ = demo.communicate(timeout=40)
    finally:
        demo.kill()
    assert demo.returncode != 0
    assert "Traceback" not in said
    assert list(tmp_path.glob("agent-monitor-*")) == []


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(180)
def test_every_claim_of_the_demo_holds_within_its_minute(
    require_binary: Callable[[str], Path],
) -> None:
    require_binary("alertmanager")
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "monitor", "demo"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == 11
    assert time.monotonic() - started < 90  # a minute on a machine that does nothing else
