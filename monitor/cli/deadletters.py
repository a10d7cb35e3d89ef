"""``monitor deadletters``: what was refused, why, and back to intake once the cause is cured."""

from __future__ import annotations

import difflib
import heapq
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from monitor.cli.deadletter_report import (
    Row,
    as_record,
    letters_table,
    nothing,
    print_letter,
    print_tally,
    summary_table,
    tally_record,
    tell_foreign,
)
from monitor.cli.explain import NothingKnown
from monitor.cli.kafka import KafkaUnreachable, on_kafka
from monitor.cli.report import SHOWN, report_console
from monitor.cli.tree import printable
from monitor.codec import encode_json
from monitor.settings import Settings
from monitor.settings.values import parse_duration, parse_start
from monitor.stream import redrive as redriving
from monitor.stream.deadletters import Letter, Wanted, dead_letters, source_key
from monitor.stream.transaction import Fenced, TransactionFailed
from monitor.telemetry.known import AGENT_REASONS, FRAGMENT_REASONS, INPUT_REASONS

app = typer.Typer(
    help="Items that were refused: list them, show one, send them again.", no_args_is_help=True
)

EXIT_SOME_STAY: Final = 1

KNOWN_REASONS: Final = (*INPUT_REASONS, *FRAGMENT_REASONS, *AGENT_REASONS)
Reasons = Annotated[
    list[str] | None, typer.Option("--reason", help="Only of this reason code; may be repeated.")
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Only what came from this topic; may be repeated."),
]
Since = Annotated[
    str | None,
    typer.Option(
        help="Only what was refused at or after this: a time with its zone (2026-11-30T08:00:00+00:00), or how long ago "
        "(30min, 2h)."
    ),
]
Until = Annotated[str | None, typer.Option(help="Only what was refused before this.")]


@app.command("list")
def list_letters(
    reason: Reasons = None,
    topic: Topics = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"The latest so many: a table shows {SHOWN}, JSON all."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON record a line, in the log's order.")
    ] = False,
) -> None:
    """What was refused, the latest first, and how much of it by reason and source. Never an item's bytes."""
    wanted = _wanted(reason, topic, since, until)
    settings = Settings.load()
    latest: list[Row] = []
    keep = limit or SHOWN
    counts: Counter[tuple[str, str, bool]] = Counter()
    seen: Counter[tuple[str, str]] = Counter()

    async def read() -> int:
        async with dead_letters(settings) as log:
            with _progress("reading", 2 * log.records, shown=not json) as step:
                marks = await log.marks()
                step(log.records)
                async for letter in log.letters():
                    step(1)
                    seen[letter.content.reason, letter.content.source.topic] += 1
                    if letter not in wanted:
                        continue
                    redriven = letter.offset in marks.get(letter.partition, ())
                    record = as_record(letter, redriven=redriven)
                    if json and limit is None:
                        _write(record)
                        continue
                    counts[letter.content.reason, letter.content.source.topic, redriven] += 1
                    row = (letter.at_ms, letter.partition, letter.offset, record)
                    if len(latest) < keep:
                        heapq.heappush(latest, row)
                    else:
                        heapq.heappushpop(latest, row)
            return log.foreign

    foreign = on_kafka(read(), settings)
    if json:
        for *_, record in sorted(latest):
            _write(record)
        return
    console = report_console()
    if latest:
        console.print(letters_table(sorted(latest, reverse=True), counts.total()))
        console.print(summary_table(counts))
    else:
        typer.echo(nothing(seen))
    tell_foreign(foreign)


@app.command("show")
def show(
    coordinates: Annotated[
        str,
        typer.Argument(
            metavar="COORDINATES",
            help="TOPIC/PARTITION/OFFSET[/INDEX] of what was refused, or PARTITION/OFFSET of its dead letter.",
        ),
    ],
    value: Annotated[
        bool,
        typer.Option("--value", help="The item's bytes too. They are what an agent sent: content."),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON record a line; with --value bytes in base64.")
    ] = False,
) -> None:
    """All that is known of a refused item: by its own coordinates, as records and logs name it, or by those of its letter,
    as `list` does. Exit code 1 if there is none."""
    settings = Settings.load()
    own, key = _coordinates(coordinates)
    found: list[tuple[Letter, bool]] = []

    async def read() -> None:
        async with dead_letters(settings) as log:
            marks = await log.marks()
            if own is not None:
                letter = await log.at(*own)
                letters = [] if letter is None else [letter]
            else:
                letters = [
                    letter
                    async for letter in log.letters()
                    if (source_key(letter.content.source) + "/").startswith(key)
                ]
            found.extend((x, x.offset in marks.get(x.partition, ())) for x in letters)

    on_kafka(read(), settings)
    if not found:
        raise NothingKnown(
            f"no dead letter at {coordinates}; the topic keeps them for MONITOR_DEADLETTER_RETENTION, `monitor deadletters "
            "list` shows them"
        )
    for letter, redriven in found:
        if json:
            bytes_too = {"value": letter.content.value} if value else {}
            _write(as_record(letter, redriven=redriven) | bytes_too)
        else:
            print_letter(letter, redriven=redriven, value=value)


@app.command("redrive")
def redrive(
    reason: Reasons = None,
    topic: Topics = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Send at most so many: try a few first.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be sent, and what would stay.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON record of what was done.")] = False,
) -> None:
    """Send items again to the topics they came from, each once however often this runs, once their cause is cured.

    The settings must be the workers': what they would refuse again is not sent. Exit code 1 if anything that matches stays
    unsent.
    """
    wanted = _wanted(reason, topic, since, until)
    settings = Settings.load()
    if not (yes or dry_run) and (json or not sys.stdin.isatty()):
        raise typer.BadParameter("nobody to ask: say --yes, or --dry-run to see what would be sent")
    tally = _plan(settings, wanted, limit, quiet=json)
    ready = tally.sent.total()
    if not json:
        print_tally(tally)
    if dry_run or not ready:
        if json:
            _write(tally_record(tally, dry_run=dry_run))
        _end(tally)
        return
    if not yes:
        typer.confirm(f"Send {ready:,} items again?", abort=True)
    tally = _send(settings, wanted, limit, ready, quiet=json)
    if json:
        _write(tally_record(tally, dry_run=False))
    else:
        typer.echo(
            f"sent {tally.sent.total():,} items in {tally.transactions:,} transactions; they are marked and will not be sent "
            "again"
        )
    _end(tally)


def _plan(settings: Settings, wanted: Wanted, limit: int | None, *, quiet: bool) -> redriving.Tally:
    with _progress("reading", None, shown=not quiet) as step:
        return on_kafka(redriving.plan(settings, wanted, limit, step), settings)


def _send(
    settings: Settings, wanted: Wanted, limit: int | None, ready: int, *, quiet: bool
) -> redriving.Tally:
    sent = 0

    def count(letters: int) -> None:
        nonlocal sent
        sent += letters
        step(letters)

    try:
        with _progress("sending", ready, shown=not quiet) as step:
            return on_kafka(redriving.redrive(settings, wanted, limit, count), settings)
    except TransactionFailed as error:
        why = (
            "another redrive has begun, or this one stood still for too long"
            if isinstance(error, Fenced)
            else "Kafka did not take a transaction"
        )
        raise KafkaUnreachable(
            f"{why} ({error}); {sent:,} of {ready:,} items were sent. Run the same command again: what was sent is marked "
            "and is not sent twice"
        ) from error


def _end(tally: redriving.Tally) -> None:
    if tally.left:
        raise typer.Exit(EXIT_SOME_STAY)


# --- filters -----------------------------------------------------------------------------------------------


def _wanted(
    reasons: list[str] | None, topics: list[str] | None, since: str | None, until: str | None
) -> Wanted:
    for reason in reasons or ():
        if reason not in KNOWN_REASONS:
            near = difflib.get_close_matches(reason, KNOWN_REASONS, 1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(KNOWN_REASONS)}"
            raise typer.BadParameter(f"--reason {printable(reason)}: no such reason; {hint}")
    since_ms, until_ms = _moment("--since", since), _moment("--until", until)
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise typer.BadParameter(f"--since {since} is not before --until {until}")
    return Wanted(frozenset(reasons or ()), frozenset(topics or ()), since_ms, until_ms)


def _moment(option: str, text: str | None) -> int | None:
    """Milliseconds of a time, or of a duration before now."""
    if text is None:
        return None
    try:
        return int((time.time() - parse_duration(text).total_seconds()) * 1000)
    except (ValueError, OverflowError):
        pass
    try:
        moment = parse_start(text)
    except ValueError:
        moment = None
    if not isinstance(moment, datetime):
        raise typer.BadParameter(
            f"{option} {printable(text)!r}: a time with its zone (2026-11-30T08:00:00+00:00), or how long ago (30min, 2h, 1d)"
        )
    return int(moment.timestamp() * 1000)


def _coordinates(text: str) -> tuple[tuple[int, int] | None, str]:
    """((partition, offset) of a letter, "") or (None, beginning of the key of letters)."""
    topic, *numbers = text.strip().split("/")
    if all(n.isascii() and n.isdigit() for n in numbers):
        if len(numbers) == 1 and topic.isascii() and topic.isdigit():
            return (int(topic), int(numbers[0])), ""
        if topic and len(numbers) in (2, 3):
            return None, "/".join((topic, *(str(int(n)) for n in numbers), ""))
    raise typer.BadParameter(
        f"{printable(text)!r}: TOPIC/PARTITION/OFFSET[/INDEX] of what was refused, or PARTITION/OFFSET of its dead letter"
    )


# --- what is printed ---------------------------------------------------------------------------------------


def _write(record: object) -> None:
    sys.stdout.buffer.write(encode_json(record) + b"\n")


@contextmanager
def _progress(what: str, total: int | None, *, shown: bool) -> Iterator[redriving.Step]:
    """On a terminal's stderr, else nothing."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not shown or not console.is_terminal,
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
