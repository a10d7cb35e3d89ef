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
            "--keep",
            help="Leave everything running at the end, and say where and what to try next; Ctrl-C or SIGTERM ends it.",
        ),
    ] = False,
) -> None:
    """Feed three things that happened in a real pipeline to a real broker: what pages, what does not, and why.

    One bad call among 40 good ones; a planner that triples its steps, then a true shift; reused span ids.
    Exit code 0 only if every claim was seen in the monitor's own output; 3 if Alertmanager or Java is missing.
    """
    from monitor.demo.run import run  # scipy.stats and the clients: not for `monitor --help`

    if not run(Console(), keep=keep):
        raise typer.Exit(EXIT_NOT_SHOWN)
