"""``monitor schema``: JSON Schemas of the public formats, generated from the code that reads and writes them."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import msgspec
import typer

from monitor.codec import encode_json
from monitor.drift.report import DriftReport, MixReport
from monitor.intake.native import NativeSpan
from monitor.model import DeadLetter, Incident, Verdict

SCHEMAS: Final[dict[str, type]] = {
    "span": NativeSpan,
    "verdict": Verdict,
    "incident": Incident,
    "dead-letter": DeadLetter,
    "drift": DriftReport,
    "mix": MixReport,
}


def schema(
    name: Annotated[str, typer.Argument(help="One of: " + ", ".join(SCHEMAS))],
) -> None:
    """Print a JSON Schema: `span` is the native input format, the others are what the topics hold."""
    if name not in SCHEMAS:
        raise typer.BadParameter(f"{name!r} is none of: {', '.join(SCHEMAS)}")
    sys.stdout.buffer.write(
        msgspec.json.format(encode_json(msgspec.json.schema(SCHEMAS[name])), indent=2) + b"\n"
    )
