"""``monitor explain``: why a record says what it says, and whether the log still bears it out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer
from aiokafka.structs import TopicPartition
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.cli.kafka import committed_records, on_kafka
from monitor.cli.replay import settings_for_files
from monitor.cli.report import report_console
from monitor.cli.tree import printable, tree
from monitor.codec import encode_json
from monitor.errors import MonitorError
from monitor.model import Incident, Verdict
from monitor.replay.clock import timed
from monitor.replay.evidence import Evidence, Explanation, add_dump, add_records
from monitor.replay.runner import Replay, fold_fragments
from monitor.settings import Settings
from monitor.stream import clients
from monitor.stream.placement import partition_of
from monitor.stream.ranges import log_range, read_range
from monitor.stream.topics import TopicNames
from monitor.trace.explain import Explained

DIFFERENCES_SHOWN: Final = 40


class NothingKnown(MonitorError):
    """No record of that id."""


class NotTheSame(MonitorError):
    """The log gives another record than the one that was published."""


def explain(
    what: Annotated[str, typer.Argument(metavar="INCIDENT_ID|TRACE_ID")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE…]",
            help="Spans to replay first, as for `monitor replay`; without any: from Kafka.",
        ),
    ] = None,
    fragments: Annotated[
        bool,
        typer.Option(
            "--fragments",
            help="The files are a dump of the fragments topic (`monitor topics dump`).",
        ),
    ] = False,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            "--records",
            help="Dumps of the verdicts and incidents topics to hold the files against; else what the files give.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a record instead of a drawing.")
    ] = False,
) -> None:
    """Draw the trace of an incident, derive its records again from the log, and say "same" or what differs (exit code 1)."""
    if files:
        evidence = _from_dump(files) if fragments else _from_spans(files)
        if records:
            evidence.records.clear()
            add_records(evidence, records)
    else:
        evidence = _from_kafka(what)
    found = evidence.last(what)
    if not found:
        where = "in these files" if files else "in the incidents and verdicts topics"
        raise NothingKnown(
            f"nothing is known of {what!r} {where}; give an incident id or a whole trace id "
            "(`monitor incidents list` shows both)"
        )
    explanations = [evidence.explain(record) for record in found]
    for explanation in explanations:
        if json:
            _write(explanation)
        else:
            _print(explanation, report_console())
    if not all(explanation.same for explanation in explanations):
        raise NotTheSame("the log gives another record than the one that was published: see above")


# --- where from ----------------------------------------------------------------------------------------------


def _from_spans(files: list[Path]) -> Evidence:
    settings = settings_for_files()
    evidence = Evidence()
    fold = settings.fold_settings()
    evidence.settings[fold.sha256] = fold.canonical()
    run = Replay(settings.intake_config(), fold, settings.drift_settings())
    run.logged = lambda offset, value: evidence.add_logged(0, offset, value)
    for line, now_ms, _ in timed(files):
        evidence.records.extend(_explained(run.feed(line, now_ms)))
    evidence.records.extend(_explained(run.finish()))
    return evidence


def _from_dump(files: list[Path]) -> Evidence:
    evidence = Evidence()
    add_dump(evidence, files)
    evidence.records.extend(_explained(fold_fragments(files)))
    return evidence


def _explained(records: Iterable[object]) -> list[Explained]:
    return [r for r in records if isinstance(r, Verdict | Incident) and r.trace_id is not None]


def _from_kafka(what: str) -> Evidence:
    settings = Settings.load()
    return on_kafka(_read_kafka(what, settings), settings)


async def _read_kafka(what: str, settings: Settings) -> Evidence:
    """The incidents topic whole; of the others what is needed: one partition of verdicts, a range of fragments."""
    names = TopicNames(settings.topic_prefix)
    evidence = Evidence()
    async for record in committed_records(settings, names.incidents):
        if record.value is not None:
            evidence.add_output(record.value)
    trace_id = next(
        (
            r.trace_id
            for r in evidence.records
            if isinstance(r, Incident) and r.incident_id == what and r.trace_id
        ),
        what,
    )
    evidence.records[:] = [r for r in evidence.records if r.trace_id == trace_id]
    async with clients.reader(settings) as reader:
        place = TopicPartition(names.verdicts, partition_of(trace_id, settings.partitions))
        first, end = await log_range(reader, place)
        key = trace_id.encode()
        async for batch in read_range(reader, place, first, end):
            for record in batch:
                if record.key == key and record.value is not None:
                    evidence.add_output(record.value)
        if not evidence.records:
            return evidence
        place = TopicPartition(names.fragments, evidence.records[0].provenance.partition)
        first, end = await log_range(reader, place)
        births = [r.provenance.life for r in evidence.records]
        async for batch in read_range(reader, place, max(first, min(births)), end):
            for record in batch:
                if record.value is not None:
                    evidence.add_logged(place.partition, record.offset, record.value, trace_id)
    async for record in committed_records(settings, names.settings):
        if record.key is not None and record.value is not None:
            evidence.settings[record.key.decode()] = record.value
    return evidence


# --- for a person --------------------------------------------------------------------------------------------


def _print(explanation: Explanation, console: Console) -> None:
    record = explanation.record
    judged = explanation.relived.judged
    incident = record if isinstance(record, Incident) else None
    facts = Table(show_header=False, box=None, title_justify="left")
    facts.title = Text(
        f"incident {record.incident_id}, revision {record.revision}"
        if incident is not None and isinstance(record, Incident)
        else f"verdict of trace {record.trace_id}, revision {record.revision}",
        "bold",
    )
    cause = record.provenance
    facts.add_row("trace", f"{record.trace_id}  (life {record.life})")
    facts.add_row("service", Text(printable(record.service)))
    if incident is not None:
        facts.add_row("severity", f"{incident.severity}, reason {incident.reason}")
        facts.add_row("summary", Text(printable(incident.summary)))
    else:
        assert isinstance(record, Verdict)
        facts.add_row("closed by", record.closed_by)
        for reduction in record.reductions:
            facts.add_row(
                Text(f"max of {printable(reduction.scorer)}"),
                f"{reduction.max_score:.3g} on {reduction.argmax_role} span {reduction.argmax_span_id}; "
                f"{reduction.scored_count} of {reduction.span_count} spans scored",
            )
    faults = ", ".join(
        f"{fault.kind} x{fault.count}"
        + (f" ({', '.join(fault.span_ids[:3])})" if fault.span_ids else "")
        for fault in record.forensics.faults
    )
    facts.add_row("forensics", Text(printable(f"{record.forensics.status} {faults}".strip())))
    facts.add_row(
        "log",
        f"fragments partition {cause.partition}, {len(cause.fragment_offsets)} fragments "
        f"{_span_of(cause.fragment_offsets)}, settings {cause.settings[:12]}, fold {cause.fold_version}",
    )
    console.print(facts)
    for line in tree(judged, incident):
        console.print(line, soft_wrap=True)
    if incident is not None:
        for edge in incident.neighbourhood.edges:
            if edge.why != "parent":
                console.print(f"  {edge.cause} → {edge.effect}  {edge.why}", highlight=False)
        for gap in incident.neighbourhood.gaps:
            console.print(Text(f"  gap: {printable(gap)}", "yellow"))
    _print_derivation(explanation, console)


def _print_derivation(explanation: Explanation, console: Console) -> None:
    if explanation.same:
        console.print(Text("same: the log gives this record again, field by field", "bold green"))
        console.print(
            "(dates, and of a verdict the gate and what closed it, are taken on the record's word)"
        )
        return
    if explanation.seal is False:
        console.print(
            Text("seal broken: the record's digest is not that of what it says", "bold red")
        )
    if explanation.derived is None:
        console.print(Text("not the same: the log gives no such record", "bold red"))
    for offset in explanation.changed:
        where = explanation.record.provenance.partition
        console.print(Text(f"fragment {where}@{offset} is not the one that was judged", "bold red"))
    if explanation.unlisted:
        offsets = ", ".join(map(str, explanation.unlisted[:5]))
        console.print(
            Text(
                f"fragments of this life that no record lists: @{offsets}; if its spans still come, ask again in a "
                "minute",
                "bold red",
            )
        )
    if explanation.differences:
        table = Table("field", "published", "from the log", box=None)
        for difference in explanation.differences[:DIFFERENCES_SHOWN]:
            table.add_row(
                Text(printable(difference.path)),
                Text(printable(str(difference.recorded))),
                Text(printable(str(difference.derived))),
            )
        left = len(explanation.differences) - DIFFERENCES_SHOWN
        table.caption = f"and {left} more: --json has them all" if left > 0 else None
        console.print(table)
    if isinstance(explanation.record, Verdict) and explanation.record.closed_by == "pressure":
        console.print(
            "this trace was closed by its partition's budget, perhaps within a fragment: no record says at which "
            "span, so a difference there proves nothing"
        )


def _span_of(offsets: tuple[int, ...]) -> str:
    return f"@{min(offsets)} to @{max(offsets)}" if offsets else "(none listed)"


def _write(explanation: Explanation) -> None:
    whole = {
        "same": explanation.same,
        "seal": explanation.seal,
        "changed_fragments": explanation.changed,
        "unlisted_fragments": explanation.unlisted,
        "differences": explanation.differences,
        "record": explanation.record,
    }
    sys.stdout.buffer.write(encode_json(whole) + b"\n")
