"""``monitor config``: the settings in force."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from monitor.cli.report import report_console
from monitor.cli.tree import printable
from monitor.codec import encode_json
from monitor.settings import Settings
from monitor.settings.environment import ours

UNSET: Final = "(unset)"


def config(
    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object instead of a table; null is unset."),
    ] = False,
) -> None:
    """Print every setting with the value in force, secrets masked, and which of them the environment sets.

    Without a broker. Exit code 2 if the environment is wrong: every fault at once.
    """
    settings = Settings.load()
    effective = settings.effective()
    names = sorted(Settings.variables())
    if json:
        sys.stdout.buffer.write(encode_json({name: effective.get(name) for name in names}) + b"\n")
        return
    given = {name for name, value in ours(os.environ, names).items() if value}
    table = Table("variable", "value", "from", box=None)
    for name in names:
        value = effective.get(name)
        table.add_row(
            name,
            Text(printable(value)) if value else Text(UNSET, "dim"),
            Text("environment", "bold") if name in given else "",
        )
    console = report_console()
    console.print(table)
    memory = settings.partitions * (settings.open_bytes + settings.closed_bytes)
    console.print(
        f"budgets of all {settings.partitions} partitions together: {memory / 1e6:,.0f} MB of memory",
        style="dim",
    )
