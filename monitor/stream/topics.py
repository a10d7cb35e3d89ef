"""The topics of the monitor: what each is for, how it is made, and the check that it is as needed.

Input topics belong to others: they are read, never made here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import aiokafka.errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from monitor.errors import TopicMismatch
from monitor.settings import Settings
from monitor.stream import clients

KAFKA_MESSAGE_LIMIT: Final = 1_048_588
"""Bytes: Kafka's default of ``max.message.bytes``, what a topic takes where nobody set it."""

DEADLETTER_MARGIN: Final = 65_536
"""Bytes that reason, detail and coordinates may add to a whole input record in a dead letter."""

BASE64_GROWTH: Final = 4 / 3
"""A dead letter is JSON: its bytes stand there as base64."""

VISIBLE_SECONDS: Final = 15.0
"""A topic just made is known to every broker within this, also on a busy cluster."""

_COMPACT: Final[Mapping[str, str]] = {"cleanup.policy": "compact"}

_SNAPSHOTS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    # A snapshot is garbage once the next is there: small segments let the cleaner come soon.
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.3",
}


class TopicNames:
    """Full names of the monitor's own topics under a prefix (``monitor.`` by default)."""

    def __init__(self, prefix: str = "monitor.") -> None:
        self.fragments = f"{prefix}fragments"
        self.deadletters = f"{prefix}deadletters"
        self.closed_traces = f"{prefix}closed-traces"
        self.assembly_state = f"{prefix}assembly-state"
        self.incidents = f"{prefix}incidents"
        self.verdicts = f"{prefix}verdicts"
        self.score_deltas = f"{prefix}score-deltas"
        self.session_steps = f"{prefix}session-steps"
        self.drift_reports = f"{prefix}drift-reports"
        self.settings = f"{prefix}settings"
        self.gates = f"{prefix}gates"
        self.baselines = f"{prefix}baselines"


@dataclass(frozen=True)
class TopicSpec:
    """``needed`` are the configurations without which the monitor is wrong, not only differently sized."""

    name: str
    partitions: int
    configs: Mapping[str, str]
    needed: Mapping[str, str] = field(default_factory=dict)


def specs(settings: Settings, *, largest_input: int = KAFKA_MESSAGE_LIMIT) -> tuple[TopicSpec, ...]:
    """All topics of the monitor but Faust's changelogs. ``largest_input``: bytes, of any input topic."""
    names = TopicNames(settings.topic_prefix)
    partitions = settings.partitions
    dead_letter = int(largest_input * BASE64_GROWTH) + DEADLETTER_MARGIN

    def delete(name: str, keep: timedelta, **configs: str) -> TopicSpec:
        return TopicSpec(
            name,
            partitions,
            {
                "cleanup.policy": "delete",
                "retention.ms": str(int(keep.total_seconds() * 1000)),
                **{key.replace("_", "."): value for key, value in configs.items()},
            },
            needed={"cleanup.policy": "delete"},
        )

    def compact(name: str, configs: Mapping[str, str] = _COMPACT) -> TopicSpec:
        return TopicSpec(name, partitions, configs, needed=_COMPACT)

    fragments = delete(
        names.fragments, settings.fragments_retention, message_timestamp_type="LogAppendTime"
    )
    return (
        # The fold's time is the broker's append time; a producer's clock must not move it.
        TopicSpec(
            fragments.name,
            partitions,
            fragments.configs,
            needed={**fragments.needed, "message.timestamp.type": "LogAppendTime"},
        ),
        # As long as the offsets of a stopped group live by default (offsets.retention.minutes).
        delete(names.closed_traces, timedelta(days=7)),
        compact(names.assembly_state, _SNAPSHOTS),
        delete(names.incidents, timedelta(days=30)),
        delete(names.verdicts, timedelta(days=7)),
        delete(names.score_deltas, timedelta(hours=24)),
        delete(names.session_steps, timedelta(hours=24)),
        delete(names.drift_reports, timedelta(days=30)),
        compact(names.settings),
        compact(names.gates),
        compact(names.baselines),
        delete(
            names.deadletters, settings.deadletter_retention, max_message_bytes=str(dead_letter)
        ),
    )


@dataclass(frozen=True)
class CreateReport:
    made: tuple[str, ...]
    there: tuple[str, ...]


async def create(admin: AIOKafkaAdminClient, wanted: Iterable[TopicSpec]) -> CreateReport:
    """Make what is missing, leave alone what is there. Raises TopicMismatch with every refusal."""
    known = set(await admin.list_topics())
    wanted = tuple(wanted)
    missing = [spec for spec in wanted if spec.name not in known]
    made: list[str] = []
    refused: list[str] = []
    if missing:
        # An (empty) replica assignment is aiokafka's way to let the cluster choose the replication.
        response = await admin.create_topics(
            [
                NewTopic(
                    spec.name,
                    spec.partitions,
                    -1,
                    replica_assignments={},
                    topic_configs=dict(spec.configs),
                )
                for spec in missing
            ]
        )
        for topic, code, *message in response.topic_errors:
            error = aiokafka.errors.for_code(code)
            if error is aiokafka.errors.NoError:
                made.append(topic)
            elif error is not aiokafka.errors.TopicAlreadyExistsError:  # another worker was first
                refused.append(f"topic {topic}: not created: {error.__name__} {message or ''}")
    if refused:
        raise TopicMismatch("\n".join(refused))
    return CreateReport(tuple(made), tuple(spec.name for spec in wanted if spec.name in known))


MISSING: Final = "missing; run `monitor topics create`"


async def check(admin: AIOKafkaAdminClient, wanted: Iterable[TopicSpec]) -> list[str]:
    """What differs from what is needed, also in topics made by others: a line for each fault, with all topics that have
    it. Empty: all is well."""
    return grouped(await differences(admin, wanted))


def grouped(faults: Iterable[tuple[str, str]]) -> list[str]:
    """(topic, fault) pairs -> a line for each fault; ``{topic}`` in a fault becomes the name, where there is but one."""
    topics: dict[str, list[str]] = {}
    for topic, fault in faults:
        topics.setdefault(fault, []).append(topic)
    return [
        f"topic {names[0]}: {fault.replace('{topic}', names[0])}"
        if len(names) == 1
        else f"{len(names)} topics: {fault.replace('{topic}', 'TOPIC')} ({', '.join(names)})"
        for fault, names in topics.items()
    ]


async def differences(
    admin: AIOKafkaAdminClient, wanted: Iterable[TopicSpec]
) -> list[tuple[str, str]]:
    """(topic, fault) pairs: what differs from what is needed."""
    wanted = tuple(wanted)
    known = set(await admin.list_topics())
    there = [spec.name for spec in wanted if spec.name in known]
    counts = await partition_counts(admin, there)
    configs = await topic_configs(admin, there)
    faults: list[tuple[str, str]] = []
    for spec in wanted:
        # A broker that has not heard of a topic just made answers without its partitions or configurations.
        count, have = counts.get(spec.name), configs.get(spec.name)
        if count is None or not have:
            faults.append((spec.name, MISSING))
        else:
            faults += [(spec.name, fault) for fault in _faults(spec, count, have)]
    return faults


def _faults(spec: TopicSpec, count: int, have: Mapping[str, str]) -> Iterator[str]:
    if count != spec.partitions:
        yield (
            f"has {count} partitions, MONITOR_PARTITIONS is {spec.partitions}; "
            "the count cannot change under existing state: set MONITOR_PARTITIONS to it, or begin anew "
            "under another MONITOR_TOPIC_PREFIX and MONITOR_GROUP"
        )
    for key, value in spec.needed.items():
        if value not in have.get(key, "").split(","):
            yield (
                f"{key} is {have.get(key)!r}, needed is {value!r}; "
                f"run kafka-configs --alter --topic {{topic}} --add-config {key}={value}"
            )
    limit = int(have.get("max.message.bytes", KAFKA_MESSAGE_LIMIT))
    needed = int(spec.configs.get("max.message.bytes", KAFKA_MESSAGE_LIMIT))
    if limit < needed:
        yield f"max.message.bytes is {limit}, needed are {needed}"


async def missing_inputs(admin: AIOKafkaAdminClient, names: Iterable[str]) -> str | None:
    """A note on the input topics that are not there, or None. No fault: their senders make them, a worker waits."""
    names = list(names)
    there = await partition_counts(admin, names)
    missing = [name for name in names if name not in there]
    if not missing:
        return None
    return (
        f"of MONITOR_INPUTS not there (or not shown to this user): {', '.join(missing)}; input topics belong to their "
        "senders and are not made here: a worker waits for them"
    )


async def ensure(admin: AIOKafkaAdminClient, wanted: Iterable[TopicSpec]) -> None:
    """Create and check: what a worker does at its start. Raises TopicMismatch with every fault."""
    wanted = tuple(wanted)
    await create(admin, wanted)
    deadline = time.monotonic() + VISIBLE_SECONDS
    while faults := await differences(admin, wanted):
        # The controller has made them; the broker that we ask may not have heard of it yet.
        if time.monotonic() > deadline or not any(fault is MISSING for _, fault in faults):
            raise TopicMismatch("\n".join(grouped(faults)))
        await asyncio.sleep(0.2)


async def partition_count(settings: Settings, topic: str, advice: str) -> int:
    """Of a topic that must be there. Raises TopicMismatch, which ends with ``advice``."""
    async with clients.admin(settings) as admin:
        counts = await partition_counts(admin, [topic])
    if topic not in counts:
        raise TopicMismatch(
            f"topic {topic}: not on {', '.join(settings.bootstrap_servers)}; {advice}"
        )
    return counts[topic]


async def partition_counts(admin: AIOKafkaAdminClient, names: Iterable[str]) -> dict[str, int]:
    """Topic -> partitions; a topic that is not there is left out."""
    names = list(names)
    if not names:
        return {}
    described = await admin.describe_topics(names)
    return {
        topic["topic"]: len(topic["partitions"])
        for topic in described
        if not topic["error_code"] and topic["partitions"]
    }


async def topic_configs(
    admin: AIOKafkaAdminClient, names: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Topic -> its effective configuration."""
    names = list(names)
    if not names:
        return {}
    found: dict[str, dict[str, str]] = {}
    answers = await admin.describe_configs(
        [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    )
    for answer in answers:
        for resource in answer.resources:
            found[resource[3]] = {entry[0]: entry[1] for entry in resource[4]}
    return found


async def largest_input(admin: AIOKafkaAdminClient, names: Iterable[str]) -> int:
    """Bytes: the largest ``max.message.bytes`` of the input topics that exist."""
    there = await partition_counts(admin, names)
    configs: dict[str, Any] = await topic_configs(admin, there)
    return max(
        (int(found.get("max.message.bytes", KAFKA_MESSAGE_LIMIT)) for found in configs.values()),
        default=KAFKA_MESSAGE_LIMIT,
    )
