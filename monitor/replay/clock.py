"""Time of a file: each line's own time stamp, else the highest span end so far."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from monitor.replay.lines import Line, read

JUMP_MS: Final = (
    3_600_000  # a span end further ahead than this is believed only if the next line agrees
)


class FileClock:
    """``at(own, end, next_end)`` gives a line's time in ms; never goes backwards without own time stamps.

    One span with a clock a year ahead would otherwise close every trace of the file at its line.
    """

    def __init__(self) -> None:
        self._now: int | None = None

    def at(self, own: int | None, end: int | None, next_end: int | None) -> int:
        """``own``: the line's time stamp; ``end``: its highest span end; ``next_end``: the next line's."""
        if own is not None:
            self._now = own
        elif end is not None and (self._now is None or end > self._now):
            self._now = self._believed(end, next_end)
        return self._now or 0

    def _believed(self, end: int, next_end: int | None) -> int:
        if self._now is None:
            first_is_far = next_end is not None and end > next_end + JUMP_MS
            return next_end if first_is_far and next_end is not None else end
        if end <= self._now + JUMP_MS:
            return end
        agrees = (
            next_end is not None and next_end > self._now + JUMP_MS and next_end >= end - JUMP_MS
        )
        return end if agrees else self._now


def timed(paths: list[Path]) -> Iterator[tuple[Line, int, int]]:
    """(line, its time in ms, bytes of the files read so far) of each line of the files. Raises UnreadableFile."""
    clock = FileClock()

    def at(line: Line, following: Line | None) -> int:
        return clock.at(line.timestamp_ms, line.end_ms, following.end_ms if following else None)

    previous: tuple[Line, int] | None = None
    for line, position in read(paths):
        if previous is not None:
            yield previous[0], at(previous[0], line), previous[1]
        previous = (line, position)
    if previous is not None:
        yield previous[0], at(previous[0], None), previous[1]
