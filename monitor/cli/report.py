"""What a replay found, for a person at a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.alerting.board import PagingConfig, channel_of
from monitor.alerting.content import PageConfig
from monitor.cli.tree import printable
from monitor.drift.report import DriftReport, MixReport
from monitor.model import DeadLetter, Incident, Source, Verdict
from monitor.replay.runner import Summary

PIPE_WIDTH: Final = 200
EXAMPLES: Final = 3  # dead letters of a reason that are shown
PAGE_ALL: Final = ("*",)
SHOWN: Final = 40  # rows of a table; the rest is counted, and `--json` has them all
SEVERITY_STYLE: Final = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


def report_console() -> Console:
    """The terminal, or for a file or pipe one wide enough that no column is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


class Report:
    """Collects records, bounded: the last revision of each incident, counts of everything else.

    ``files``: those of the run, to name the lines of dead letters by. ``page_scorers``: MONITOR_PAGE_SCORERS.
    """

    def __init__(
        self, files: Sequence[Path] = (), page_scorers: tuple[str, ...] = PAGE_ALL
    ) -> None:
        self._files = files
        self._paging = PagingConfig(PageConfig(""), scorers=page_scorers)
        self._incidents: dict[str, Incident] = {}
        self._traces = 0
        self._verdicts: Counter[tuple[str, str]] = Counter()
        self._rejected: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}
        self._drift: dict[tuple[str, str, str, str, str], DriftReport] = {}
        self._mix: dict[tuple[str, str, str, str], MixReport] = {}

    def add(self, record: object) -> None:
        match record:
            case Incident():
                self._incidents[record.incident_id] = record
            case Verdict():
                self._verdicts[record.closed_by, record.forensics.status] += 1
                self._traces += record.revision == 1
            case DeadLetter():
                self._rejected[record.reason] += 1
                examples = self._examples.setdefault(record.reason, [])
                if len(examples) < EXAMPLES:
                    examples.append(f"{self._where(record.source)} {record.detail}")
            case DriftReport():
                key = (record.service, record.scorer, record.role, record.reference, record.current)
                self._drift[key] = record
            case MixReport():
                self._mix[record.service, record.scorer, record.reference, record.current] = record

    def print(self, console: Console, summary: Summary) -> None:
        console.print(Text(self.headline(), "bold"))
        counted = (
            (summary.lines, "line"),
            (summary.spans, "span"),
            (summary.verdicts, "verdict"),
            (len(self._incidents), "incident"),
            (summary.dead_letters, "dead letter"),
        )
        console.print(", ".join(_count(number, what) for number, what in counted if number))
        for warning in warnings(summary):
            console.print(Text(warning, "yellow"))
        for table in (
            self._incident_table(),
            self._verdict_table(),
            self._drift_table(),
            self._mix_table(),
        ):
            if table.row_count:
                console.print(table)
        if self._rejected:
            table = _table("dead letters", "reason", "count", "the first of them")
            for reason, count in self._rejected.most_common():
                first = printable_lines(self._examples[reason])
                table.add_row(reason, f"{count:,}", Text(first))
            console.print(table)

    def headline(self) -> str:
        """What would have woken somebody: incidents as they stand at the end, and the alerts that they come in."""
        pages: Counter[str] = Counter()
        groups = set()
        for incident in self._incidents.values():
            if channel_of(incident, self._paging, now_ms=0) == "shadow":
                pages["shadow"] += 1
                continue
            pages[incident.severity] += 1
            if incident.severity == "critical":
                groups.add((incident.service, incident.reason, incident.policy))
        said = _count(pages["critical"], "page") + " (critical)"
        if len(groups) < pages["critical"]:
            said += f" in {_count(len(groups), 'alert')} by service, reason and policy"
        said += f", {_count(pages['warning'], 'warning')} in {_count(self._traces, 'trace')}"
        if pages["shadow"]:
            said += (
                f"; {_count(pages['shadow'], 'incident')} in shadow: not of MONITOR_PAGE_SCORERS"
            )
        return said

    def _where(self, source: Source) -> str:
        """``file:line`` of what came out of a line, Kafka coordinates of what was captured with its own."""
        place, files = source.partition, self._files
        if place < len(files) and files[place].name == source.topic:
            return f"{files[place]}:{source.offset}"
        return f"{source.topic}[{place}]@{source.offset}"

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
                Text(printable(incident.policy or incident.scorer or "-")),
                Text(printable(incident.service)),
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
            "drift by role (last report)", "service", "scorer", "role", "reference → current", "D", "log E", "decision", "traces", "why"
        )  # fmt: skip
        for report in list(self._drift.values())[:SHOWN]:
            table.add_row(
                Text(printable(report.service)),
                Text(printable(report.scorer)),
                report.role,
                Text(_compared(report)),
                _number(report.d),
                _number(report.log_e),
                Text(report.decision, "bold red" if report.decision == "drift" else ""),
                f"{report.traces.reference:,} / {report.traces.current:,}",
                Text(printable(report.why)),
            )
        return table

    def _mix_table(self) -> Table:
        table = _table(
            "mix of lengths and roles (last report)",
            "service",
            "scorer",
            "reference → current",
            "gate",
            "why",
        )
        for report in list(self._mix.values())[:SHOWN]:
            table.add_row(
                Text(printable(report.service)),
                Text(printable(report.scorer)),
                Text(_compared(report)),
                report.gate,
                Text(printable(report.why)),
            )
        return table


def warnings(summary: Summary) -> list[str]:
    """What is read, and probably not as its sender meant it."""
    said = []
    if summary.unknown_roles:
        most = sorted(summary.unknown_roles.items(), key=lambda item: (-item[1], item[0]))
        named = ", ".join(f"{raw} x{count:,}" for raw, count in most[:SHOWN])
        said.append(
            f"roles not known, their spans are `unknown`: {printable(named)}; known are planner, retrieval, "
            "tool_call, completion"
        )
    if summary.early_spans:
        said.append(
            f"{_count(summary.early_spans, 'span')} before the year 2000: start_unix_nano counts nanoseconds; "
            "multiply seconds by 1,000,000,000 and milliseconds by 1,000,000"
        )
    return said


def printable_lines(texts: Iterable[str]) -> str:
    return "\n".join(map(printable, texts))


def _compared(report: DriftReport | MixReport) -> str:
    if report.comparison == "past":
        return f"{printable(report.current)}: its past → its latest"
    return f"{printable(report.reference)} → {printable(report.current)}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
