"""``monitor config``: the settings in force."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from monitor.codec import encode_json
from monitor.settings import Settings


def config(
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of a table.")
    ] = False,
) -> None:
    """Print the effective settings, secrets masked. Exit code 2 if the environment is wrong: every fault at once."""
    settings = Settings.load()
    values = settings.effective()
    if json:
        sys.stdout.buffer.write(encode_json(values) + b"\n")
        return
    table = Table("variable", "value", box=None)
    for name, value in values.items():
        table.add_row(name, value)
    console = Console()
    console.print(table, markup=False)
    memory = settings.partitions * (settings.open_bytes + settings.closed_bytes)
    console.print(
        f"budgets of all {settings.partitions} partitions together: {memory / 1e6:,.0f} MB of memory",
        style="dim",
    )
