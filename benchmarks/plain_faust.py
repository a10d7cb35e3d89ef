"""Plain Faust on the same topic: one agent, one table write a span. A process of its own, as Faust needs.

``python -m benchmarks.plain_faust BOOTSTRAP TOPIC COUNT SECONDS`` prints spans a second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faust


def _app(bootstrap: str, topic: str, count: int, seconds: float, folder: str) -> faust.App:
    app = faust.App(
        "plain-faust",
        broker=f"kafka://{bootstrap}",
        value_serializer="json",
        store="memory://",
        web_enabled=False,
        worker_redirect_stdouts=False,  # the figure goes to our parent
        datadir=folder,
        topic_partitions=8,
        consumer_auto_offset_reset="earliest",
    )
    spans_by_trace = app.Table("spans", default=int)
    state: dict[str, float] = {}

    @app.agent(app.topic(topic))
    async def keep(stream: Any) -> None:
        seen = 0
        async for span in stream:
            seen += 1
            state.setdefault("started", time.perf_counter())
            spans_by_trace[span["trace_id"]] += 1
            elapsed = time.perf_counter() - state["started"]
            if seen == count or elapsed > seconds:
                os.write(1, f"\n{seen / elapsed:.0f}\n".encode())
                os._exit(0)  # nothing of it is kept, and a clean stop would be waited for

    return app


def run(bootstrap: str, topic: str, count: int, seconds: float) -> float:
    """Spans a second, over ``count`` spans or ``seconds``, whichever comes first."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.plain_faust",
            bootstrap,
            topic,
            str(count),
            str(seconds),
        ],
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=False,
        cwd=Path(__file__).resolve().parents[1],
    )
    figures = [line for line in done.stdout.splitlines() if line.strip().isdigit()]
    if not figures:
        raise RuntimeError(f"plain Faust gave no figure:\n{done.stdout}\n{done.stderr[-2000:]}")
    return float(figures[-1])


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        app = _app(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), scratch)
        sys.argv = ["faust", "worker", "-l", "error"]
        app.main()
