"""``monitor``: one command line for the worker, files, topics and settings.

Exit codes: 0 done; 1 done, but what was checked does not hold (a topic differs, the demo's story did not come
out); 2 wrong use or settings; 3 a program is missing on this machine; 4 Kafka cannot be reached or refused;
130 interrupted.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, Final

import typer

from monitor.cli import (
    baseline,
    configuration,
    deadletters,
    demo,
    explain,
    incidents,
    policy,
    replay,
    schema,
    thresholds,
    topics,
    worker,
)
from monitor.cli.kafka import KafkaUnreachable
from monitor.errors import InvalidSettings, MissingProgram, MonitorError, TopicMismatch

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_MISSING_PROGRAM: Final = 3
EXIT_KAFKA: Final = 4
EXIT_INTERRUPTED: Final = 130

app = typer.Typer(
    name="monitor",
    help="Streaming drift and incident monitor for AI-agent traces. Settings are MONITOR_* variables: `monitor config`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("worker")(worker.worker)
app.command("replay")(replay.replay)
app.command("explain")(explain.explain)
app.command("config")(configuration.config)
app.command("schema")(schema.schema)
app.command("demo")(demo.demo)
app.add_typer(incidents.app, name="incidents")
app.add_typer(deadletters.app, name="deadletters")
app.add_typer(baseline.app, name="baseline")
app.add_typer(policy.app, name="policy")
app.add_typer(thresholds.app, name="thresholds")
app.add_typer(topics.app, name="topics")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("agent-trace-monitor"))
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    del show_version


def main() -> None:
    """Entry point: our own errors become a line on stderr and an exit code, never a traceback."""
    try:
        app(standalone_mode=True)
    except MonitorError as error:
        typer.secho(f"monitor: {error}", fg="red", err=True)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def exit_code(error: MonitorError) -> int:
    """The documented exit code of an error."""
    match error:
        case InvalidSettings():
            return EXIT_USAGE
        case MissingProgram():
            return EXIT_MISSING_PROGRAM
        case TopicMismatch() | explain.NotTheSame() | explain.NothingKnown():
            return EXIT_FAILED
        case KafkaUnreachable():
            return EXIT_KAFKA
        case _:
            return EXIT_USAGE
