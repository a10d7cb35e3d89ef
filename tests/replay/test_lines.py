from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest

from monitor.replay import lines
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


def test_the_running_number_rises_over_all_files_and_coordinates_are_the_line_of_the_file(
    tmp_path: Path,
) -> None:
    files = [_lines(tmp_path / "a", "", SPAN, "  ", SPAN), _lines(tmp_path / "b", SPAN)]
    found = [line for line, _ in read(files)]
    assert [line.number for line in found] == [1, 2, 3]
    assert [(line.topic, line.partition, line.offset) for line in found] == [
        ("a", 0, 2),
        ("a", 0, 4),
        ("b", 1, 1),
    ]
    assert [line.where for line in found] == [f"{files[0]}:2", f"{files[0]}:4", f"{files[1]}:1"]


def test_a_line_that_is_cut_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_LIMIT", 10)
    path = _lines(tmp_path / "a", "x" * 25, "y")
    assert [(line.line, line.raw) for line in lines.raw_lines([path])] == [
        (1, b"x" * 10),
        (1, b"x" * 10),
        (1, b"x" * 5),
        (2, b"y"),
    ]


def test_compressed_files_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    packed = _lines(tmp_path / "spans.jsonl.gz", SPAN).rename(tmp_path / "spans.jsonl")
    plain = _lines(tmp_path / "plain", SPAN).rename(tmp_path / "plain.gz")
    empty = tmp_path / "empty"
    empty.touch()
    assert [line.end_ms for line, _ in read([packed, plain, empty])] == [1_800_000_000_000] * 2


def test_a_captured_message_keeps_its_own_coordinates_where_it_has_them(tmp_path: Path) -> None:
    known = {"topic": "t", "partition": 3, "offset": 9, "encoding": "json", "value_b64": "e30="}
    bare = {"encoding": "json", "value_b64": "e30="}
    tombstone = known | {"offset": 10, "value_b64": None}
    found = [line for line, _ in read([_lines(tmp_path / "x", known, bare, tombstone)])]
    assert [(line.topic, line.partition, line.offset, line.value) for line in found] == [
        ("t", 3, 9, b"{}"),
        ("x", 0, 2, b"{}"),
        ("t", 3, 10, None),
    ]


def test_a_capture_that_names_its_signal_is_believed_whatever_its_topic(tmp_path: Path) -> None:
    message = {"topic": "all_logs", "encoding": "otlp_proto/traces", "value_b64": ""}
    ((line, _),) = read([_lines(tmp_path / "x", message)])
    assert line.encoding == "otlp_proto/traces"


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


def test_a_value_that_is_no_base64_names_file_and_line(tmp_path: Path) -> None:
    path = _lines(tmp_path / "x", {"encoding": "json", "offset": 5, "value_b64": "%%"})
    with pytest.raises(UnreadableFile, match=r"x:1: value_b64"):
        list(read([path]))


def test_missing_and_truncated_files_are_errors_of_ours(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a dir")):
        with pytest.raises(UnreadableFile, match=f"cannot be read: {why}") as raised:
            list(read([path]))
        assert "?" not in str(raised.value)
    cut = _lines(tmp_path / "cut.gz", *[SPAN] * 200)
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(UnreadableFile, match=r"cannot be read: .*is the compressed file whole\?"):
        list(read([cut]))
