"""``monitor topics``: the monitor's own topics on a cluster."""

from __future__ import annotations

import base64
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar, cast

import typer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import ConsumerRecord
from pydantic import TypeAdapter

from monitor.cli.kafka import committed_records, on_kafka
from monitor.codec import encode_json
from monitor.errors import TopicMismatch
from monitor.settings import Settings
from monitor.settings.values import Start
from monitor.stream import clients, reset
from monitor.stream.tables import changelog_specs
from monitor.stream.topics import TopicSpec, largest_input, specs
from monitor.stream.topics import check as check_topics
from monitor.stream.topics import create as create_topics

T = TypeVar("T")

app = typer.Typer(help="The monitor's own topics: make, check, dump, cure.", no_args_is_help=True)

StartAt: Final[TypeAdapter[str | datetime]] = TypeAdapter(cast(Any, Start))
TIMESTAMP_TYPES: Final = {0: "CreateTime", 1: "LogAppendTime"}


@app.command("create")
def create() -> None:
    """Make every topic that is missing, with the settings it needs. What is there is left alone."""

    async def run(settings: Settings, admin: AIOKafkaAdminClient) -> None:
        biggest = await largest_input(admin, [item.topic for item in settings.inputs])
        report = await create_topics(admin, _wanted(settings, biggest))
        for name in report.made:
            typer.echo(f"created {name}")
        for name in report.there:
            typer.echo(f"exists  {name}")

    _with_admin(run)


@app.command("check")
def check(
    json: Annotated[bool, typer.Option("--json", help="A JSON array of what differs.")] = False,
) -> None:
    """Compare the cluster's topics with what the monitor needs; also for topics that others made. Exit 1 if they differ."""

    async def run(settings: Settings, admin: AIOKafkaAdminClient) -> list[str]:
        biggest = await largest_input(admin, [item.topic for item in settings.inputs])
        return await check_topics(admin, _wanted(settings, biggest))

    faults = _with_admin(run)
    if json:
        sys.stdout.buffer.write(encode_json(faults) + b"\n")
    elif not faults:
        typer.echo("all topics are as needed")
    if faults:
        raise TopicMismatch("\n".join(faults))


@app.command("reset-partition")
def reset_partition(
    partition: Annotated[
        int, typer.Argument(min=0, help="Partition of the fragments topic, or of --input.")
    ],
    input_topic: Annotated[
        str | None, typer.Option("--input", help="An input topic instead.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="With --input: earliest, latest or a time with its zone."),
    ] = None,
) -> None:
    """Give up the state of a refused partition and go on; the loss is written into the log and pages."""
    settings = Settings.load()
    if (input_topic is None) != (to is None):
        raise typer.BadParameter("--input and --to go together")
    if input_topic is None or to is None:
        done = on_kafka(reset.reset_partition(settings, partition), settings)
        typer.echo(
            f"partition {done.partition} begins anew at offset {done.at}; what was not published of "
            f"[{done.published_to}, {done.at}) is lost, and a critical incident says so"
        )
        return
    try:
        start = StartAt.validate_python(to)
    except ValueError as error:
        raise typer.BadParameter(f"--to {to!r}: {error}") from error
    moved = on_kafka(reset.reset_input(settings, input_topic, partition, start), settings)
    typer.echo(
        f"{moved.topic}[{moved.partition}] goes on at offset {moved.at}, before it was "
        f"{'nowhere' if moved.before is None else moved.before}; records left out: {moved.skipped or 0}"
    )


@app.command("dump")
def dump(
    topic: Annotated[str, typer.Argument(help="Any topic, e.g. monitor.fragments.")],
) -> None:
    """Write a topic's committed records, up to its end now, as JSON lines: input of `monitor replay`."""
    settings = Settings.load()

    async def run() -> None:
        async for record in committed_records(settings, topic):
            sys.stdout.buffer.write(encode_json(_captured(record)) + b"\n")

    on_kafka(run(), settings)


def _wanted(settings: Settings, biggest: int) -> tuple[TopicSpec, ...]:
    """Our own topics and the changelogs of the agents' tables."""
    return (*specs(settings, largest_input=biggest), *changelog_specs(settings))


def _captured(record: ConsumerRecord[bytes, bytes]) -> dict[str, object]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": TIMESTAMP_TYPES.get(record.timestamp_type, "CreateTime"),
        "key_b64": _b64(record.key),
        "value_b64": _b64(record.value),
    }


def _b64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _with_admin(act: Callable[[Settings, AIOKafkaAdminClient], Awaitable[T]]) -> T:
    settings = Settings.load()

    async def run() -> T:
        async with clients.admin(settings) as admin:
            return await act(settings, admin)

    return on_kafka(run(), settings)
