"""``monitor schema``: JSON Schemas of the public formats, generated from the code that reads and writes them."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import msgspec
import typer

from monitor.codec import encode_json
from monitor.drift.report import DriftReport, MixReport
from monitor.intake.native import NativeScore, NativeSpan
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
    made = msgspec.json.schema(SCHEMAS[name])
    if name == "span":
        _tell_what_intake_asks(made["$defs"])
    sys.stdout.buffer.write(msgspec.json.format(encode_json(made), indent=2) + b"\n")


def _tell_what_intake_asks(types: dict[str, Any]) -> None:
    """What the decoder's types leave open, since a broken field must cost its item alone and not the message."""
    span, score = types[NativeSpan.__name__], types[NativeScore.__name__]
    span["additionalProperties"] = True  # they count as attributes
    span["required"] = ["trace_id", "span_id"]
    properties = span["properties"]
    properties["trace_id"] = _hex_id(32)
    properties["span_id"] = _hex_id(16)
    properties["parent_span_id"] = {
        "anyOf": [
            {"type": "null"},
            {"const": ""},
            {"type": "string", "pattern": "^[0-9A-Fa-f]{16}$"},
        ]
    }
    score["properties"]["value"] = {
        "type": "number",
        "description": "0 safe, 1 violates; a scorer of another range or direction stands in the MONITOR_SCORERS file",
    }


def _hex_id(digits: int) -> dict[str, Any]:
    zeros = {"pattern": f"^0{{{digits}}}$"}
    return {"type": "string", "pattern": f"^[0-9A-Fa-f]{{{digits}}}$", "not": zeros}
