"""What cannot be restored is refused, alone; an operator's reset brings it back, and says what was lost."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from monitor.errors import MonitorError
from monitor.model import GateRecord, SettingsRecord
from monitor.stack import KafkaBroker
from monitor.stream import reset
from monitor.stream.clients import group_id
from monitor.stream.placement import partition_of
from tests.chaos.lab import SHORT_LIVES, Lab, assert_same

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


@pytest.fixture
def lab(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(kafka.bootstrap, unique, tmp_path, SHORT_LIVES)
    made.make_input()
    yield made
    made.kill_workers()


def traces(count: int, seed: int) -> list[dict[str, Any]]:
    """Roots alone, one a trace, none of them over a threshold."""
    rnd = random.Random(seed)
    return [
        {
            "trace_id": f"{rnd.getrandbits(128):032x}",
            "span_id": f"{rnd.getrandbits(64):016x}",
            "parent_span_id": None,
            "service": "s",
            "name": "n",
            "role": "planner",
            "model_version": "m",
            "start_unix_nano": 1_700_000_000_000_000_000,
            "end_unix_nano": 1_700_000_001_000_000_000,
            "scores": [{"scorer": "toy", "version": "1", "value": 0.01}],
            "attributes": {},
        }
        for _ in range(count)
    ]


def verdicts(lab: Lab) -> set[str]:
    return {json.loads(m.value)["trace_id"] for m in lab.read(lab.names.verdicts)}


def ids(spans: list[dict[str, Any]], lab: Lab, *, but: int | None = None) -> set[str]:
    return {
        span["trace_id"]
        for span in spans
        if but is None or partition_of(span["trace_id"], lab.partitions) != but
    }


def run_once(lab: Lab, spans: list[dict[str, Any]]) -> None:
    lab.produce(spans)
    worker = lab.start_worker()
    lab.wait("every verdict", lambda: ids(spans, lab) <= verdicts(lab))
    assert worker.stop(grace=20) == 0


def commit(lab: Lab, stage: str, place: TopicPartition) -> None:
    """As anybody may while the group is empty."""
    consumer = Consumer(
        {"bootstrap.servers": lab.bootstrap, "group.id": group_id(lab.settings(), stage)}
    )
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def test_a_partition_whose_snapshot_is_not_known_is_refused_until_it_is_reset(lab: Lab) -> None:
    first = traces(60, 1)
    run_once(lab, first)
    offset, _ = lab.commits("assemble")[0]
    commit(lab, "assemble", TopicPartition(lab.names.fragments, 0, offset))  # without metadata

    second = traces(60, 2)
    lab.produce(second)
    worker = lab.start_worker()
    lab.wait("the others' verdicts", lambda: ids(second, lab, but=0) <= verdicts(lab))
    assert not (ids(second, lab) - ids(second, lab, but=0)) & verdicts(lab)
    assert "monitor topics reset-partition 0" in worker.log()

    done = asyncio.run(reset.reset_partition(lab.settings(), 0))
    assert (done.partition, done.published_to) == (0, offset)
    assert done.at > offset
    third = traces(60, 3)
    lab.produce(third)
    lab.wait("all new verdicts", lambda: ids(third, lab) <= verdicts(lab))
    assert worker.stop(grace=20) == 0

    lost = [json.loads(m.value) for m in lab.read(lab.names.incidents)]
    assert [(i["reason"], i["severity"], i["provenance"]["partition"]) for i in lost] == [
        ("fault", "critical", 0)
    ]
    assert_same(lab, lost={0: (done.published_to, done.at)})

    # The reset is done: the next owner goes on from the snapshot and does not begin at it again.
    fourth = traces(20, 4)
    run_once(lab, fourth)
    assert_same(lab, lost={0: (done.published_to, done.at)})


def test_a_commit_that_is_gone_under_a_snapshot_is_refused(lab: Lab) -> None:
    run_once(lab, traces(20, 1))
    admin = AdminClient({"bootstrap.servers": lab.bootstrap})
    for gone in admin.delete_consumer_groups([group_id(lab.settings(), "assemble")]).values():
        gone.result()
    before = lab.read(lab.names.verdicts)
    worker = lab.start_worker()
    lab.wait("refused", lambda: worker.log().count("partition.refused") == lab.partitions)
    assert "has a snapshot but no commit" in worker.log()
    assert worker.stop(grace=20) == 0
    assert lab.read(lab.names.verdicts) == before


def test_an_input_partition_whose_commit_left_the_log_is_refused_until_it_is_reset(
    lab: Lab,
) -> None:
    run_once(lab, traces(40, 1))
    second = traces(40, 2)
    lab.produce(second)
    admin = AdminClient({"bootstrap.servers": lab.bootstrap})
    for gone in admin.delete_records([TopicPartition(lab.input, 1, 15)]).values():
        gone.result()
    worker = lab.start_worker()
    others = {s["trace_id"] for n, s in enumerate(second) if n % lab.partitions != 1}
    lab.wait("the others' verdicts", lambda: others <= verdicts(lab))
    assert f"reset-partition 1 --input {lab.input}" in worker.log()

    settings = lab.settings()
    done = asyncio.run(reset.reset_input(settings, lab.input, 1, "earliest"))
    assert (done.before, done.at, done.skipped) == (10, 15, 5)
    rest = {s["trace_id"] for n, s in enumerate(second) if n % lab.partitions == 1}
    lab.wait("what is left of it", lambda: len(rest & verdicts(lab)) == 5)
    assert worker.stop(grace=20) == 0
    assert_same(lab)


def test_resets_of_what_is_not_there_say_so(lab: Lab) -> None:
    with pytest.raises(MonitorError, match="partition 9 of fragments: there are 0 to 3"):
        asyncio.run(reset.reset_partition(lab.settings(), 9))
    with pytest.raises(MonitorError, match="none of MONITOR_INPUTS"):
        asyncio.run(reset.reset_input(lab.settings(), "other", 0, "latest"))


def test_a_new_group_begins_where_it_is_told_and_once(lab: Lab) -> None:
    old, new = traces(40, 1), traces(40, 2)
    lab.produce(old)
    worker = lab.start_worker(MONITOR_START="latest")
    lab.wait("begun", lambda: "group.begins" in worker.log())
    lab.wait("committed", lambda: len(lab.commits("ingest")) == lab.partitions)
    lab.produce(new)
    lab.wait("the new ones", lambda: ids(new, lab) <= verdicts(lab))
    assert not ids(old, lab) & verdicts(lab)
    assert worker.stop(grace=20) == 0
    again = lab.start_worker(MONITOR_START="earliest")  # decided before: has no effect
    lab.wait("assigned", lambda: again.log().count("lanes.assigned") == 2)
    later = traces(4, 3)
    lab.produce(later)
    lab.wait("the later ones", lambda: ids(later, lab) <= verdicts(lab))
    assert not ids(old, lab) & verdicts(lab)


def test_a_group_whose_commits_expired_asks_for_a_start(lab: Lab) -> None:
    run_once(lab, traces(20, 1))
    admin = AdminClient({"bootstrap.servers": lab.bootstrap})
    for gone in admin.delete_consumer_groups([group_id(lab.settings(), "ingest")]).values():
        gone.result()
    del lab.env["MONITOR_START"]
    worker = lab.start_worker()
    lab.wait("refused", lambda: "set MONITOR_START" in worker.log())
    new = traces(20, 2)
    lab.produce(new)
    assert worker.stop(grace=20) == 0
    assert lab.commits("ingest") == {}
    lab.start_worker(MONITOR_START="earliest")
    lab.wait("the new ones", lambda: ids(new, lab) <= verdicts(lab))


def test_an_input_topic_that_comes_later_is_read_from_its_beginning(lab: Lab) -> None:
    later = f"{lab.prefix}-later"
    lab.env["MONITOR_INPUTS"] += f",{later}=json"
    lab.env["MONITOR_START"] = "latest"
    worker = lab.start_worker()
    lab.wait("begun", lambda: len(lab.commits("ingest")) == lab.partitions)
    assert "input.missing" in worker.log()
    first = traces(20, 1)
    lab.produce(first)
    lab.wait("the first ones", lambda: ids(first, lab) <= verdicts(lab))
    lab.input = later
    lab.make_input()
    second = traces(20, 2)
    lab.produce(second)
    lab.wait("those of the new topic", lambda: ids(second, lab) <= verdicts(lab))
    assert worker.stop(grace=20) == 0


def test_settings_and_gates_are_copied_into_each_partitions_log_once(lab: Lab) -> None:
    run_once(lab, traces(20, 1))
    changed = {"MONITOR_THRESHOLD__PLANNER": "0.005"}
    worker = lab.start_worker(**changed)
    lab.wait("assigned", lambda: worker.log().count("lanes.assigned") == 2)
    gate = {"service": "s", "scorer": "toy", "state": "stationary", "more": 1}
    lab.produce_to(lab.names.gates, 2, b"s|toy", json.dumps(gate).encode())
    records = lab.records
    lab.wait(
        "a gate in each partition",
        lambda: sum(isinstance(r, GateRecord) for _, r in records()) == lab.partitions,
    )
    new = traces(20, 2)
    lab.produce(new)
    lab.wait("the new ones", lambda: ids(new, lab) <= verdicts(lab))
    assert worker.stop(grace=20) == 0
    old_again = lab.start_worker(MONITOR_SETTINGS_REVISION="0", **changed)
    lab.wait("assigned", lambda: old_again.log().count("lanes.assigned") == 2)
    lab.wait("at the end", lab.caught_up)
    assert old_again.stop(grace=20) == 0
    in_log = [r for _, r in records() if isinstance(r, SettingsRecord)]
    assert len(in_log) == 2 * lab.partitions
    gates = [r for _, r in records() if isinstance(r, GateRecord)]
    assert {(g.service, g.scorer, g.state, g.source_partition) for g in gates} == {
        ("s", "toy", "stationary", 2)
    }
    assert len(gates) == lab.partitions
    kept = {m.key.decode(): m.value for m in lab.read(lab.names.settings) if m.key}
    assert kept == {r.sha256: r.content for r in in_log}
    opened = {json.loads(m.value)["incident_id"] for m in lab.read(lab.names.incidents)}
    assert len(opened) == 20  # by the new threshold
    assert_same(lab)
