"""One transaction: all of it or nothing, a fence, and the aiokafka names that we lean on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from monitor.stack import KafkaBroker
from monitor.stream import clients, topics, transaction
from monitor.stream.commits import Commit, read_commits
from monitor.stream.transaction import Fenced, Outbox, TransactionFailed
from tests.chaos.lab import Lab

pytestmark = pytest.mark.kafka


@pytest.fixture
async def lab(kafka: KafkaBroker, unique: str, tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(kafka.bootstrap, unique, tmp_path)
    settings = made.settings()
    async with clients.admin(settings) as admin:
        await topics.ensure(admin, topics.specs(settings))
    return made


async def open_lane(lab: Lab) -> AIOKafkaProducer:
    producer = clients.lane_producer(lab.settings(), "assemble", 0, max_request=10_000_000)
    await producer.start()
    return producer


async def commit(lab: Lab, outbox: Outbox, offset: int, metadata: str = "") -> None:
    tp = TopicPartition(lab.names.fragments, 0)
    await transaction.commit(
        asyncio.Semaphore(2),
        outbox,
        clients.group_id(lab.settings(), "assemble"),
        lambda: {tp: OffsetAndMetadata(offset, metadata)},
    )


async def values(lab: Lab, topic: str) -> list[tuple[int, int, bytes]]:
    found = await asyncio.to_thread(lab.read, topic)
    return [(m.partition, m.offset, m.value) for m in found]


async def test_all_of_it_in_order_with_the_offsets_told(lab: Lab) -> None:
    producer = await open_lane(lab)
    outbox = Outbox(producer)
    to = [TopicPartition(lab.names.verdicts, p) for p in (0, 1)]
    # 400 kB a record: more than one batch a partition.
    put = [
        (n, outbox.put(to[n % 2], b"k", b"%d-" % n + bytes(400_000 if n < 6 else 10)))
        for n in range(10)
    ]
    assert (outbox.records, bool(outbox)) == (10, True)
    await commit(lab, outbox, 7, "where the snapshot lies")
    found = {(p, offset): value for p, offset, value in await values(lab, lab.names.verdicts)}
    for n, place in put:
        assert found[place.tp.partition, outbox.offset(place)].startswith(b"%d-" % n)
    async with clients.bare_client(lab.settings()) as client:
        commits = await read_commits(client, clients.group_id(lab.settings(), "assemble"))
    assert commits == {TopicPartition(lab.names.fragments, 0): Commit(7, "where the snapshot lies")}
    await transaction.close(producer)


async def test_a_zombie_is_fenced_by_who_opens_the_lane_after_it(lab: Lab) -> None:
    zombie = await open_lane(lab)
    await commit(lab, Outbox(zombie), 1)
    owner = await open_lane(lab)
    late = Outbox(zombie)
    late.put(TopicPartition(lab.names.verdicts, 0), b"k", b"late")
    with pytest.raises(Fenced):
        await commit(lab, late, 2)
    own = Outbox(owner)
    own.put(TopicPartition(lab.names.verdicts, 0), b"k", b"own")
    await commit(lab, own, 3)
    assert [value for _, _, value in await values(lab, lab.names.verdicts)] == [b"own"]
    await transaction.close(zombie)
    await transaction.close(owner)


async def test_opening_a_lane_ends_the_transaction_that_was_left_open(lab: Lab) -> None:
    dead = await open_lane(lab)
    await dead.begin_transaction()
    await dead.send_and_wait(lab.names.verdicts, b"never", partition=0)
    owner = await open_lane(lab)
    own = Outbox(owner)
    own.put(TopicPartition(lab.names.verdicts, 0), b"k", b"own")
    await commit(lab, own, 1)
    # Nothing waits for the dead one's timeout.
    async with asyncio.timeout(5):
        assert [value for _, _, value in await values(lab, lab.names.verdicts)] == [b"own"]
    await transaction.close(dead)
    await transaction.close(owner)


async def test_a_refused_record_fails_the_whole(lab: Lab) -> None:
    producer = await open_lane(lab)
    outbox = Outbox(producer)
    outbox.put(TopicPartition(lab.names.verdicts, 1), b"k", b"small")
    outbox.put(TopicPartition(lab.names.verdicts, 0), b"k", bytes(1_100_000))
    with pytest.raises(TransactionFailed, match="TooLarge"):
        await commit(lab, outbox, 1)
    await transaction.close(producer)
    assert await values(lab, lab.names.verdicts) == []
    async with clients.bare_client(lab.settings()) as client:
        assert await read_commits(client, clients.group_id(lab.settings(), "assemble")) == {}


async def test_a_chunk_of_state_fits_the_default_limit_with_its_key(lab: Lab) -> None:
    producer = await open_lane(lab)
    outbox = Outbox(producer)
    outbox.put(TopicPartition(lab.names.closed_traces, 0), bytes(120), bytes(clients.CHUNK_BYTES))
    await commit(lab, outbox, 1)
    await transaction.close(producer)


async def test_private_names_of_aiokafka_that_we_use_are_there(lab: Lab) -> None:
    """A new aiokafka that moves them must fail here, not in a rebalance."""
    settings = lab.settings()
    producer = await open_lane(lab)
    assert producer._txn_manager.is_in_transaction() is False
    assert not producer._sender.sender_task.done()
    await transaction.close(producer)
    consumer = clients.stage_consumer(settings, "assemble", _assignor())
    await consumer.start()
    try:
        assert callable(consumer._coordinator.request_rejoin)
        assert not consumer._coordinator._coordination_task.done()
    finally:
        await consumer.stop()


async def test_a_reader_may_be_closed_at_once(lab: Lab) -> None:
    """aiokafka's own consumer raises CancelledError at a caller that does so."""
    async with clients.reader(lab.settings()):
        pass
    async with clients.reader(lab.settings()) as reader:
        tp = TopicPartition(lab.names.fragments, 0)
        assert await reader.end_offsets([tp]) == {tp: 0}


def _assignor() -> type:
    from monitor.stream.assignor import lane_assignor

    return lane_assignor(4)
