"""What a replay found, for a person at a terminal."""

from __future__ import annotations

from collections import Counter

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.drift.report import DriftReport, MixReport
from monitor.model import DeadLetter, Incident, Verdict
from monitor.replay.runner import Summary

PIPE_WIDTH = 200
SHOWN = 40  # rows of a table; the rest is counted, and `--json` has them all
SEVERITY_STYLE = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


def report_console() -> Console:
    """The terminal, or for a file or pipe one wide enough that no column is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


class Report:
    """Collects records, bounded: the last revision of each incident, counts of everything else."""

    def __init__(self) -> None:
        self._incidents: dict[str, Incident] = {}
        self._verdicts: Counter[tuple[str, str]] = Counter()
        self._rejected: Counter[str] = Counter()
        self._drift: dict[tuple[str, str, str, str, str], DriftReport] = {}
        self._mix: dict[tuple[str, str, str, str], MixReport] = {}

    def add(self, record: object) -> None:
        match record:
            case Incident():
                self._incidents[record.incident_id] = record
            case Verdict():
                self._verdicts[record.closed_by, record.forensics.status] += 1
            case DeadLetter():
                self._rejected[record.reason] += 1
            case DriftReport():
                key = (record.service, record.scorer, record.role, record.reference, record.current)
                self._drift[key] = record
            case MixReport():
                self._mix[record.service, record.scorer, record.reference, record.current] = record

    def print(self, console: Console, summary: Summary) -> None:
        console.print(
            f"{summary.lines:,} lines, {summary.spans:,} spans, {summary.verdicts:,} verdicts, "
            f"{len(self._incidents):,} incidents, {summary.dead_letters:,} dead letters"
        )
        for table in (
            self._incident_table(),
            self._verdict_table(),
            self._drift_table(),
            self._mix_table(),
        ):
            if table.row_count:
                console.print(table)
        if self._rejected:
            table = _table("dead letters", "reason", "count")
            for reason, count in self._rejected.most_common():
                table.add_row(reason, f"{count:,}")
            console.print(table)

    def print_incidents(self, console: Console) -> None:
        console.print(self._incident_table())

    def _incident_table(self) -> Table:
        table = _table(
            "incidents (last revision)", "severity", "reason", "policy / scorer", "service", "trace", "argmax span", "role",
            "score", "forensics",
        )  # fmt: skip
        ranked = sorted(
            self._incidents.values(),
            key=lambda i: (i.severity != "critical", -(i.max_score or 0.0)),
        )
        for incident in ranked[:SHOWN]:
            table.add_row(
                Text(incident.severity, SEVERITY_STYLE[incident.severity]),
                incident.reason,
                Text(incident.policy or incident.scorer or "-"),
                Text(incident.service),
                incident.trace_id or "-",
                incident.argmax_span_id or "-",
                incident.argmax_role or "-",
                _number(incident.max_score),
                incident.forensics.status,
            )
        if len(ranked) > SHOWN:
            table.caption = f"and {len(ranked) - SHOWN:,} more: --json lists them all"
        return table

    def _verdict_table(self) -> Table:
        table = _table("verdicts", "closed by", "forensics", "count")
        for (closed_by, forensics), count in sorted(self._verdicts.items()):
            table.add_row(closed_by, forensics, f"{count:,}")
        return table

    def _drift_table(self) -> Table:
        table = _table(
            "drift by role (last report)", "service", "scorer", "role", "reference → current", "D", "log E", "decision", "traces"
        )  # fmt: skip
        for report in list(self._drift.values())[:SHOWN]:
            table.add_row(
                Text(report.service),
                Text(report.scorer),
                report.role,
                Text(f"{report.reference} → {report.current}"),
                _number(report.d),
                _number(report.log_e),
                Text(report.decision, "bold red" if report.decision == "drift" else ""),
                f"{report.traces.reference:,} / {report.traces.current:,}",
            )
        return table

    def _mix_table(self) -> Table:
        table = _table(
            "mix of lengths and roles (last report)",
            "service",
            "scorer",
            "reference → current",
            "gate",
        )
        for report in list(self._mix.values())[:SHOWN]:
            table.add_row(
                Text(report.service),
                Text(report.scorer),
                Text(f"{report.reference} → {report.current}"),
                report.gate,
            )
        return table


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
