"""The reference page of what intake reads and refuses, made from its tables."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from monitor.intake.conventions import JUDGED, ROWS, SCORE_EVENTS, SOURCES, Field, Row
from monitor.intake.reasons import REASONS

_HEAD: Final = """\
# Conventions

Which attribute says what, for every instrumentation that the monitor knows. Rows of one field are in order of
precedence: the first that a span has is believed. Rows of `MONITOR_CONVENTIONS` come before all of them
([how](../scores-and-conventions.md)). `#` stands for a number, `*` for one or more characters. What no row names is
hashed and never read.

Where a convention is written down:

| convention | source |
|---|---|
"""

_MEANINGS: Final[dict[Field, str]] = {
    "role": "Role, in our own words: planner, retrieval, tool_call, completion; evaluator, guardrail",
    "unit": "What kind of unit the span is",
    "sign": "The same, where no attribute above is there at all",
    "own_model": "The agent's model version, on whatever span",
    "model": "Model version that answered (of model calls, agents, tools)",
    "model_alias": "Model that was asked for; marked as an alias where nothing above is there",
    "agent": "Agent; else of an agent span its entity, else its name",
    "entity": "Name of the tool of a tool span, of the agent of an agent span",
    "session": "Session or conversation",
    "tool_name": "Tool; else of a tool span its entity, else its name",
    "tool_type": "Type of tool; `datastore` is retrieval",
    "tool_call_id": "Tool-call id of a tool span",
    "call_id": "Tool-call ids that a model asked for; those in its output are found, too",
    "tags": "Tags beside those of the tool's name",
    "arguments": "Arguments of a tool",
    "result": "Result of a tool or retrieval",
    "result_part": "The same, flattened",
    "records": "Result of a retrieval, arguments of a tool that writes them",
    "input": "What the span was given: arguments of a tool, messages of a model or agent",
    "input_part": "The same, flattened",
    "output": "What the span gave",
    "tool_request": "A model asked for a tool",
    "finish": "Why a model stopped; asking for a tool is a planner's",
    "genai": "Makes a span one of an agent, without saying which",
    "score": "Score of the span; the scorer is what `*` stands for, else the attribute",
    "score_label": "Its label, where there is no value",
    "annotation": "Feedback on the span, flattened: name, score, label; identifier counts as the scorer's version",
    "wider_score": "Score of a trace or session: refused, never spread over spans",
    "evaluation_name": "Scorer of an evaluation",
    "evaluation_value": "Its value",
    "evaluation_label": "Its label, where there is no value",
    "evaluation_version": "The scorer's version",
    "risk_name": "Scorer of a guardrail's risk score",
    "risk_value": "Its value",
    "judge_score": "Score of an evaluator or guardrail span; the scorer is the span's name",
    "judged": "Whether input or output was judged",
    "judged_part": "Of which kind of call",
    "target_trace": "Trace of the judged span",
    "target_span": "The judged span",
    "target_role": "Its role",
}
_REASONS_HEAD: Final = """
## Reasons of dead letters

| reason | what to do |
|---|---|
"""


def reference_markdown() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD, *(f"| {name} | {where} |\n" for name, where in SOURCES.items())]
    order = list(_MEANINGS)
    rows = sorted(ROWS, key=lambda row: order.index(row.field))
    for field, of_field in groupby(rows, key=lambda row: row.field):
        parts.append(f"\n## `{field}`\n\n{_MEANINGS[field]}.\n\n")
        parts += ["| attribute | convention |", " values |" if _maps(field) else "", "\n|---|---|"]
        parts += ["---|" if _maps(field) else "", "\n"]
        parts += [_line(row) for row in of_field]
    parts.append("\n## What was judged\n\nValues of `judged`. ")
    parts.append(
        "Of a tool or retrieval span the result counts as retrieval, the arguments as tool_call.\n\n"
    )
    parts.append("| value | judged | role of the unit |\n|---|---|---|\n")
    parts += [
        f"| `{word}` | {unit} | {role or 'the span’s'} |\n" for word, (unit, role) in JUDGED.items()
    ]
    events = ", ".join(f"`{name}`" for name in sorted(SCORE_EVENTS))
    parts.append(f"\nEvents that hold scores: {events}.\n")
    parts += [_REASONS_HEAD, *(f"| `{reason}` | {what} |\n" for reason, what in REASONS.items())]
    return "".join(parts)


def _maps(field: Field) -> bool:
    return field in ("unit", "sign")


def _line(row: Row) -> str:
    if not row.units:
        return f"| `{row.attribute}` | {row.source} |\n"
    by_unit: dict[str, list[str]] = {}
    for value, unit in row.units.items():
        by_unit.setdefault(unit, []).append("any" if value == "*" else f"`{value}`")
    values = "; ".join(f"{', '.join(values)} → {unit}" for unit, values in by_unit.items())
    return f"| `{row.attribute}` | {row.source} | {values} |\n"
