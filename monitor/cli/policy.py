"""``monitor policy``: which policies are in force, and what a file of them does on recorded traces."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.cli.replay import EMPTY, EXIT_NOTHING_READ, NOTHING_READ, settings_for_files
from monitor.cli.report import SEVERITY_STYLE, SHOWN, report_console
from monitor.cli.tree import printable
from monitor.codec import encode_json
from monitor.errors import InvalidSettings
from monitor.policy.load import load_policies
from monitor.policy.nearly import Near
from monitor.policy.rules import Finding, Policy, Step
from monitor.replay.policies import Tried, try_policies
from monitor.replay.runner import Summary

app = typer.Typer(
    help="Composition policies: those in force, and a file of them tried on recorded traces.",
    no_args_is_help=True,
)

_BUILTIN: Final = "built-in"


@app.command("list")
def list_policies(
    json: Annotated[
        bool, typer.Option("--json", help="Whole policies, one a line, instead of a table.")
    ] = False,
) -> None:
    """The policies in force: the built-in ones, or those of MONITOR_POLICIES, which replace them whole."""
    settings = settings_for_files()
    policies = settings.fold_settings().policies
    if json:
        for policy in policies:
            _write(policy)
        return
    source = _BUILTIN if settings.policies is None else str(settings.policies)
    table = Table(
        "policy", "class", "severity", "what it looks for", box=None, padding=(0, 2, 0, 0)
    )
    for policy in policies:
        table.add_row(
            Text(printable(policy.name)),
            Text(printable(policy.policy_class)),
            Text(policy.severity, SEVERITY_STYLE[policy.severity]),
            Text(printable(_in_words(policy))),
        )
    table.caption = f"{len(policies)} policies, {source}"
    report_console().print(table)


@app.command("test")
def try_on_files(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML, as for MONITOR_POLICIES.")],
    data: Annotated[
        list[Path],
        typer.Argument(
            metavar="DATA…",
            help="JSON lines: native spans or captured Kafka messages, as they are or gzipped.",
        ),
    ],
    json: Annotated[
        bool, typer.Option("--json", help="One JSON record a trace, and a summary.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=0, help="Matches and near ones that are listed.")
    ] = SHOWN,
) -> None:
    """What a policy file matches, what it nearly matches, and what that lacks.

    A trace is near if it would match with one requirement less: one step's score, tag or role, the flow of a value,
    or the order. Thresholds, scorers and conventions are the MONITOR_* settings. Exit code 1 if nothing of DATA could
    be read, 2 if FILE is wrong.
    """
    policies = read_policies(file)
    settings = settings_for_files()
    summary = Summary()
    tried = try_policies(
        data, policies, settings.intake_config(), settings.fold_settings(), summary
    )
    if json:
        for one in tried:
            _write(one)
        _write(summary)
    else:
        print_tried(list(tried), policies, report_console(), limit)
    if not summary.lines or summary.nothing_read:
        typer.secho(f"monitor: {NOTHING_READ if summary.lines else EMPTY}", fg="red", err=True)
        raise typer.Exit(EXIT_NOTHING_READ)


def read_policies(path: Path) -> tuple[Policy, ...]:
    """Raises InvalidSettings, naming the file and every fault."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InvalidSettings(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(
            f"{path}: is not UTF-8 ({error.reason} at byte {error.start}); policies are TOML"
        ) from error
    policies = load_policies(text, source=str(path))
    if not policies:
        raise InvalidSettings(
            f"{path}: no [[policy]] in it; `monitor policy list` shows the built-in ones"
        )
    return policies


def print_tried(
    tried: list[Tried], policies: Iterable[Policy], console: Console, limit: int
) -> None:
    """A table of the policies, then the matches, then the near ones, closest first."""
    rejected = sum(one.forensics == "rejected" for one in tried)
    table = Table(
        "policy", "proven", "undecidable", "nearly", "of these for want of", "a step has no span",
        box=None, padding=(0, 2, 0, 0),
    )  # fmt: skip
    for policy in policies:
        found = [f for one in tried for f in one.findings if f.policy == policy.name]
        near = [one.near for one in tried if any(n.policy == policy.name for n in one.near)]
        wants = Counter(
            f"{n.step} {n.want}".strip() for each in near for n in each if n.policy == policy.name
        )
        absent = Counter(s for one in tried for s in one.absent.get(policy.name, ()))
        table.add_row(
            Text(printable(policy.name)),
            str(sum(not f.undecidable for f in found)),
            str(sum(f.undecidable for f in found)),
            str(len(near)),
            Text(printable(_counts(wants))),
            Text(printable(_counts(absent))),
        )
    console.print(table)
    console.print(f"{len(tried):,} traces", highlight=False)
    if rejected:
        console.print(
            f"{rejected:,} of them have a rejected identity: no policy is matched, they are `identity` incidents",
            style="yellow", highlight=False,
        )  # fmt: skip
    matches = [(one, finding) for one in tried for finding in one.findings]
    _list("matches", [_match_line(*pair) for pair in matches], console, limit)
    near_ones = sorted(
        ((n.shortfall, one.trace_id, n) for one in tried for n in one.near), key=lambda x: x[:2]
    )
    _list("nearly", [_near_line(trace_id, n) for _, trace_id, n in near_ones], console, limit)


def _list(title: str, lines: list[Text], console: Console, limit: int) -> None:
    if not lines:
        return
    console.print(Text(f"\n{title}", "bold"))
    for line in lines[:limit]:
        console.print(line, soft_wrap=True, highlight=False)
    if len(lines) > limit:
        console.print(
            f"and {len(lines) - limit:,} more: --limit or --json shows them", highlight=False
        )


def _match_line(one: Tried, finding: Finding) -> Text:
    return Text.assemble(
        (finding.severity, SEVERITY_STYLE[finding.severity]),
        printable(f" {one.trace_id} {finding.policy}: {finding.why}"),
    )


def _near_line(trace_id: str, near: Near) -> Text:
    return Text(printable(f"{trace_id} {near.policy}, for want of {near.want}: {near.why}"))


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{what} {count:,}" for what, count in counted.most_common()) or "-"


def _in_words(policy: Policy) -> str:
    if policy.rise is not None:
        rise = policy.rise
        return (
            f"{rise.length} rising scores of {'/'.join(rise.roles)}, each below its threshold, then "
            f"{'/'.join(rise.then_roles)}"
        )
    return " → ".join(_step_in_words(step) for step in policy.steps)


def _step_in_words(step: Step) -> str:
    said = "/".join(step.tags or step.roles) or "any"
    score = f" ≥ {step.min_score:g}" if step.min_score else ""
    flow = f", flow from {'/'.join(step.flow_from)}" if step.flow_from else ""
    but = f", not {'/'.join(step.not_tags)}" if step.not_tags else ""
    return f"{step.name} ({said}{but}{score}{flow})"


def _write(record: Policy | Tried | Summary) -> None:
    sys.stdout.buffer.write(encode_json(record) + b"\n")
