"""``monitor incidents``: the records behind the pages."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.cli.kafka import committed_records, on_kafka
from monitor.cli.report import Report, report_console
from monitor.codec import decode_output, encode_json
from monitor.errors import MonitorError
from monitor.model import Incident
from monitor.settings import Settings
from monitor.stream.topics import TopicNames

app = typer.Typer(help="The incident records behind the pages.", no_args_is_help=True)


class NoSuchIncident(MonitorError):
    """The incidents topic holds no incident of that id or trace."""


@app.command("list")
def list_incidents(
    service: Annotated[str | None, typer.Option(help="Only of this service.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Whole records, one a line, instead of a table.")
    ] = False,
) -> None:
    """The last revision of each incident that the topic still holds, worst first."""
    found = [i for i in _incidents() if service is None or i.service == service]
    if json:
        for incident in found:
            _write(incident)
        return
    report = Report()
    for incident in found:
        report.add(incident)
    report.print_incidents(report_console())


@app.command("show")
def show(
    what: Annotated[str, typer.Argument(metavar="INCIDENT_ID|TRACE_ID")],
    json: Annotated[bool, typer.Option("--json", help="The whole record as JSON.")] = False,
) -> None:
    """What is known of an incident, or of every incident of a trace."""
    found = [i for i in _incidents() if what in (i.incident_id, i.trace_id)]
    if not found:
        raise NoSuchIncident(
            f"no incident {what!r} in the incidents topic; it keeps 30 days, `monitor incidents list` shows them"
        )
    for incident in found:
        if json:
            _write(incident)
        else:
            _print(incident, report_console())


def _incidents() -> list[Incident]:
    settings = Settings.load()
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


def _print(incident: Incident, console: Console) -> None:
    """Every field that is not a list of spans, then the spans it rests on, in causal order."""
    facts = Table(show_header=False, box=None)
    record = msgspec.to_builtins(incident)
    for name, value in record.items():
        if value is not None and not isinstance(value, (dict, list)):
            facts.add_row(name, Text(str(value)))
    faults = ", ".join(f"{fault.kind} x{fault.count}" for fault in incident.forensics.faults)
    facts.add_row("forensics", Text(f"{incident.forensics.status} {faults}".strip()))
    facts.add_row("neighbourhood", Text(incident.neighbourhood.status))
    console.print(facts)
    spans = Table("span", "parent", "role", "score", "tool / name", "tags", "source", box=None)
    for span in incident.evidence:
        spans.add_row(
            span.span_id or "-",
            span.parent_span_id or "-",
            span.role,
            "-" if span.score is None else f"{span.score:.3f}",
            Text(span.tool_name or span.name),
            Text(" ".join(span.tags)),
            Text(f"{span.source.topic}[{span.source.partition}]@{span.source.offset}"),
        )
    console.print(spans)
    for edge in incident.neighbourhood.edges:
        console.print(f"{edge.cause} → {edge.effect}  {edge.why}", highlight=False)
