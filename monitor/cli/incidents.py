"""``monitor incidents``: the records behind the pages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.alerting.content import ALERT_OF_REASON, OTHER_REASON
from monitor.cli.commonness import commonness_line, read_commonness
from monitor.cli.explain import NothingKnown
from monitor.cli.kafka import committed_records, on_kafka
from monitor.cli.report import SEVERITY_STYLE, SHOWN, report_console
from monitor.cli.tree import printable
from monitor.codec import decode_output, encode_json
from monitor.model import Incident
from monitor.settings import Settings
from monitor.stream.topics import TopicNames

app = typer.Typer(help="The incident records behind the pages.", no_args_is_help=True)

_URGENCY: Final = {"critical": 0, "warning": 1, "info": 2}


@app.command("list")
def list_incidents(
    service: Annotated[str | None, typer.Option(help="Only of this service.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="At most so many rows; JSON has them all.")
    ] = SHOWN,
    json: Annotated[
        bool, typer.Option("--json", help="Whole records, one a line, instead of a table.")
    ] = False,
) -> None:
    """The last revision of each incident that the topic still holds: a table, worst first; JSON in order of opening."""
    found = [i for i in _incidents(Settings.load()) if service is None or i.service == service]
    if json:
        for incident in found:
            _write(incident)
    elif found:
        report_console().print(incident_table(found, limit))
    else:
        typer.echo("no incidents" + ("" if service is None else f" (service {printable(service)})"))


@app.command("show")
def show(
    what: Annotated[str, typer.Argument(metavar="INCIDENT_ID|TRACE_ID")],
    json: Annotated[bool, typer.Option("--json", help="The whole record as JSON.")] = False,
) -> None:
    """What is known of an incident, or of every incident of a trace. Exit code 1 if there is none."""
    settings = Settings.load()
    found = [i for i in _incidents(settings) if what in (i.incident_id, i.trace_id)]
    if not found:
        raise NothingKnown(
            f"no incident {what!r} in the incidents topic; it keeps 30 days, `monitor incidents list` shows them"
        )
    if json:
        for incident in found:
            _write(incident)
        return
    for incident in found:
        print_incident(incident, report_console(), settings.runbook_url)
    # Last, since it takes seconds where the topic is large: whoever was paged reads the rest meanwhile.
    counts = on_kafka(read_commonness(settings, found), settings)
    for incident, count in zip(found, counts, strict=True):
        if (line := commonness_line(incident, count)) is not None:
            of = f"incident {incident.incident_id}, " if len(found) > 1 else ""
            report_console().print(Text(of).append(line), soft_wrap=True, highlight=False)


def incident_table(incidents: list[Incident], limit: int = SHOWN) -> Table:
    """One row an incident, the worst and then the latest first; the id is what ``show`` and ``explain`` take."""
    table = Table(
        "opened (UTC)", "severity", "reason", "service", "score", "incident", box=None, padding=(0, 1, 0, 0)
    )  # fmt: skip
    table.columns[-1].no_wrap = True
    ranked = sorted(
        incidents,
        key=lambda i: (_URGENCY[i.severity], -(i.max_score or 0.0), -i.opened_at_ms, i.incident_id),
    )
    for incident in ranked[:limit]:
        table.add_row(
            _date(incident.opened_at_ms, "minutes"),
            Text(incident.severity, SEVERITY_STYLE[incident.severity]),
            Text(printable(" ".join(filter(None, (incident.reason, incident.policy))))),
            Text(printable(incident.service)),
            "-" if incident.max_score is None else f"{incident.max_score:.2f}",
            incident.incident_id,
        )
    if len(ranked) > limit:
        table.caption = f"and {len(ranked) - limit:,} more: --limit or --json shows them"
    return table


def _incidents(settings: Settings) -> list[Incident]:
    topic = TopicNames(settings.topic_prefix).incidents
    last: dict[str, Incident] = {}

    async def read() -> None:
        async for record in committed_records(settings, topic):
            output = decode_output(record.value) if record.value is not None else None
            if isinstance(output, Incident):
                # A severity that rose stands under two keys, so in two partitions: the later revision counts.
                known = last.get(output.incident_id)
                if known is None or output.revision >= known.revision:
                    last[output.incident_id] = output

    on_kafka(read(), settings)
    return sorted(last.values(), key=lambda i: (i.opened_at_ms, i.incident_id))


def _write(incident: Incident) -> None:
    sys.stdout.buffer.write(encode_json(incident) + b"\n")


def print_incident(incident: Incident, console: Console, runbooks: str) -> None:
    """What the page said of it, every plain field of the record, then the spans it rests on, in causal order."""
    alert = ALERT_OF_REASON.get(incident.reason, OTHER_REASON)
    console.print(Text(f"incident {incident.incident_id}, revision {incident.revision}", "bold"))
    facts = Table(show_header=False, box=None)
    facts.add_row("alert", alert)
    facts.add_row("runbook", f"{runbooks.rstrip('/')}/{alert}.md")
    for name, value in _plain(incident):
        facts.add_row(name, Text(printable(value)))
    console.print(facts, soft_wrap=True)
    if incident.evidence:
        console.print(_evidence(incident))
    for edge in incident.neighbourhood.edges:
        console.print(Text(printable(f"{edge.cause} → {edge.effect}  {edge.why}")), highlight=False)
    for gap in incident.neighbourhood.gaps:
        console.print(Text(f"gap: {printable(gap)}", "yellow"))


def _plain(incident: Incident) -> Iterator[tuple[str, str]]:
    """Fields that are one value, times as dates, and the rest in a few words."""
    for name, value in msgspec.to_builtins(incident).items():
        if name in ("kind", "incident_id", "revision") or value is None:
            continue
        if name.endswith("_ms"):
            yield name.removesuffix("_ms"), f"{_date(value, 'seconds')} UTC"
        elif isinstance(value, (str, int, float)):
            yield name, str(value)
    faults = ", ".join(f"{fault.kind} x{fault.count}" for fault in incident.forensics.faults)
    yield "forensics", f"{incident.forensics.status} {faults}".strip()
    yield "neighbourhood", incident.neighbourhood.status
    cause = incident.provenance
    yield "log", f"fragments partition {cause.partition}, offset {cause.causing_offset}"


def _evidence(incident: Incident) -> Table:
    spans = Table(
        "span", "parent", "role", "score", "tool / name", "tags", "source", box=None,
        title=f"\n{len(incident.evidence)} spans of the neighbourhood, causes first", title_justify="left",
    )  # fmt: skip
    for span in incident.evidence:
        source = span.source
        spans.add_row(
            Text(printable(span.span_id or "-")),
            Text(printable(span.parent_span_id or "-")),
            span.role,
            "-" if span.score is None else f"{span.score:.3f}",
            Text(printable(span.tool_name or span.name)),
            Text(printable(" ".join(span.tags))),
            Text(printable(f"{source.topic}[{source.partition}]@{source.offset}")),
        )
    return spans


def _date(ms: int, to: str) -> str:
    """UTC; a time that no calendar has (a record is only as good as its writer) stays a number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", timespec=to)[:-6]
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
