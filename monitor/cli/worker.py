"""``monitor worker``: the process that runs in production."""

from __future__ import annotations

import typer

from monitor.settings import Settings


def worker() -> None:
    """Run the stages of MONITOR_STAGES until SIGTERM. More workers of the same group share the work."""
    from monitor.stream.worker import run_worker  # imports Faust: not for `monitor --help`

    settings = Settings.load()
    settings.require_worker()
    raise typer.Exit(run_worker(settings))
