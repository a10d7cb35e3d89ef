"""Reads what a group has committed, offsets and metadata.

aiokafka's consumer drops the metadata, and its admin client takes the error of a coordinator that is just
loading for a group without commits: for us the difference between going on and starting anew.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

import aiokafka.errors
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.protocol.commit import OffsetFetchRequest

RETRY_SECONDS: Final = 10.0
"""A coordinator that is loading or moving answers again within this; a cluster's very first group waits for
the offsets topic to be made."""

_BACKOFF_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Commit:
    offset: int  # of the next record to read
    metadata: str = ""


async def read_commits(client: AIOKafkaClient, group: str) -> dict[TopicPartition, Commit]:
    """All commits of ``group``, as of one moment. Raises KafkaError; an empty answer means: there is none."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            # Callers share the client and with it futures: one that is cancelled must not cancel the others.
            return await asyncio.shield(asyncio.ensure_future(_read(client, group)))
        except aiokafka.errors.KafkaError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_BACKOFF_SECONDS)


async def _read(client: AIOKafkaClient, group: str) -> dict[TopicPartition, Commit]:
    node = await client.coordinator_lookup(CoordinationType.GROUP, group)
    if not await client.ready(node, group=ConnectionGroup.COORDINATION):
        raise aiokafka.errors.NodeNotReadyError(f"coordinator of group {group} (node {node})")
    answer = await client.send(
        node, OffsetFetchRequest(group, None), group=ConnectionGroup.COORDINATION
    )
    if answer.error_code:
        raise aiokafka.errors.for_code(answer.error_code)(f"commits of group {group}")
    commits = {}
    for topic, partitions in answer.topics:
        for partition, offset, metadata, error in partitions:
            if error:
                raise aiokafka.errors.for_code(error)(f"commit of {topic}-{partition}")
            if offset >= 0:
                commits[TopicPartition(topic, partition)] = Commit(offset, metadata or "")
    return commits
