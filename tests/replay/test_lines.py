from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest

from monitor.replay.lines import UnreadableFile, read

SPAN = {"trace_id": "a" * 32, "span_id": "b" * 16, "end_unix_nano": 1_800_000_000_000_000_000}


def _lines(path: Path, *lines: object) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["spans.jsonl", "spans.jsonl.gz"])
def test_native_lines_plain_and_compressed(tmp_path: Path, name: str) -> None:
    path = _lines(tmp_path / name, SPAN, "", {**SPAN, "timestamp": 7})
    first, second = (line for line, _ in read([path]))
    assert (first.number, first.encoding, first.timestamp_ms, first.end_ms) == (
        1,
        "json",
        None,
        1_800_000_000_000,
    )
    assert (second.number, second.timestamp_ms) == (2, 7)


def test_lines_are_counted_over_all_files(tmp_path: Path) -> None:
    files = [_lines(tmp_path / "a", SPAN), _lines(tmp_path / "b", SPAN)]
    assert [line.number for line, _ in read(files)] == [1, 2]


def test_captured_messages_are_recognised(tmp_path: Path) -> None:
    value = base64.b64encode(b"\x0a\x00").decode()
    message = {
        "topic": "otlp_spans",
        "partition": 3,
        "offset": 9,
        "timestamp": 11,
        "encoding": "otlp_proto",
        "value_b64": value,
    }
    logs = {**message, "topic": "otlp_logs"}
    found = [line for line, _ in read([_lines(tmp_path / "x", message, logs)])]
    assert [(line.encoding, line.topic, line.timestamp_ms, line.value) for line in found] == [
        ("otlp_proto/traces", "otlp_spans", 11, b"\x0a\x00"),
        ("otlp_proto/logs", "otlp_logs", 11, b"\x0a\x00"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        "null",
        '{"end_unix_nano": "x"}',
        '{"value_b64": 1}',
        "\ud83d".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_a_broken_line_is_handed_on_to_intake(tmp_path: Path, line: str) -> None:
    ((found, _),) = read([_lines(tmp_path / "x", line)])
    assert (found.encoding, found.end_ms) == ("json", None)


def test_a_value_that_is_no_base64_names_file_and_offset(tmp_path: Path) -> None:
    path = _lines(tmp_path / "x", {"encoding": "json", "offset": 5, "value_b64": "%%"})
    with pytest.raises(UnreadableFile, match=r"x: value_b64 at offset 5"):
        list(read([path]))


def test_missing_and_truncated_files_are_errors_of_ours(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="cannot be read"):
        list(read([tmp_path / "none"]))
    cut = _lines(tmp_path / "cut.gz", *[SPAN] * 200)
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(UnreadableFile, match="cannot be read"):
        list(read([cut]))
