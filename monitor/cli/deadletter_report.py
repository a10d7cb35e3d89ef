"""Dead letters on a terminal. What came from a sender is shown with escapes for what controls it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import typer
from rich.table import Table
from rich.text import Text

from monitor.cli.report import report_console
from monitor.cli.tree import printable
from monitor.intake.reasons import REASONS
from monitor.stream.deadletters import Letter, source_key
from monitor.stream.redrive import Tally
from monitor.stream.resend import STAYS

MEANINGS: Final = REASONS | {
    "span_not_in_memory": "a score's span did not come while its trace was in memory",
    "scores_no_member": "a score's span is an evaluator or guardrail, which are not scored",
    "undecodable_fragment": "a record of the fragments log does not decode; please report it",
    "output_too_large": "a record of our own that its topic would refuse; please report it",
    "undecodable_record": "a record that an agent reads does not decode; please report it",
    "agent_error": "an agent failed on a record; please report it",
}

Row = tuple[int, int, int, dict[str, Any]]
"""Time, partition and offset of a letter, and its record."""


def as_record(letter: Letter, *, redriven: bool) -> dict[str, Any]:
    """All but the item's bytes."""
    content = letter.content
    return {
        "letter": letter.place,
        "refused_at_ms": letter.at_ms,
        "reason": content.reason,
        "detail": content.detail,
        "item": source_key(content.source),
        "item_at_ms": content.source.timestamp_ms,
        "trace_id": content.trace_id,
        "span_id": content.span_id,
        "scorer": content.scorer,
        "bytes": None if content.value is None else len(content.value),
        "redriven": redriven,
    }


def letters_table(rows: list[Row], matching: int) -> Table:
    table = Table(
        "refused (UTC)", "reason", "item", "bytes", "detail", "letter", box=None, padding=(0, 1, 0, 0)
    )  # fmt: skip
    table.columns[-1].no_wrap = True
    for at_ms, _, _, record in rows:
        about = " ".join(filter(None, (record["scorer"], record["detail"])))
        again = record["redriven"]
        table.add_row(
            _date(at_ms),
            Text(printable(record["reason"])),
            Text(printable(record["item"])),
            "-" if record["bytes"] is None else f"{record['bytes']:,}",
            Text(printable(about)),
            Text(record["letter"] + (" sent again" if again else ""), "dim" if again else ""),
        )
    if matching > len(rows):
        table.caption = f"and {matching - len(rows):,} more: --limit or --json shows them"
    return table


def summary_table(counts: Counter[tuple[str, str, bool]]) -> Table:
    table = Table(
        "reason", "source", "refused", "sent again", "what it means", box=None, padding=(0, 1, 0, 0),
        title="\nby reason and source", title_justify="left",
    )  # fmt: skip
    kinds: Counter[tuple[str, str]] = Counter()
    for (reason, topic, _), count in counts.items():
        kinds[reason, topic] += count
    for (reason, topic), count in sorted(kinds.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(
            Text(printable(reason)),
            Text(printable(topic)),
            f"{count:,}",
            f"{counts[reason, topic, True]:,}",
            MEANINGS.get(reason, "-"),
        )
    return table


def nothing(seen: Counter[tuple[str, str]]) -> str:
    """``seen``: all letters by (reason, source topic)."""
    if not seen:
        return (
            "no dead letters: nothing was refused, or it is older than MONITOR_DEADLETTER_RETENTION"
        )
    kinds = ", ".join(
        f"{count:,} {printable(reason)} from {printable(topic)}"
        for (reason, topic), count in seen.most_common()
    )
    return f"no dead letter matches; there are {seen.total():,}: {kinds}"


def print_letter(letter: Letter, *, redriven: bool, value: bool) -> None:
    console, content = report_console(), letter.content
    console.print(Text(f"dead letter {letter.place}", "bold"))
    facts = Table(show_header=False, box=None)
    rows = {
        "reason": content.reason,
        "meaning": MEANINGS.get(content.reason),
        "detail": content.detail,
        "source": source_key(content.source),
        "source time": _date(content.source.timestamp_ms) + " UTC" if content.source.timestamp_ms else None,
        "refused": _date(letter.at_ms) + " UTC",
        "trace id": content.trace_id,
        "span id": content.span_id,
        "scorer": content.scorer,
        "bytes": "not kept" if content.value is None else f"{len(content.value):,}",
        "sent again": "yes" if redriven else "no",
    }  # fmt: skip
    for name, said in rows.items():
        if said is not None:
            facts.add_row(name, Text(printable(said)))
    console.print(facts, soft_wrap=True)
    if value and content.value is not None:
        for line in escaped(content.value):
            console.print(Text(line), soft_wrap=True)


def escaped(value: bytes) -> Iterator[str]:
    """Hostile bytes as lines for a terminal: what is no UTF-8, controls it or turns the direction of writing as escapes."""
    for line in value.decode("utf-8", "backslashreplace").split("\n"):
        yield printable(line)


def print_tally(tally: Tally) -> None:
    console = report_console()
    table = Table("reason", "source", "items", "", box=None, padding=(0, 1, 0, 0))
    for (reason, topic), count in sorted(tally.sent.items()):
        table.add_row(
            Text(printable(reason)), Text(printable(topic)), f"{count:,}", Text("to send", "green")
        )
    for (reason, topic, why, again), count in sorted(tally.stays.items()):
        said = STAYS[why] + (f" ({again})" if again else "")
        table.add_row(
            Text(printable(reason)), Text(printable(topic)), f"{count:,}", Text(f"stays: {said}")
        )
    if table.row_count:
        console.print(table)
    if not tally.sent:
        typer.echo("nothing to send" + ("" if table.row_count else ": no dead letter matches"))
    tell_foreign(tally.foreign)


def tally_record(tally: Tally, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "transactions": tally.transactions,
        "sent": [{"reason": r, "topic": t, "items": n} for (r, t), n in sorted(tally.sent.items())],
        "stays": [
            {"reason": r, "topic": t, "why": why, "refused_again": again or None, "items": n}
            for (r, t, why, again), n in sorted(tally.stays.items())
        ],
    }


def tell_foreign(foreign: int) -> None:
    if foreign:
        typer.secho(
            f"monitor: {foreign:,} records of the topic are no dead letters and were passed over; who else writes to it?",
            fg="yellow",
            err=True,
        )


def _date(ms: int) -> str:
    """UTC; a time that no calendar has stays a number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", timespec="seconds")[:-6]
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
