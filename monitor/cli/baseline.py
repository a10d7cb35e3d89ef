"""``monitor baseline``: which model version the others are held against, and who said so, when and why."""

from __future__ import annotations

import getpass
import sys
import time
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import msgspec
import typer
from aiokafka.structs import TopicPartition
from rich import box
from rich.table import Table

from monitor.cli.explain import NothingKnown
from monitor.cli.kafka import committed_records, on_kafka
from monitor.cli.report import report_console
from monitor.cli.tree import printable
from monitor.codec import encode_json
from monitor.drift.messages import BaselineControl, encode_message
from monitor.drift.report import BaselineRecord
from monitor.settings import Settings
from monitor.stream import clients
from monitor.stream.placement import partition_of
from monitor.stream.topics import TopicNames, partition_count

app = typer.Typer(
    help="The version that others are held against: pin or promote one, list and show what holds.",
    no_args_is_help=True,
)

# A name or a reason is a line that a person types; a control message must stay far below the broker's limit.
MAX_TEXT: Final = 1000

Service = Annotated[str, typer.Argument(help="Service, as drift reports name it.")]
Scorer = Annotated[str, typer.Argument(help="Scorer, as drift reports name it.")]
Why = Annotated[str, typer.Option("--why", help="The reason; kept for audit.")]
Who = Annotated[
    str | None,
    typer.Option("--who", help="Who decides this; the user of this machine if not given."),
]


@app.command("pin")
def pin(
    service: Service,
    scorer: Scorer,
    model_version: Annotated[str, typer.Argument(help="Model version that becomes the reference.")],
    why: Why,
    who: Who = None,
) -> None:
    """Make a model version the reference. A drift that was latched opens again."""
    _send(service, scorer, "pin", model_version, who, why)


@app.command("promote")
def promote(
    service: Service,
    scorer: Scorer,
    why: Why,
    model_version: Annotated[
        str | None, typer.Argument(help="If not given, the version that was seen last.")
    ] = None,
    who: Who = None,
) -> None:
    """Make the current model version the reference: it was rolled out and is as wanted."""
    _send(service, scorer, "promote", model_version, who, why)


@app.command("list")
def list_baselines(
    json: Annotated[bool, typer.Option("--json", help="One JSON record a line.")] = False,
) -> None:
    """The last control of each (service, scorer), as the drift agent applied or refused it."""
    records = _records()
    if json:
        for record in records:
            sys.stdout.buffer.write(encode_json(record) + b"\n")
        return
    if not records:
        typer.echo(
            "nothing was pinned or promoted: each reference is the first version with enough traces"
        )
        return
    columns = ("service", "scorer", "asked for", "version", "held", "who", "when", "why")
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for r in records:
        held = "yes" if r.applied else "no"
        shown = (
            r.service,
            r.scorer,
            r.action,
            r.model_version or "-",
            held,
            r.who,
            _date(r),
            r.why,
        )
        table.add_row(*map(printable, shown))
    report_console().print(table)


@app.command("show")
def show(
    service: Service,
    scorer: Scorer,
    json: Annotated[bool, typer.Option("--json", help="The record as JSON.")] = False,
) -> None:
    """The last control of one (service, scorer). Exit 1 if there is none."""
    found = [r for r in _records() if (r.service, r.scorer) == (service, scorer)]
    if not found:
        raise NothingKnown(
            f"nothing was pinned or promoted for service {printable(service)}, scorer {printable(scorer)}; "
            "`monitor baseline list` names those that were"
        )
    if json:
        sys.stdout.buffer.write(encode_json(found[-1]) + b"\n")
        return
    r = found[-1]
    lines = {
        "asked for": f"{r.action} {r.model_version or '(the current version)'}",
        "outcome": f"{'applied' if r.applied else 'not applied'}: {r.detail}",
        "before": r.previous or "-",
        "scorer versions": ", ".join(r.scorer_versions) or "-",
        "who": r.who,
        "when": _date(r),
        "why": r.why or "-",
        "score-deltas offset": str(r.source_offset),
    }
    for name, value in lines.items():
        typer.echo(f"{name:20}{printable(value)}")


def _send(
    service: str,
    scorer: str,
    action: Literal["pin", "promote"],
    model_version: str | None,
    who: str | None,
    why: str,
) -> None:
    given = {
        "SERVICE": service,
        "SCORER": scorer,
        "MODEL_VERSION": model_version or "",
        "--why": why,
    }
    given["--who"] = who = _user() if who is None else who
    for name, text in given.items():
        if len(text) > MAX_TEXT:
            raise typer.BadParameter(f"{name} has {len(text)} characters; at most {MAX_TEXT}")
    now_ms = time.time_ns() // 1_000_000
    control = BaselineControl(service, scorer, action, model_version, who, now_ms, why)
    settings = Settings.load()
    place, offset = on_kafka(_sent(settings, control), settings)
    typer.echo(
        f"sent to {place.topic}/{place.partition} at offset {offset}; what became of it: "
        f"monitor baseline show {printable(service)} {printable(scorer)}"
    )


async def _sent(settings: Settings, control: BaselineControl) -> tuple[TopicPartition, int]:
    topic = TopicNames(settings.topic_prefix).score_deltas
    count = await partition_count(settings, topic, "`monitor topics check` lists ours")
    # where the fold puts this key's deltas: a control takes effect at one offset among them
    place = TopicPartition(topic, partition_of(control.key.decode(), count))
    async with clients.plain_producer(settings, "baseline") as producer:
        sent = await producer.send_and_wait(
            place.topic, encode_message(control), key=control.key, partition=place.partition
        )
    return place, sent.offset


def _records() -> list[BaselineRecord]:
    settings = Settings.load()
    topic = TopicNames(settings.topic_prefix).baselines

    async def read() -> list[BaselineRecord]:
        latest: dict[bytes, BaselineRecord] = {}
        async for record in committed_records(settings, topic):
            if record.key is not None and record.value:
                latest[record.key] = msgspec.json.decode(record.value, type=BaselineRecord)
        return [latest[key] for key in sorted(latest)]

    return on_kafka(read(), settings)


def _date(record: BaselineRecord) -> str:
    return datetime.fromtimestamp(record.at_ms / 1000, UTC).isoformat(timespec="seconds")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise typer.BadParameter("this user has no name; give one with --who") from error
