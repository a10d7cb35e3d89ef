"""How every Kafka client of the batch loops is made: one place for the figures and their reasons."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError

from monitor.settings import Settings

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""A dead ingest holds back every reader of fragments for this long plus the broker's cleanup interval."""

SESSION_TIMEOUT_MS: Final = 10_000
"""A killed worker's lanes move after this. More than the longest step that keeps the loop (a slice of records
or one encoded snapshot: well under 1 s), with room for a stalled machine."""

HEARTBEAT_MS: Final = 2_000

REBALANCE_TIMEOUT_MS: Final = 15_000
"""A rebalance waits so long for a member: its lanes stop, abort and close in 3 x 3 s at the worst."""

MAX_POLL_INTERVAL_MS: Final = 24 * 3600 * 1000
"""aiokafka counts a process as idle while all its lanes wait (for a topic, for a commit) and would leave the
group. What protects from a member that is really stuck is the session and the lanes' fences."""

RETRY_BACKOFF_MS: Final = 20
"""Back-to-back offsets-only transactions meet CONCURRENT_TRANSACTIONS and sleep this: p95 105 ms with the
default of 100, 2.3 ms with 20 (measured)."""

METADATA_MAX_AGE_MS: Final = 10_000
"""A missing input topic, or a new partition, is seen after at most this."""

FETCH_BYTES: Final = 4 * 1024 * 1024
"""A partition's share of one fetch: one transaction's worth."""

FETCH_TOTAL_BYTES: Final = 16 * 1024 * 1024
"""Of one answer; with the records being worked on it bounds what a stage holds in memory."""

BATCH_BYTES: Final = 512 * 1024
"""Of one batch to one partition; under Kafka's default message limit (1 MB), which holds for a whole batch.
A record larger than this travels alone."""

RANGE_WAIT_MS: Final = 10
"""A broker answers one request of a connection at a time: whatever a restore asks next waits for the fetch
that stands at the end of the log just read (2 s a restore with the default of 500)."""

FOLLOW_WAIT_MS: Final = 500

LINGER_MS: Final = 5

CHUNK_BYTES: Final = 900_000
"""Of a record of state: with key and headers under Kafka's default message limit."""


def transactional_id(settings: Settings, stage: str, lane: int) -> str:
    """One for each lane of a stage: opening it fences whoever had the lane before."""
    return f"{settings.group}-{stage}-lane-{lane}"


def group_id(settings: Settings, stage: str) -> str:
    """Each stage is a consumer group of its own: its members read other topics."""
    return f"{settings.group}-{stage}"


def lane_producer(
    settings: Settings, stage: str, lane: int, *, max_request: int
) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        **settings.kafka_client_args(),
        client_id=f"{settings.group}-{stage}-{lane}",
        transactional_id=transactional_id(settings, stage, lane),
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        request_timeout_ms=TRANSACTION_TIMEOUT_MS,
        retry_backoff_ms=RETRY_BACKOFF_MS,
        max_batch_size=BATCH_BYTES,
        max_request_size=max_request,
        linger_ms=LINGER_MS,
    )


def plain_producer(settings: Settings, name: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        **settings.kafka_client_args(),
        client_id=f"{settings.group}-{name}",
        enable_idempotence=True,
        retry_backoff_ms=RETRY_BACKOFF_MS,
    )


def stage_consumer(settings: Settings, stage: str, assignor: Any) -> AIOKafkaConsumer:
    """A member of the stage's group. Offsets go with the transactions, never by the consumer."""
    instance = f"{settings.instance}-{stage}" if settings.instance else None
    return AIOKafkaConsumer(
        **settings.kafka_client_args(),
        client_id=f"{settings.group}-{stage}",
        group_id=group_id(settings, stage),
        group_instance_id=instance,
        partition_assignment_strategy=(assignor,),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="none",  # else aiokafka jumps without a word when an offset has left the log
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
        retry_backoff_ms=RETRY_BACKOFF_MS,
        max_partition_fetch_bytes=FETCH_BYTES,
        fetch_max_bytes=FETCH_TOTAL_BYTES,
    )


def why(error: KafkaError, said: Sequence[str]) -> str:
    """Why Kafka cannot be used. ``said``: aiokafka's own lines, which know the cause where its exception names places."""
    if not isinstance(error, KafkaConnectionError) or not said:
        return str(error)
    causes = [line.removeprefix("Unable connect to ").strip() for line in said]
    return "; ".join(f"{cause} no answer" if cause.endswith(":") else cause for cause in causes)


@asynccontextmanager
async def reader(
    settings: Settings,
    *,
    wait_ms: int = RANGE_WAIT_MS,
    fetch_bytes: int = FETCH_BYTES,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
) -> AsyncIterator[AIOKafkaConsumer]:
    """A started consumer without a group, for assigned ranges.

    ``wait_ms``: how long a fetch waits for more at the end of a log. ``fetch_bytes``: of one partition and fetch.
    """
    consumer = AIOKafkaConsumer(
        **settings.kafka_client_args(),
        client_id=f"{settings.group}-reader",
        isolation_level=isolation,
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=wait_ms,
        retry_backoff_ms=RETRY_BACKOFF_MS,
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
        max_partition_fetch_bytes=fetch_bytes,
        fetch_max_bytes=FETCH_TOTAL_BYTES,
    )
    await consumer.start()
    # A consumer stopped before its own tasks took their first step raises CancelledError at its caller.
    await asyncio.sleep(0)
    try:
        yield consumer
    finally:
        await consumer.stop()


@asynccontextmanager
async def admin(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(
        **settings.kafka_client_args(), client_id=f"{settings.group}-admin"
    )
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def bare_client(settings: Settings) -> AsyncIterator[AIOKafkaClient]:
    """For requests that aiokafka's own classes answer wrongly (see commits.py)."""
    client = AIOKafkaClient(
        **settings.kafka_client_args(),
        client_id=f"{settings.group}-commits",
        retry_backoff_ms=RETRY_BACKOFF_MS,
    )
    await client.bootstrap()
    try:
        yield client
    finally:
        await client.close()
