"""What a person sees of dead letters, and what nobody sees by accident."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from monitor.cli.deadletter_report import MEANINGS, escaped
from monitor.cli.deadletters import KNOWN_REASONS
from monitor.model import DeadLetter, Source
from monitor.stack import KafkaBroker
from monitor.stream import clients
from monitor.stream.deadletters import MARKER_KEY, marker
from monitor.stream.routing import Router
from monitor.stream.topics import create, specs
from tests.chaos.lab import Lab
from tests.replay.test_replay import run

HOSTILE = "\x1b[31mred\x1b[0m‮\nTAB\t"
SECRET = "my bank code is 1234"


def test_every_reason_that_the_filter_takes_has_a_meaning() -> None:
    assert set(KNOWN_REASONS) == set(MEANINGS)


def test_bytes_cannot_command_a_terminal() -> None:
    lines = list(escaped(HOSTILE.encode() + b"\xff\x00"))
    assert lines == ["\\x1b[31mred\\x1b[0m\\u202e", "TAB\\t\\xff\\x00"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("list", "--reason", "not_jsn"), "did you mean not_json?"),
        (("list", "--reason", "zzzzzz"), "one of empty_value"),
        (("list", "--since", "yesterday"), "how long ago"),
        (("list", "--until", "2026-11-30T08:00:00"), "a time with its zone"),
        (("redrive", "--since", "1h", "--until", "2h"), "is not before --until"),
        (("redrive",), "say --yes, or --dry-run"),
        (("show", "agent-spans"), "PARTITION/OFFSET of its dead letter"),
        (("show", "agent-spans/1/x"), "PARTITION/OFFSET of its dead letter"),
        (("show", "agent-spans/1/2/3/4"), "PARTITION/OFFSET of its dead letter"),
    ],
)
def test_a_wrong_filter_says_what_is_allowed(arguments: tuple[str, ...], says: str) -> None:
    done = run("deadletters", *arguments)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize("command", [("list",), ("show", "0/0"), ("redrive", "--yes")])
def test_without_kafka_it_says_so_in_one_line(command: tuple[str, ...]) -> None:
    done = run("deadletters", *command, BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert done.returncode == 4
    [line] = done.stderr.splitlines()
    assert "MONITOR_BOOTSTRAP_SERVERS" in line


@pytest.mark.kafka
@pytest.mark.parametrize("command", [("list",), ("show", "0/0"), ("redrive", "--yes")])
def test_without_the_topic_it_names_it(
    kafka: KafkaBroker, unique: str, command: tuple[str, ...]
) -> None:
    done = run(
        "deadletters", *command, BOOTSTRAP_SERVERS=kafka.bootstrap, TOPIC_PREFIX=f"{unique}."
    )
    assert done.returncode == 1
    assert f"topic {unique}.deadletters: not on" in done.stderr
    assert "MONITOR_TOPIC_PREFIX" in done.stderr


LETTERS = (
    DeadLetter(
        reason="not_json",
        detail=f"at character 3 {HOSTILE}",
        source=Source("agent-spans", 1, 7, 0, 1_796_095_371_210),
        value=SECRET.encode() + b"\x1b]0;owned\x07",
    ),
    DeadLetter(
        reason="score_boolean",
        detail="value of scorer 'judge' is the boolean True",
        source=Source("agent-spans", 1, 70, 2, 1),
        trace_id="ab" * 16,
        span_id="cd" * 8,
        scorer="judge",
        value=b'{"scorer":"judge","value":true}',
    ),
    DeadLetter(reason="undecodable_fragment", detail="x", source=Source("monitor.fragments", 3, 9)),
    DeadLetter(
        reason="not_json",
        detail="bytes were not kept",
        source=Source("agent-spans", 0, 8, 0, 1),
    ),
)


@pytest.fixture
def lab(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Lab:
    lab = Lab(kafka.bootstrap, unique, tmp_path)
    lab.env["MONITOR_INPUTS"] = "agent-spans=json"
    settings = lab.settings()

    async def make() -> None:
        async with clients.admin(settings) as admin:
            await create(admin, specs(settings))

    asyncio.run(make())
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    router = Router(settings)
    for letter in LETTERS:
        place, key, value = router.route(letter)
        producer.produce(place.topic, value, key, place.partition)
    assert producer.flush(30) == 0
    return lab


def shown(lab: Lab, *arguments: str) -> str:
    done = run("deadletters", *arguments, **{n[8:]: v for n, v in lab.env.items()})
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr


@pytest.mark.kafka
@pytest.mark.timeout(120)
def test_list_has_reasons_and_places_and_no_bytes(lab: Lab) -> None:
    table = shown(lab, "list")
    assert SECRET not in table
    assert "\x1b" not in table
    assert "\\x1b[31mred" in table
    assert "agent-spans/1/7/0" in table
    assert "by reason and source" in table
    assert MEANINGS["score_boolean"] in table
    records = [json.loads(line) for line in shown(lab, "list", "--json").splitlines()]
    assert SECRET not in json.dumps(records)
    assert len(records) == len(LETTERS)
    by_item = {record["item"]: record for record in records}
    score = by_item["agent-spans/1/70/2"]
    assert (score["reason"], score["scorer"], score["bytes"]) == ("score_boolean", "judge", 31)
    assert by_item["agent-spans/0/8/0"]["bytes"] is None


@pytest.mark.kafka
@pytest.mark.timeout(120)
def test_filters_are_all_held(lab: Lab) -> None:
    def items(*arguments: str) -> list[str]:
        lines = shown(lab, "list", "--json", *arguments).splitlines()
        return sorted(json.loads(line)["item"] for line in lines)

    assert items("--reason", "not_json") == ["agent-spans/0/8/0", "agent-spans/1/7/0"]
    assert len(items("--reason", "not_json", "--reason", "score_boolean")) == 3
    assert items("--topic", "monitor.fragments") == ["monitor.fragments/3/9/0"]
    assert items("--since", "1h") == items()
    assert items("--until", "1h") == []
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 60))
    assert items("--until", now) == items()
    assert items("--since", now) == []
    assert len(items("--limit", "2")) == 2
    assert "and 3 more" in shown(lab, "list", "--limit", "1")
    nothing = shown(lab, "list", "--reason", "too_deep")
    assert "no dead letter matches; there are 4: 2 not_json from agent-spans, " in nothing


@pytest.mark.kafka
@pytest.mark.timeout(120)
def test_show_takes_the_items_place_and_the_letters_and_bytes_only_when_asked(lab: Lab) -> None:
    by_item = shown(lab, "show", "agent-spans/1/7")
    assert "not_json" in by_item
    assert "agent-spans/1/70/2" not in by_item
    assert "2026-12-01 03:22:51 UTC" in by_item
    assert SECRET not in by_item
    records = [json.loads(line) for line in shown(lab, "list", "--json").splitlines()]
    [place] = [record["letter"] for record in records if record["item"] == "agent-spans/1/7/0"]
    assert shown(lab, "show", place) == by_item
    assert shown(lab, "show", "agent-spans/1/7/0") == by_item
    with_value = shown(lab, "show", place, "--value")
    assert f"{SECRET}\\x1b]0;owned\\x07" in with_value
    assert "\x1b" not in with_value
    assert "value" not in json.loads(shown(lab, "show", place, "--json"))
    assert "no dead letter at agent-spans/1/7/1" in shown(lab, "show", "agent-spans/1/7/1")
    assert "no dead letter at 99/0" in shown(lab, "show", "99/0")
    assert "not kept" in shown(lab, "show", "agent-spans/0/8")


@pytest.mark.kafka
@pytest.mark.timeout(120)
def test_redrive_says_of_each_why_it_stays(lab: Lab) -> None:
    said = shown(lab, "redrive", "--dry-run")
    for words in (
        "nothing to send",
        "would be refused again",
        "its bytes were not kept (MONITOR_DEADLETTER_BYTES=none)",
        "comes from the monitor's own log",
        "has left its topic",
    ):
        assert words in said
    record = json.loads(shown(lab, "redrive", "--dry-run", "--json"))
    assert record["dry_run"]
    assert {each["why"]: each["items"] for each in record["stays"]} == {
        "refused_again": 1, "bytes_not_kept": 1, "not_an_input": 1, "input_gone": 1,
    }  # fmt: skip


@pytest.mark.kafka
@pytest.mark.timeout(120)
def test_records_that_are_no_letters_are_passed_over_and_counted(lab: Lab) -> None:
    topic = lab.names.deadletters
    lab.produce_to(topic, 0, b"x", b"\xff{")
    lab.produce_to(topic, 0, MARKER_KEY, b"not a marker")
    lab.produce_to(topic, 1, MARKER_KEY, marker([12_345], 1))
    assert "2 records of the topic are no dead letters" in shown(lab, "list")
    assert len([x for x in shown(lab, "list", "--json").splitlines() if x[0] == "{"]) == 4
