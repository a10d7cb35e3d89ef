"""``monitor demo``: see an incident in a minute."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.console import Console

EXIT_NOT_SHOWN: Final = 1


def demo(
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Leave everything running at the end, and say where; Ctrl-C ends it."
        ),
    ] = False,
) -> None:
    """Feed the three observations of the founding text to a real broker, and show what pages and what does not.

    Exit code 0 only if every claim was seen in the monitor's own output; 3 if Alertmanager or Java is missing.
    """
    from monitor.demo.run import run  # scipy.stats and the clients: not for `monitor --help`

    if not run(Console(), keep=keep):
        raise typer.Exit(EXIT_NOT_SHOWN)
