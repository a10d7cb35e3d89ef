"""Files of lines -> Kafka records: native JSON lines, or captured messages (one JSON object a line).

A captured message has ``encoding`` and ``value_b64`` (and ``topic``, ``partition``, ``offset``, ``timestamp`` in
ms), as ``kcat -J`` style dumps and ``monitor topics dump`` write them. Everything else is taken for a native
span, so that a broken line reaches intake and becomes a dead letter there. Compressed files (gzip) are known by
their first bytes, whatever they are called.

Two numbers count lines, and are not the same. The *running* number counts the lines that are read over all files of
the run: it rises whatever the files are, so it is the fold's offset. The *physical* line of its file is what an
editor shows: it stands in coordinates (``Source``), as topic = name of the file, partition = place of the file in
the run from 0, offset = line from 1. A captured message that says where it was keeps its own coordinates.
"""

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from monitor.errors import MonitorError

CAPTURE_ENCODINGS: Final = {
    "json": "json",
    "otlp_proto": "otlp_proto/traces",
    "otlp_json": "otlp_json/traces",
}
# The pipelines of a capture are told apart by topic: the logs variant ends in ".logs.<encoding>" or "_logs".
_LOGS_TOPIC: Final = (".logs", "_logs", "-logs")

GZIP_MAGIC: Final = b"\x1f\x8b"  # RFC 1952, section 2.3.1

# Longest line that is read whole: the largest message that intake takes, base64 and its frame included. A longer
# one would have been refused by the broker; it is cut here and intake refuses what is left as too large.
LINE_LIMIT: Final = 64_000_000


class UnreadableFile(MonitorError):
    """A file of lines cannot be read, or is not what the option says it is."""


class Line(msgspec.Struct, frozen=True):
    """One line as a Kafka record. ``topic``, ``partition``, ``offset``: coordinates of what is in it."""

    number: int  # running, from 1 over all files
    where: str  # file:line, for people
    encoding: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None  # the line's own; None where it has none
    end_ms: int | None  # highest span end that can be seen without decoding; native lines only
    value: bytes | None  # None: a tombstone


class RawLine(NamedTuple):
    """A line that is not blank, without its end."""

    path: Path
    file: int  # place of the file among those given, from 0
    line: int  # physical, from 1; blank ones count
    raw: bytes
    position: int  # compressed bytes of all files read so far

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


class CapturedMessage(msgspec.Struct):
    """A Kafka message as one JSON object. ``value_b64`` null: a tombstone."""

    value_b64: str | None
    encoding: str = ""
    topic: str = ""
    partition: int = 0
    offset: int | None = None  # None: the capture does not say where the message was
    timestamp: int | None = None
    timestamp_type: str = "CreateTime"


class _Times(msgspec.Struct):
    """What the clock needs of a native line; types as loose as hostile input."""

    timestamp: Any = None
    end_unix_nano: Any = None


_DIGITS: Final = 19  # of the largest 64-bit time

_captured = msgspec.json.Decoder(CapturedMessage)
_times = msgspec.json.Decoder(_Times)


def read(paths: list[Path]) -> Iterator[tuple[Line, int]]:
    """Each non-empty line of the files, in order, with the bytes of the file read so far.

    Raises UnreadableFile for a file that cannot be opened or decompressed; a broken *line* is never an error.
    """
    for number, line in enumerate(raw_lines(paths), start=1):
        yield _line(number, line), line.position


def raw_lines(paths: list[Path]) -> Iterator[RawLine]:
    """Every line that is not blank, file after file. Raises UnreadableFile."""
    done = 0
    for file, path in enumerate(paths):
        try:
            with path.open("rb") as disk, _text(disk) as stream:
                line = 0
                whole = True  # whether the last piece ended its line
                while raw := stream.readline(LINE_LIMIT):
                    line += whole
                    whole = raw.endswith(b"\n")
                    if stripped := raw.strip():
                        yield RawLine(path, file, line, stripped, done + disk.tell())
                done += disk.tell()
        except (OSError, EOFError, zlib.error) as error:
            raise UnreadableFile(f"{path}: cannot be read: {_why(error)}") from error


def _why(error: Exception) -> str:
    """In words, with a hint where the contents are at fault and not the path."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return words
    return f"{words}; is the compressed file whole?"


def _text(disk: BufferedReader) -> gzip.GzipFile | BufferedReader:
    return gzip.GzipFile(fileobj=disk) if disk.peek(2)[:2] == GZIP_MAGIC else disk


def _line(number: int, line: RawLine) -> Line:
    if b'"value_b64"' in line.raw:
        try:
            message = _captured.decode(line.raw)
        except (msgspec.MsgspecError, RecursionError):
            pass  # a native span may well have an attribute of that name
        else:
            return _from_capture(number, line, message)
    timestamp, end = _native_times(line.raw)
    return Line(
        number, line.where, "json", line.path.name, line.file, line.line, timestamp, end, line.raw
    )


def _from_capture(number: int, line: RawLine, message: CapturedMessage) -> Line:
    encoding = CAPTURE_ENCODINGS.get(message.encoding, message.encoding)
    # Only where the capture does not say which signal it is.
    if encoding != message.encoding and any(mark in message.topic for mark in _LOGS_TOPIC):
        encoding = encoding.replace("/traces", "/logs")
    if message.topic and message.offset is not None:
        place = message.topic, message.partition, message.offset
    else:
        place = message.topic or line.path.name, line.file, line.line
    value = None if message.value_b64 is None else decode_value(line.where, message)
    return Line(number, line.where, encoding, *place, message.timestamp, None, value)


def captured_message(line: RawLine) -> CapturedMessage:
    """A line that must be one. Raises UnreadableFile."""
    try:
        return _captured.decode(line.raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UnreadableFile(
            f"{line.where}: not a captured message ({error}); `monitor topics dump` writes them"
        ) from error


def decode_value(where: str, message: CapturedMessage) -> bytes:
    """The message's bytes. Raises UnreadableFile where they are not base64: a broken capture, not a span."""
    try:
        return base64.b64decode(message.value_b64 or "", validate=True)
    except ValueError as error:
        raise UnreadableFile(
            f"{where}: value_b64 is not base64 ({error}); capture it again"
        ) from error


def _native_times(raw: bytes) -> tuple[int | None, int | None]:
    try:
        times = _times.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None, None  # intake says what is wrong with it
    end = _time(times.end_unix_nano)
    return _time(times.timestamp), None if end is None else end // 1_000_000


def _time(value: object) -> int | None:
    """A positive time that fits 64 bits; senders write numbers or strings."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _DIGITS:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 63:
        return value
    return None
