"""One run of the demo on a terminal: services up, story told, services down."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from aiokafka import AIOKafkaProducer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.demo.services import INPUT_TOPIC, SHORT_TIMES, Services, services
from monitor.demo.story import Chapter, Story
from monitor.demo.watch import Watch

WORDS: Final = (
    ("D", "largest distance between two distributions of scores (KS), 0 the same to 1"),
    ("log E", "evidence of a shift of more than .05, natural log; enough at the number beside it"),
    ("equivalent", 'a shift of .10 or more is ruled out: more than "none was found"'),
    ("explained_by_counts", "moved, but not among traces of equal length: counting, no behaviour"),
    ("not_yet", "too few traces to show either drift or equivalence: no answer, and no tick here"),
    ("not_comparable", "the traffic of the two versions cannot be held against each other"),
    ("gate", "whether lengths and role mix are stationary, shifted or unknown"),
    ("refused", "not drawn: ids that repeat cannot say which span caused which"),
)
"""Of the monitor's output that the claims quote; README has the others."""


def run(console: Console, *, keep: bool) -> bool:
    """Whether every claim was seen. Raises MissingBinaryError before anything is started."""
    started = time.monotonic()
    console.print("starting Kafka, Alertmanager, Prometheus and one worker", style="dim")
    with _terminated_as_interrupted(), services() as running:
        short = ", ".join(
            f"{name.removeprefix('MONITOR_').lower()} {value}"
            for name, value in SHORT_TIMES.items()
        )
        console.print(f"short times for the demo: {short}", style="dim")
        if running.prometheus is None:
            console.print(
                "prometheus is not installed: no dashboards' data; pages do not need it",
                style="yellow",
            )
        chapters = asyncio.run(_tell(running, console))
        held = _show(chapters, console, time.monotonic() - started)
        if keep:
            _keep(running, console)
    return held


async def _tell(running: Services, console: Console) -> list[Chapter]:
    bootstrap = running.kafka.bootstrap
    partitions = int(running.settings["MONITOR_PARTITIONS"])
    async with Watch(bootstrap, running.alertmanager.url, partitions) as watch:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5)
        await producer.start()
        try:
            return await Story(
                producer, watch, lambda text: console.print(f"· {text}", style="dim")
            ).run()
        finally:
            await producer.stop()


def _show(chapters: list[Chapter], console: Console, seconds: float) -> bool:
    for chapter in chapters:
        table = Table(
            box=box.SIMPLE,
            title=chapter.title,
            title_justify="left",
            title_style="bold",
            show_header=False,
        )
        table.add_column(width=2)
        table.add_column(min_width=34)
        table.add_column()
        table.add_row("", "the usual roll-up says", Text(chapter.naive, "yellow"))
        for claim in chapter.claims:
            mark = Text("✓", "green") if claim.holds else Text("✗", "bold red")
            table.add_row(mark, claim.text, Text(claim.seen))
        console.print(table)
    words = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    quoted = " ".join(claim.seen for chapter in chapters for claim in chapter.claims)
    for word, meaning in WORDS:
        if re.search(rf"\b{word}\b", quoted) is None:
            continue
        words.add_row(Text(word, "dim bold"), Text(meaning, "dim"))
    console.print(words)
    held = bool(chapters) and all(chapter.holds for chapter in chapters)
    console.print(
        f"{'all claims hold' if held else 'NOT all claims hold'} · {seconds:.0f} s",
        style="bold green" if held else "bold red",
    )
    return held


def _keep(running: Services, console: Console) -> None:
    for line in kept(running):
        console.print(line, highlight=False, soft_wrap=True)
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        console.print("stopping", style="dim")


def kept(running: Services) -> list[str]:
    """Where everything is, and what to do with it next."""
    lines = [f"{name:16} {url}" for name, url in running.urls().items()]
    lines += [
        "",
        "In another terminal, `.venv/bin` on its PATH:",
        f"  export MONITOR_BOOTSTRAP_SERVERS={running.kafka.bootstrap}",
        "  export "
        + " ".join(
            f"{name}={running.settings[name]}"
            for name in ("MONITOR_INPUTS", "MONITOR_PARTITIONS", "MONITOR_LANES")
        ),
        "  monitor incidents list --service ops-agent",
        f"  monitor topics send {INPUT_TOPIC} examples/spans.jsonl",
        "  monitor incidents list --service example-bot",
        f"Spans go to the topic {INPUT_TOPIC}, one JSON object a message. What pages by itself is in Alertmanager at",
        "once; alerts of Prometheus' rules (drift, lag) come when they have been true for their `for`, a minute or more.",
        "",
        f"running as pid {os.getpid()} until Ctrl-C or SIGTERM; both stop everything and remove its files",
    ]
    return lines


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: services stopped, their folders removed. Once: the end is not interrupted."""

    def interrupt(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
