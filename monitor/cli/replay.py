"""``monitor replay``: backtest thresholds and policies on files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from monitor.cli.report import Report, report_console
from monitor.codec import encode_json
from monitor.drift.messages import ScoreDelta
from monitor.replay.clock import timed
from monitor.replay.runner import Replay, Summary, fold_fragments
from monitor.settings import Settings

# Hashes of content made by a replay never leave its process; the same key each time makes runs comparable.
REPLAY_TOKEN_KEY = "replay-of-files-keeps-no-content-0"

EXIT_NOTHING_READ: Final = 1
EMPTY: Final = "the files are empty"
NOTHING_READ: Final = (
    "no line is a span: a line is one span as one JSON object (`monitor schema span`), or a captured Kafka message "
    "with `encoding` and `value_b64`"
)
PROGRESS_EVERY = 500  # lines between two looks at the bar


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="JSON lines: native spans or captured Kafka messages, as they are or gzipped.",
        ),
    ],
    json: Annotated[
        bool, typer.Option("--json", help="One JSON record a line instead of a report.")
    ] = False,
    fragments: Annotated[
        bool,
        typer.Option(
            "--fragments",
            help="The files are a dump of the fragments topic (`monitor topics dump`): fold it as the worker did. "
            "No drift is computed and nothing is closed at the end.",
        ),
    ] = False,
) -> None:
    """The monitor on files, no broker: verdicts, incidents, drift, and what would have paged.

    Thresholds, policies and times are the MONITOR_* settings, as for a worker. Exit code 1 if nothing of the files
    could be read. In the records coordinates are file, its place among FILE…, and line of that file, or those that a
    captured message came with; offsets of provenance count the lines that were read over all files.
    """
    settings = settings_for_files()
    report = None if json else Report(files, settings.page_scorers)
    summary = _fold(files, report) if fragments else _replay(files, settings, report)
    if report is not None:
        report.print(report_console(), summary)
    elif not fragments:
        _write(encode_json(summary))
    if not summary.lines or (summary.nothing_read and not fragments):
        typer.secho(f"monitor: {NOTHING_READ if summary.lines else EMPTY}", fg="red", err=True)
        raise typer.Exit(EXIT_NOTHING_READ)


def _fold(files: list[Path], report: Report | None) -> Summary:
    summary = Summary()
    for record in fold_fragments(files, summary):
        if isinstance(record, ScoreDelta):
            continue
        if report is None:
            _write(encode_json(record))
        else:
            report.add(record)
    return summary


def _replay(files: list[Path], settings: Settings, report: Report | None) -> Summary:
    run = Replay(
        settings.intake_config(),
        settings.fold_settings(),
        settings.drift_settings(),
        settings.service_groups,
    )
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[lines]:,} lines"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=report is None or not console.is_terminal,
    ) as progress:
        task = progress.add_task(
            "replay", total=sum(path.stat().st_size for path in files if path.exists()), lines=0
        )
        for record in _records(run, files, progress, task):
            if report is None:
                _write(encode_json(record))
            else:
                report.add(record)
    return run.summary


def _records(run: Replay, files: list[Path], progress: Progress, task: TaskID) -> Iterator[object]:
    for line, now_ms, position in timed(files):
        yield from run.feed(line, now_ms)
        if line.number % PROGRESS_EVERY == 0:
            progress.update(task, completed=position, lines=line.number)
    yield from run.finish()


def _write(record: bytes) -> None:
    sys.stdout.buffer.write(record + b"\n")


def settings_for_files() -> Settings:
    """The environment's settings, with a token key where it has none."""
    environ = dict(os.environ)
    if "MONITOR_TOKEN_KEY_FILE" not in environ:
        environ.setdefault("MONITOR_TOKEN_KEY", REPLAY_TOKEN_KEY)
    return Settings.load(environ)
