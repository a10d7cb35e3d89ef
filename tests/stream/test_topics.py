"""Topics as they are made, found, and refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from monitor.errors import TopicMismatch
from monitor.stack import KafkaBroker
from monitor.stream import clients, topics
from tests.chaos.lab import Lab


@pytest.fixture
def lab(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Lab:
    return Lab(kafka.bootstrap, unique, tmp_path)


pytestmark = pytest.mark.kafka


async def test_what_is_made_passes_the_check_and_is_left_alone(lab: Lab) -> None:
    settings = lab.settings()
    wanted = topics.specs(settings)
    async with clients.admin(settings) as admin:
        [missing] = await topics.check(admin, wanted)
        assert missing.startswith(f"{len(wanted)} topics: missing; run `monitor topics create` (")
        assert all(spec.name in missing for spec in wanted)
        await topics.ensure(admin, wanted)
        assert await topics.check(admin, wanted) == []
        again = await topics.create(admin, wanted)
        assert (again.made, len(again.there)) == ((), len(wanted))
        names = topics.TopicNames(settings.topic_prefix)
        configs = await topics.topic_configs(admin, [names.fragments, names.assembly_state])
    assert configs[names.fragments]["message.timestamp.type"] == "LogAppendTime"
    assert configs[names.fragments]["retention.ms"] == str(24 * 3600 * 1000)
    assert configs[names.assembly_state]["cleanup.policy"] == "compact"


async def test_another_count_of_partitions_refuses_to_start(lab: Lab) -> None:
    settings = lab.settings()
    async with clients.admin(settings) as admin:
        await topics.ensure(admin, topics.specs(settings))
        more = topics.specs(lab.settings(partitions="5"))
        with pytest.raises(
            TopicMismatch, match="has 4 partitions, MONITOR_PARTITIONS is 5"
        ) as said:
            await topics.ensure(admin, more)
    [line] = str(said.value).splitlines()  # one fault, one line, however many topics have it
    assert line.startswith("12 topics: ")
    assert all(spec.name in line for spec in more)


async def test_fragments_without_append_time_are_refused(lab: Lab) -> None:
    settings = lab.settings()
    fragments, *rest = topics.specs(settings)
    plain = topics.TopicSpec(fragments.name, fragments.partitions, {"cleanup.policy": "delete"})
    async with clients.admin(settings) as admin:
        await topics.create(admin, [plain, *rest])
        with pytest.raises(TopicMismatch, match=r"message.timestamp.type is 'CreateTime'") as said:
            await topics.ensure(admin, [fragments, *rest])
    assert f"--topic {fragments.name} --add-config" in str(said.value)


async def test_input_topics_that_are_not_there_are_told(lab: Lab) -> None:
    lab.make_input()
    async with clients.admin(lab.settings()) as admin:
        while await topics.missing_inputs(admin, [lab.input]):  # noqa: ASYNC110 - Kafka tells nobody
            await asyncio.sleep(0.1)
        note = await topics.missing_inputs(admin, [lab.input, "gone", "away"])
    assert note is not None
    assert "gone, away" in note
    assert lab.input not in note


async def test_dead_letters_take_the_inputs_largest_message(lab: Lab) -> None:
    lab.make_input(configs={"max.message.bytes": "3000000"})
    settings = lab.settings()
    async with clients.admin(settings) as admin:
        while not await topics.partition_counts(admin, [lab.input]):  # noqa: ASYNC110 - Kafka tells nobody
            await asyncio.sleep(0.1)
        largest = await topics.largest_input(admin, [lab.input, "missing-topic"])
    assert largest == 3_000_000
    letters = topics.specs(settings, largest_input=largest)[-1]
    assert int(letters.configs["max.message.bytes"]) >= 3_000_000 * 4 / 3 + 65_536
