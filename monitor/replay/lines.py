"""Files of lines -> Kafka records: native JSON lines, or captured messages (one JSON object a line).

A captured message has ``encoding`` and ``value_b64`` (and ``topic``, ``partition``, ``offset``, ``timestamp`` in
ms), as ``kcat -J`` style dumps and ``monitor topics dump`` write them. Everything else is taken for a native
span, so that a broken line reaches intake and becomes a dead letter there. ``.gz`` files are read as they are.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from monitor.errors import MonitorError

CAPTURE_ENCODINGS: Final = {
    "json": "json",
    "otlp_proto": "otlp_proto/traces",
    "otlp_json": "otlp_json/traces",
}
# The pipelines of a capture are told apart by topic: the logs variant ends in ".logs.<encoding>" or "_logs".
_LOGS_TOPIC: Final = (".logs", "_logs", "-logs")

# Longest line that is read whole: the largest message that intake takes, base64 and its frame included. A longer
# one would have been refused by the broker; it is cut here and intake refuses what is left as too large.
LINE_LIMIT: Final = 64_000_000


class UnreadableFile(MonitorError):
    """A file of lines cannot be read, or is not what the option says it is."""


class Line(msgspec.Struct, frozen=True):
    """One line as a Kafka record. ``number`` counts from 1 over all files of the run."""

    number: int
    encoding: str
    topic: str
    timestamp_ms: int | None  # the line's own; None where it has none
    end_ms: int | None  # highest span end that can be seen without decoding; native lines only
    value: bytes


class CapturedMessage(msgspec.Struct):
    """A Kafka message as one JSON object. ``value_b64`` null: a tombstone."""

    value_b64: str | None
    encoding: str = ""
    topic: str = ""
    partition: int = 0
    offset: int = 0
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
    for number, (path, raw, position) in enumerate(raw_lines(paths), start=1):
        yield _line(number, path, raw), position


def raw_lines(paths: list[Path]) -> Iterator[tuple[Path, bytes, int]]:
    """(file, line without its end, compressed bytes of all files read so far); blank lines are left out."""
    done = 0
    for path in paths:
        try:
            with path.open("rb") as disk, _text(path, disk) as stream:
                while raw := stream.readline(LINE_LIMIT):
                    if stripped := raw.strip():
                        yield path, stripped, done + disk.tell()
                done += disk.tell()
        except (OSError, EOFError) as error:
            raise UnreadableFile(
                f"{path}: cannot be read ({error}); is it a JSON lines file?"
            ) from error


def _text(path: Path, disk: BinaryIO) -> gzip.GzipFile | BinaryIO:
    return gzip.GzipFile(fileobj=disk) if path.suffix == ".gz" else disk


def _line(number: int, path: Path, raw: bytes) -> Line:
    if b'"value_b64"' in raw:
        try:
            message = _captured.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            pass  # a native span may well have an attribute of that name
        else:
            return _from_capture(number, path, message)
    timestamp, end = _native_times(raw)
    return Line(number, "json", path.name, timestamp, end, raw)


def _from_capture(number: int, path: Path, message: CapturedMessage) -> Line:
    encoding = CAPTURE_ENCODINGS.get(message.encoding, message.encoding)
    if encoding.endswith("/traces") and any(mark in message.topic for mark in _LOGS_TOPIC):
        encoding = encoding.replace("/traces", "/logs")
    return Line(
        number,
        encoding,
        message.topic or path.name,
        message.timestamp,
        None,
        decode_value(path, message),
    )


def captured_message(path: Path, raw: bytes) -> CapturedMessage:
    """A line that must be one. Raises UnreadableFile."""
    try:
        return _captured.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UnreadableFile(
            f"{path}: not a captured message ({error}); `monitor topics dump` writes them"
        ) from error


def decode_value(path: Path, message: CapturedMessage) -> bytes:
    """The message's bytes. Raises UnreadableFile where they are not base64: a broken capture, not a span."""
    try:
        return base64.b64decode(message.value_b64 or "", validate=True)
    except ValueError as error:
        raise UnreadableFile(
            f"{path}: value_b64 at offset {message.offset} is not base64 ({error}); capture it again"
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
