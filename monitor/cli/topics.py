"""``monitor topics``: the monitor's own topics on a cluster."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast

import typer
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import ConsumerRecord
from pydantic import TypeAdapter

from monitor.cli.kafka import committed_records, on_kafka
from monitor.cli.merge import in_time_order
from monitor.codec import encode_json
from monitor.errors import TopicMismatch
from monitor.replay.lines import read
from monitor.settings import Settings
from monitor.settings.values import Start
from monitor.stream import clients, reset
from monitor.stream.tables import changelog_specs
from monitor.stream.topics import (
    KAFKA_MESSAGE_LIMIT,
    TopicSpec,
    largest_input,
    missing_inputs,
    partition_count,
    specs,
)
from monitor.stream.topics import check as check_topics
from monitor.stream.topics import create as create_topics

T = TypeVar("T")

app = typer.Typer(
    help="The monitor's own topics: make, check, dump, cure; and send to an input topic.",
    no_args_is_help=True,
)

SENDERS_TOPIC: Final = "an input topic belongs to its sender: make it first"
StartAt: Final[TypeAdapter[str | datetime]] = TypeAdapter(cast(Any, Start))
SEND_AT_ONCE: Final = 10_000  # messages waiting for their acknowledgement: bounds memory
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
        await _note_inputs(settings, admin)

    _with_admin(run)


@app.command("check")
def check(
    json: Annotated[bool, typer.Option("--json", help="A JSON array of what differs.")] = False,
) -> None:
    """Compare the cluster's topics with what the monitor needs; also for topics that others made. Exit 1 if they differ."""

    async def run(settings: Settings, admin: AIOKafkaAdminClient) -> list[str]:
        biggest = await largest_input(admin, [item.topic for item in settings.inputs])
        await _note_inputs(settings, admin)
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
    topic: Annotated[str, typer.Argument(help="Any topic, e.g. agent-spans or monitor.fragments.")],
) -> None:
    """Write a topic's committed records, up to its end now, as JSON lines: an input topic in order of time.

    `monitor replay` reads those of an input topic of MONITOR_INPUTS, which says their encoding; `monitor replay
    --fragments` those of the fragments topic.
    """
    settings = Settings.load()
    encoding = next((item.encoding for item in settings.inputs if item.topic == topic), None)
    if encoding is None and topic not in _own_names(settings):
        typer.secho(
            f"monitor: MONITOR_INPUTS does not name {topic}: its encoding is left out, and `monitor replay` needs it",
            fg="yellow",
            err=True,
        )

    async def run() -> None:
        records = committed_records(settings, topic)
        if encoding is not None:
            # Our own topics are partitioned by what belongs together; spans of a trace come on any partition.
            records = in_time_order(
                settings, topic, await partition_count(settings, topic, SENDERS_TOPIC)
            )
        async for record in records:
            sys.stdout.buffer.write(encode_json(captured(record, encoding)) + b"\n")

    on_kafka(run(), settings)


@app.command("send")
def send(
    topic: Annotated[str, typer.Argument(help="An input topic, e.g. agent-spans.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="JSON lines: native spans, or captured messages, whose bytes are sent.",
        ),
    ],
) -> None:
    """Send each line of files as one message to an input topic, acknowledged by all replicas: to try the monitor out."""
    settings = Settings.load()
    if topic in _own_names(settings):
        raise typer.BadParameter(f"{topic} is the monitor's own topic: only workers write to it")
    sent = on_kafka(_send(settings, topic, files), settings)
    typer.echo(f"sent {sent:,} messages to {topic}")


async def _send(settings: Settings, topic: str, files: list[Path]) -> int:
    await partition_count(settings, topic, SENDERS_TOPIC)
    sent = 0
    async with AIOKafkaProducer(acks="all", **settings.kafka_client_args()) as producer:
        waiting = []
        for line, _ in read(files):
            waiting.append(await producer.send(topic, line.value))
            if len(waiting) == SEND_AT_ONCE:
                sent += len(await asyncio.gather(*waiting))
                waiting.clear()
        sent += len(await asyncio.gather(*waiting))
    return sent


async def _note_inputs(settings: Settings, admin: AIOKafkaAdminClient) -> None:
    note = await missing_inputs(admin, [item.topic for item in settings.inputs])
    if note is not None:
        typer.secho(f"monitor: {note}", fg="yellow", err=True)


def _own_names(settings: Settings) -> set[str]:
    return {spec.name for spec in _wanted(settings, KAFKA_MESSAGE_LIMIT)}


def _wanted(settings: Settings, biggest: int) -> tuple[TopicSpec, ...]:
    """Our own topics and the changelogs of the agents' tables."""
    return (*specs(settings, largest_input=biggest), *changelog_specs(settings))


def captured(record: ConsumerRecord[bytes, bytes], encoding: str | None) -> dict[str, object]:
    """A record as a line that `monitor replay` reads; ``encoding`` None: of a topic that is no input."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": TIMESTAMP_TYPES.get(record.timestamp_type, "CreateTime"),
        "key_b64": _b64(record.key),
        **({} if encoding is None else {"encoding": encoding}),
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
