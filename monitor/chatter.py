"""Library lines that alarm without a fault, or say again and again what we say once: shown later, lower or less often.

Nothing is left out for good: a line that lasts comes through, with what to do about it. At MONITOR_LOG_LEVEL=debug all
lines come through as they are.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

RUN_GAP_SECONDS: Final = 60.0
"""Lines farther apart than this are two occasions; the libraries repeat theirs each 20 ms to 10 s."""

_RUNS: Final = 200  # occasions remembered at a time; past that a line comes through as it is
_LINES: Final = 20  # of a captured logger
_LINE_CHARACTERS: Final = 300


@dataclass(frozen=True)
class Rated:
    """A line of ``logger`` whose text begins as ``pattern`` says; a group in it tells occasions apart.

    ``patience``: seconds for which an occasion is not shown; ``every``: seconds between its lines after that.
    ``level``: with which they are shown; ``advice`` is added to them. ``why`` is the reason for all this.
    """

    logger: str
    pattern: str
    patience: float
    every: float
    level: int
    why: str
    advice: str


TABLE: Final = (
    Rated(
        "aiokafka.consumer.group_coordinator",
        r"Group Coordinator Request failed: \[Error 15\]",
        patience=15.0,
        every=60.0,
        level=logging.WARNING,
        why="the first group of a cluster makes __consumer_offsets: for some seconds every member asks 40 times a second",
        advice="the brokers have no group coordinator: their log says why __consumer_offsets cannot be made or loaded "
        "(offsets.topic.replication.factor over the number of brokers?)",
    ),
    Rated(
        "aiokafka.consumer.group_coordinator",
        r"Marking the coordinator dead",
        patience=0.0,
        every=60.0,
        level=logging.INFO,
        why="a coordinator that is loading or moves sends requests back; the member looks it up again at once, and what "
        "comes of it is logged as `lanes.assigned`",
        advice="the member looks it up again",
    ),
    Rated(
        "aiokafka.cluster",
        r"Topic (\S+) not found in cluster metadata",
        patience=60.0,
        every=600.0,
        level=logging.WARNING,
        why="said for every answer of a broker (each 10 s) while an input topic is missing; we say `input.missing` once, "
        "show agent_monitor_input_topic_missing and have an alert for it",
        advice="an input topic: make it, or take it out of MONITOR_INPUTS; one of the monitor's own: `monitor topics check`",
    ),
)


@dataclass
class _Run:
    began: float
    last: float
    shown: float | None = None
    unshown: int = 0


class ChatterFilter(logging.Filter):
    """For the handler of a process. ``now``: seconds of a clock that only goes forward."""

    def __init__(self, least: int, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._least = least
        self._now = now
        self._runs: dict[tuple[Rated, str], _Run] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        for rated in TABLE:
            if record.name == rated.logger:
                text = record.getMessage()
                match = re.match(rated.pattern, text)
                if match is not None:
                    return self._rate(rated, match, text, record)
        return True

    def _rate(
        self, rated: Rated, match: re.Match[str], text: str, record: logging.LogRecord
    ) -> bool:
        now = self._now()
        key = (rated, match[match.lastindex or 0])
        run = self._runs.get(key)
        if run is None or now - run.last > RUN_GAP_SECONDS:
            if len(self._runs) >= _RUNS:
                self._forget(now)
            if len(self._runs) >= _RUNS:
                return True
            run = self._runs[key] = _Run(now, now)
        run.last = now
        if now - run.began < rated.patience or (
            run.shown is not None and now - run.shown < rated.every
        ):
            run.unshown += 1
            return False
        again = f" ({run.unshown} times before)" if run.unshown else ""
        run.shown, run.unshown = now, 0
        record.msg, record.args = f"{text}{again}; {rated.advice}", None
        record.levelno, record.levelname = rated.level, logging.getLevelName(rated.level)
        return rated.level >= self._least

    def _forget(self, now: float) -> None:
        for key in [k for k, run in self._runs.items() if now - run.last > RUN_GAP_SECONDS]:
            del self._runs[key]


class _Taker(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()[:_LINE_CHARACTERS]
        if line not in self._lines and len(self._lines) < _LINES:
            self._lines.append(line)


@contextmanager
def taken(name: str = "aiokafka") -> Iterator[list[str]]:
    """The lines of a library's loggers, from warning up, go into the list instead of the log.

    For work whose failure we report ourselves, in one line, with what the library knew of its cause.
    """
    lines: list[str] = []
    logger = logging.getLogger(name)
    taker, propagates = _Taker(lines), logger.propagate
    logger.addHandler(taker)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.propagate = propagates
        logger.removeHandler(taker)
