"""Logs: one line an event, whoever logs; no content and no secret in a traceback."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import structlog

from monitor import chatter
from monitor.logs import configure, get_logger


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def lines(level: str = "info") -> tuple[io.StringIO, Any]:
    stream = io.StringIO()
    configure(level, "json", stream)
    return stream, lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_ours_and_the_libraries_lines_have_the_same_shape() -> None:
    _, read = lines()
    get_logger("monitor.x").info("partition refused", partition=3)
    logging.getLogger("aiokafka.conn").warning("broker %s went away", "k1")
    ours, theirs = read()
    assert (ours["event"], ours["partition"], ours["level"]) == ("partition refused", 3, "info")
    assert (theirs["event"], theirs["logger"]) == ("broker k1 went away", "aiokafka.conn")
    assert set(theirs) <= set(ours)


def test_the_libraries_chatter_is_left_out_below_warning() -> None:
    _, read = lines()
    logging.getLogger("aiokafka.consumer").info("joined group")
    get_logger("monitor.x").debug("detail")
    assert read() == []
    _, read = lines("debug")
    logging.getLogger("aiokafka.consumer").debug("joined group")
    assert len(read()) == 1


def test_a_hostile_name_stays_on_its_line() -> None:
    stream, read = lines()
    get_logger("monitor.x").info("unknown role", raw='a\n{"event": "fake"}\u2028\x00')
    assert len(stream.getvalue().splitlines()) == 1
    assert read()[0]["raw"] == 'a\n{"event": "fake"}\u2028\x00'


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_traceback_shows_no_value_of_a_variable(style: Literal["json", "console"]) -> None:
    """Locals hold spans' content, keys and passwords."""
    stream = io.StringIO()
    configure("info", style, stream)
    password = "hunter2"
    try:
        raise ValueError(f"{len(password)} characters")
    except ValueError:
        get_logger("monitor.x").exception("login failed")
    assert "7 characters" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


# --- library lines that alarm without a fault --------------------------------------------------------

NO_COORDINATOR = "Group Coordinator Request failed: [Error 15] GroupCoordinatorNotAvailableError"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(chatter.ChatterFilter.__init__, "__defaults__", (clock,))
    return clock


def repeat(clock: Clock, logger: str, text: str, *, seconds: float, each: float) -> None:
    end = clock.now + seconds
    while clock.now < end:
        logging.getLogger(logger).error(text)
        clock.now += each


def test_what_passes_in_seconds_is_not_said_and_what_lasts_is_with_advice(clock: Clock) -> None:
    _, read = lines()
    logger = "aiokafka.consumer.group_coordinator"
    repeat(clock, logger, NO_COORDINATOR, seconds=10, each=0.025)  # a cluster's first group
    assert read() == []
    clock.now += 3600
    repeat(clock, logger, NO_COORDINATOR, seconds=200, each=0.5)  # a cluster that cannot make it
    said = read()
    assert [line["level"] for line in said] == ["warning"] * 4  # after 15 s, then each minute
    assert all(line["event"].startswith(NO_COORDINATOR) for line in said)
    assert "offsets.topic.replication.factor" in said[0]["event"]
    assert "119 times before" in said[1]["event"]


def test_a_missing_topic_is_said_by_us_and_repeated_rarely(clock: Clock) -> None:
    _, read = lines()
    for _ in range(90):  # a quarter of an hour of two topics
        for topic in ("gone", "away"):
            logging.getLogger("aiokafka.cluster").error(
                "Topic %s not found in cluster metadata", topic
            )
        clock.now += 10
    said = [line["event"].split()[1] for line in read()]
    assert sorted(said) == ["away", "away", "gone", "gone"]
    assert "MONITOR_INPUTS" in read()[0]["event"]


def test_other_lines_of_the_same_loggers_come_through_as_they_are(clock: Clock) -> None:
    _, read = lines()
    kept = {
        "aiokafka.consumer.group_coordinator": "Group Coordinator Request failed: [Error 30] denied",
        "aiokafka.cluster": "Topic x is not authorized for this client",
        "aiokafka": 'Unable connect to "a:1": refused',
        "other": NO_COORDINATOR,
    }
    for logger, text in kept.items():
        logging.getLogger(logger).error(text)
    assert {line["logger"]: line["event"] for line in read()} == kept
    assert {line["level"] for line in read()} == {"error"}


def test_debug_shows_every_line(clock: Clock) -> None:
    _, read = lines("debug")
    repeat(clock, "aiokafka.consumer.group_coordinator", NO_COORDINATOR, seconds=1, each=0.1)
    assert {line["event"] for line in read()} == {NO_COORDINATOR}
    assert len(read()) >= 10


def test_a_lowered_line_keeps_to_the_level_of_the_log(clock: Clock) -> None:
    logger = logging.getLogger("aiokafka.consumer.group_coordinator")
    for level, shown in (("info", ["info"]), ("warning", [])):
        _, read = lines(level)
        logger.warning("Marking the coordinator dead (node %s)for group %s.", 1, "g")
        assert [line["level"] for line in read()] == shown


def test_names_without_end_are_neither_remembered_nor_hidden(clock: Clock) -> None:
    _, read = lines()
    for number in range(1000):
        logging.getLogger("aiokafka.cluster").error(
            "Topic %s not found in cluster metadata", number
        )
    assert len(read()) == 800


def test_the_table_says_why_and_what_to_do() -> None:
    for rated in chatter.TABLE:
        assert rated.logger.startswith("aiokafka")
        assert rated.why
        assert rated.advice


def test_lines_that_we_report_ourselves_are_taken_for_that_report() -> None:
    _, read = lines()
    with chatter.taken("aiokafka") as said:
        for _ in range(3):
            logging.getLogger("aiokafka.conn").error("Unable connect to %s", "k" * 1000)
        logging.getLogger("aiokafka").info("not worth a report")
        logging.getLogger("monitor.x").warning("ours")
    assert said == ["Unable connect to " + "k" * 282]
    logging.getLogger("aiokafka").error("after it")
    assert [line["event"] for line in read()] == ["ours", "after it"]
