"""Logs: one line an event, whoever logs; no content and no secret in a traceback."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import structlog

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
