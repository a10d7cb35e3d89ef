"""``monitor thresholds``: which thresholds would page as often as is wished."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from monitor.cli.kafka import committed_records, on_kafka
from monitor.cli.replay import settings_for_files
from monitor.cli.report import report_console
from monitor.codec import decode_output, encode_json
from monitor.errors import InvalidSettings
from monitor.model import Verdict
from monitor.replay.lines import Line, UnreadableFile, raw_lines
from monitor.replay.whole import judged_whole
from monitor.settings import Settings
from monitor.settings.environment import PREFIX
from monitor.settings.values import parse_duration
from monitor.stream.topics import TopicNames
from monitor.trace.suggest import (
    WARNING_ROLES,
    Maxima,
    Suggested,
    Suggestion,
    exceedance,
    maxima_of,
    poisson,
    suggest,
    wilson,
)

app = typer.Typer(
    help="Incident thresholds by role, proposed for a wished number of pages.", no_args_is_help=True
)

EXIT_NOTHING: Final = 1
DAY_MS: Final = 86_400_000
# Traces that are held: a dictionary of a few roles each, 300 MB.
LIMIT: Final = 1_000_000
GRID: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_NO: Final = frozenset({"", "0", "false", "no", "none", "null"})


class _Recorded:
    """Maxima of traces, the time they cover, and which of them bear the label."""

    def __init__(self, label: str | None = None) -> None:
        self.traces: dict[str, Maxima] = {}
        self.labelled: set[str] = set()
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        self.captured = 0
        self._label = label

    def see(self, line: Line) -> None:
        self.at(line.timestamp_ms if line.timestamp_ms is not None else line.end_ms)
        if self._label is None or line.value is None:
            return
        if line.encoding != "json":
            self.captured += 1
        elif self._label.encode() in line.value:
            span = _object(line.value)
            attributes = span.get("attributes")
            if isinstance(attributes, dict) and _truthy(attributes.get(self._label)):
                self.labelled.add(str(span.get("trace_id")).lower())

    def at(self, ms: int | None) -> None:
        if ms is not None:
            self.first_ms = ms if self.first_ms is None else min(self.first_ms, ms)
            self.last_ms = ms if self.last_ms is None else max(self.last_ms, ms)

    @property
    def days(self) -> float:
        return 0.0 if self.first_ms is None else ((self.last_ms or 0) - self.first_ms) / DAY_MS


@app.command("suggest")
def suggest_thresholds(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE…]",
            help="Spans as for `monitor replay`; without any: the verdicts topic, which keeps 7 days.",
        ),
    ] = None,
    pages_per_day: Annotated[
        float, typer.Option(min=0.0, help="Pages a day that are wished for, over all roles.")
    ] = 5.0,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="ATTRIBUTE",
            help="Traces with a span on which this attribute says yes are known to be bad: how many of them would "
            "be missed is shown. With --labels: that field of its lines.",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="JSON lines with `trace_id` and the field that --label names."
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Days that the data cover; default: from the first to the last time in them.",
        ),
    ] = None,
    since: Annotated[str, typer.Option(help="Of the topic: how far back.")] = "7d",
    json: Annotated[bool, typer.Option("--json", help="One JSON record.")] = False,
) -> None:
    """Thresholds by role for a wished number of pages a day, counted on recorded traces.

    Each trace counts once, by its highest score in each role; pages of policies and of broken identities come on top.
    Prints the lines to set. Exit code 1 if there is no scored trace.
    """  # fmt: skip
    if labels is not None and label is None:
        raise InvalidSettings("--labels: name the field of its lines with --label")
    if files:
        settings = settings_for_files()
        recorded = _from_files(files, settings, None if labels is not None else label)
    else:
        if label is not None and labels is None:
            raise InvalidSettings("--label: verdicts have no attributes; give --labels FILE too")
        settings = Settings.load()
        recorded = _from_topic(settings, since)
    if labels is not None and label is not None:
        recorded.labelled = set(_labelled(labels, label))
    covered = recorded.days if days is None else days
    if not any(recorded.traces.values()):
        typer.secho("monitor: no trace with a score", fg="red", err=True)
        raise typer.Exit(EXIT_NOTHING)
    if covered <= 0.0:
        raise InvalidSettings(
            "the data have no two times, so that nothing is known of a day: say with --days how long they cover"
        )
    found = suggest(
        recorded.traces,
        int(pages_per_day * covered),
        settings.fold_settings().thresholds,
        frozenset(recorded.labelled),
    )
    if json:
        _write(found, covered)
        return
    print_suggested(found, recorded.traces, covered, pages_per_day, report_console())
    if label is not None and not found.labelled:
        typer.echo(_no_label(label, recorded.captured))


def print_suggested(
    found: Suggested, traces: dict[str, Maxima], days: float, wish: float, console: Console
) -> None:
    """Proposal by role, what it pages and misses, whether the data are enough, and the lines to set."""
    console.print(
        f"{found.traces:,} traces over {days:.4g} days; {wish:g} pages a day wished, {int(wish * days):,} in all",
        highlight=False,
    )
    table = Table(
        "role", "traces scored", "now", "over it a day", "proposed", "over it a day (95 %)", box=None,
        padding=(0, 2, 0, 0),
    )  # fmt: skip
    if found.labelled:
        table.add_column("labelled and missed in this role (95 %)")
    for one in found.roles:
        low, high = poisson(one.over)
        row = [
            one.role + (" (warns)" if one.role in WARNING_ROLES else ""),
            f"{one.traces:,}",
            f"{one.now:g}",
            f"{one.over_now / days:.3g}",
            f"{one.threshold:g}",
            f"{one.over / days:.3g} ({low / days:.2g}–{high / days:.2g})",
        ]
        if found.labelled:
            row.append(_share(one.missed, one.labelled))
        table.add_row(*row)
    console.print(table)
    console.print(
        f"Pages a day, each trace once: {found.pages / days:.3g} with the proposal, {found.pages_now / days:.3g} now. "
        "Policies and broken identities page besides.",
        highlight=False,
    )
    if found.labelled:
        console.print(
            f"Labelled traces under every proposed threshold: {_share(found.missed, found.labelled)}. A policy may "
            "still find them: `monitor replay`.",
            highlight=False,
        )
    else:
        console.print(_exceedances(found, traces))
        console.print(
            "Nothing is labelled (--label), so what the proposal misses is not known: above is how many traces reach "
            "a score.",
            highlight=False,
        )
    for one in found.roles:
        for doubt in one.doubts:
            console.print(f"Too few data for {one.role}: {doubt}.", style="yellow", highlight=False)
    if int(wish * days) == 0:
        console.print(
            f"Too few data: {wish:g} pages a day are none in {days:.4g} days; the proposal lies above all scores seen.",
            style="yellow", highlight=False,
        )  # fmt: skip
    if found.pages > int(wish * days):
        console.print(
            "No thresholds keep within the wish: too many traces score 1. What scores so much as a matter of course "
            "needs a threshold by scorer (MONITOR_THRESHOLDS) or another scale (MONITOR_SCORERS).",
            style="yellow", highlight=False,
        )  # fmt: skip
    console.print()
    for one in found.roles:
        console.print(_setting(one), highlight=False)


def _setting(one: Suggestion) -> str:
    return f"{PREFIX}THRESHOLD__{one.role.upper()}={one.threshold:g}"


def _exceedances(found: Suggested, traces: dict[str, Maxima]) -> Table:
    roles = [one.role for one in found.roles]
    values = {role: sorted(t[role] for t in traces.values() if role in t) for role in roles}
    table = Table("traces at or over", *roles, box=None, padding=(0, 2, 0, 0))
    for threshold in GRID:
        table.add_row(
            f"{threshold:g}", *(f"{exceedance(values[role], threshold):,}" for role in roles)
        )
    return table


def _share(k: int, n: int) -> str:
    low, high = wilson(k, n)
    return f"{k:,} of {n:,} ({100 * low:.0f}–{100 * high:.0f} %)" if n else "-"


def _no_label(label: str, captured: int) -> str:
    why = (
        f"; {captured:,} lines are captured messages, whose attributes are not looked at: give --labels FILE"
        if captured
        else ""
    )
    return f"No trace of the data is labelled by {label!r}{why}."


# --- where the traces come from --------------------------------------------------------------------------


def _from_files(files: list[Path], settings: Settings, label: str | None) -> _Recorded:
    recorded = _Recorded(label)
    fold = msgspec.structs.replace(settings.fold_settings(), policies=())
    for judged in judged_whole(files, settings.intake_config(), fold, each=recorded.see):
        recorded.traces[judged.trace_id] = maxima_of(judged.reductions)
    return recorded


def _from_topic(settings: Settings, since: str) -> _Recorded:
    """The last revision of each verdict; a trace id that lived more than once counts once, by its highest scores."""
    try:
        back = parse_duration(since)
    except ValueError as error:
        raise InvalidSettings(f"--since: {error}") from error
    recorded = _Recorded()
    lives: dict[tuple[str, int], tuple[int, Maxima]] = {}
    oldest = (datetime.now(UTC) - back).timestamp() * 1000

    async def read() -> None:
        async for record in committed_records(settings, TopicNames(settings.topic_prefix).verdicts):
            if record.value is None or record.timestamp < oldest:
                continue
            verdict = decode_output(record.value)
            if isinstance(verdict, Verdict):
                known = lives.get((verdict.trace_id, verdict.life))
                if known is None and len(lives) >= LIMIT:
                    raise InvalidSettings(
                        f"more than {LIMIT:,} traces: take a shorter --since than {since}"
                    )
                recorded.at(record.timestamp)
                if known is None or verdict.revision >= known[0]:
                    maxima = maxima_of(verdict.reductions)
                    lives[verdict.trace_id, verdict.life] = (verdict.revision, maxima)

    on_kafka(read(), settings)
    for (trace_id, _), (_, maxima) in lives.items():
        before = recorded.traces.get(trace_id, {})
        recorded.traces[trace_id] = {
            role: max(maxima.get(role, 0.0), before.get(role, 0.0)) for role in {*maxima, *before}
        }
    return recorded


def _labelled(path: Path, field: str) -> Iterator[str]:
    for line in raw_lines([path]):
        row = _object(line.raw)
        if "trace_id" not in row:
            raise UnreadableFile(f"{line.where}: no JSON object with a `trace_id`")
        if _truthy(row.get(field)):
            yield str(row["trace_id"]).lower()


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _truthy(value: object) -> bool:
    return bool(value) and str(value).strip().lower() not in _NO


def _write(found: Suggested, days: float) -> None:
    record = {
        "kind": "threshold_suggestion",
        "days": days,
        **msgspec.to_builtins(found),
        "environment": dict(_setting(one).split("=") for one in found.roles),
    }
    sys.stdout.buffer.write(encode_json(record) + b"\n")
