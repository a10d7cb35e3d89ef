"""``python -m benchmarks``: every figure that the documents claim, in one run. Compare ratios, not machines."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks import core, paging, plain_faust, raw, whole
from benchmarks.load import make_topic, preload
from monitor.stack import KafkaBroker

PARTITIONS: Final = 8
TOPIC: Final = "bench-spans"
FLOOR: Final = 40_000  # spans/s of the whole job below which the run fails


def main() -> int:
    options = _options()
    console = Console()
    figures: dict[str, float] = {}
    parts: dict[str, Callable[[], dict[str, float]]] = {}
    with KafkaBroker() as kafka:
        bootstrap = kafka.bootstrap
        parts["core"] = lambda: core.run(min(options.spans, 200_000))
        parts["raw"] = lambda: {
            "raw_spans_per_s": raw.run(bootstrap, TOPIC, PARTITIONS, options.spans)
        }
        parts["faust"] = lambda: {
            "plain_faust_spans_per_s": plain_faust.run(bootstrap, TOPIC, 30_000, 20)
        }
        parts["whole1"] = lambda: _whole(kafka, options.spans, 1)
        parts["whole2"] = lambda: _whole(kafka, options.spans, 2)
        parts["paging"] = lambda: _latencies(kafka)
        parts["failover"] = lambda: {
            "failover_s": paging.failover(kafka, rate=1_000, prefix="bench-failover.")
        }
        make_topic(bootstrap, TOPIC, PARTITIONS)
        if set(options.parts) - {"core", "paging", "failover"}:
            console.print(f"preloading {options.spans:,} spans", style="dim")
            size = preload(bootstrap, TOPIC, options.spans, PARTITIONS)
            figures["bytes_per_span"] = size / options.spans
        for name in options.parts:
            console.print(f"{name} …", style="dim")
            figures |= parts[name]()
            console.print({k: round(v, 3) for k, v in figures.items()}, style="dim")
    _print(figures, console)
    if options.output:
        machine = {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        }
        options.output.write_text(json.dumps({**machine, **figures}, indent=2) + "\n")
    return 1 if figures.get("whole2_spans_per_s", FLOOR) < FLOOR else 0


def _whole(kafka: KafkaBroker, spans: int, workers: int) -> dict[str, float]:
    job = whole.run(
        kafka,
        TOPIC,
        spans,
        workers=workers,
        prefix=f"bench-whole{workers}.",
        stages="ingest,assemble,agents",
    )
    if job.spans_in_fragments != spans:
        raise SystemExit(
            f"{job.spans_in_fragments} spans in fragments, {spans} were sent: the figure is void"
        )
    return {f"whole{workers}_spans_per_s": job.spans_per_s}


def _latencies(kafka: KafkaBroker) -> dict[str, float]:
    found = paging.latencies(kafka, rate=1_000, pages=100, prefix="bench-paging.")
    return {"page_p50_s": found.p50, "page_p99_s": found.p99, "page_worst_s": found.worst}


def _options() -> argparse.Namespace:
    names = ["core", "raw", "faust", "whole1", "whole2", "paging", "failover"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--spans", type=int, default=1_000_000, help="of the whole job (default %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    parser.add_argument(
        "parts", nargs="*", default=names, metavar="PART", help=f"of: {', '.join(names)}"
    )
    options = parser.parse_args()
    unknown = set(options.parts) - set(names)
    if unknown:
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    return options


def _print(figures: dict[str, float], console: Console) -> None:
    table = Table("figure", "value", "of raw", box=None)
    raw_rate = figures.get("raw_spans_per_s")
    for name, value in figures.items():
        ratio = f"{value / raw_rate:.0%}" if raw_rate and name.endswith("spans_per_s") else ""
        table.add_row(name, f"{value:,.2f}" if value < 1_000 else f"{value:,.0f}", ratio)
    console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
