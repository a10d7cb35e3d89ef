"""``monitor replay``: backtest thresholds and policies on files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from monitor.cli.report import Report, report_console
from monitor.codec import encode_json
from monitor.drift.messages import ScoreDelta
from monitor.replay.clock import FileClock
from monitor.replay.lines import Line, read
from monitor.replay.runner import Replay, fold_fragments
from monitor.settings import Settings

# Hashes of content made by a replay never leave its process; the same key each time makes runs comparable.
REPLAY_TOKEN_KEY = "replay-of-files-keeps-no-content-0"

PROGRESS_EVERY = 500  # lines between two looks at the bar


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="JSON lines: native spans or captured Kafka messages; .gz too."
        ),
    ],
    json: Annotated[
        bool, typer.Option("--json", help="One JSON record a line instead of a report.")
    ] = False,
    fragments: Annotated[
        bool,
        typer.Option(
            "--fragments",
            help="The files are a dump of the fragments topic (`monitor topics dump`): fold it as the worker did.",
        ),
    ] = False,
) -> None:
    """The monitor on files, no broker: verdicts, incidents, drift, and what would have paged.

    Thresholds, policies and times are the MONITOR_* settings, as for a worker.
    """
    if fragments:
        for folded in fold_fragments(files):
            if not isinstance(folded, ScoreDelta):
                _write(encode_json(folded))
        return
    settings = settings_for_files()
    run = Replay(settings.intake_config(), settings.fold_settings(), settings.drift_settings())
    report = None if json else Report()
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[lines]:,} lines"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=json or not console.is_terminal,
    ) as progress:
        task = progress.add_task(
            "replay", total=sum(path.stat().st_size for path in files if path.exists()), lines=0
        )
        for record in _records(run, files, progress, task):
            if report is None:
                _write(encode_json(record))
            else:
                report.add(record)
    if report is None:
        _write(encode_json(run.summary))
    else:
        report.print(report_console(), run.summary)


def _records(run: Replay, files: list[Path], progress: Progress, task: TaskID) -> Iterator[object]:
    clock = FileClock()
    for line, following, position in _with_next(files):
        now_ms = clock.at(line.timestamp_ms, line.end_ms, following.end_ms if following else None)
        yield from run.feed(line, now_ms)
        if line.number % PROGRESS_EVERY == 0:
            progress.update(task, completed=position, lines=line.number)
    yield from run.finish()


def _with_next(files: list[Path]) -> Iterator[tuple[Line, Line | None, int]]:
    previous: tuple[Line, int] | None = None
    for line, position in read(files):
        if previous is not None:
            yield previous[0], line, previous[1]
        previous = (line, position)
    if previous is not None:
        yield previous[0], None, previous[1]


def _write(record: bytes) -> None:
    sys.stdout.buffer.write(record + b"\n")


def settings_for_files() -> Settings:
    """The environment's settings, with a token key where it has none."""
    environ = dict(os.environ)
    if "MONITOR_TOKEN_KEY_FILE" not in environ:
        environ.setdefault("MONITOR_TOKEN_KEY", REPLAY_TOKEN_KEY)
    return Settings.load(environ)
