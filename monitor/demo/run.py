"""One run of the demo on a terminal: services up, story told, services down."""

from __future__ import annotations

import asyncio
import time

from aiokafka import AIOKafkaProducer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.demo.services import SHORT_TIMES, Services, services
from monitor.demo.story import Chapter, Story
from monitor.demo.watch import Watch


def run(console: Console, *, keep: bool) -> bool:
    """Whether every claim was seen. Raises MissingBinaryError before anything is started."""
    started = time.monotonic()
    console.print("starting Kafka, Alertmanager, Prometheus and one worker", style="dim")
    with services() as running:
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
    held = bool(chapters) and all(chapter.holds for chapter in chapters)
    console.print(
        f"{'all claims hold' if held else 'NOT all claims hold'} · {seconds:.0f} s",
        style="bold green" if held else "bold red",
    )
    return held


def _keep(running: Services, console: Console) -> None:
    for name, url in running.urls().items():
        console.print(f"{name:16} {url}", highlight=False)
    console.print("running until Ctrl-C", style="dim")
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        console.print("stopping", style="dim")
