from __future__ import annotations

import base64
import json
from pathlib import Path

from monitor.codec import encode_fold_record
from monitor.model import Fragment, SettingsRecord, Tick
from monitor.trace.config import FoldSettings
from monitor.trace.fold import FOLD_VERSION
from tests.replay.test_replay import run, span
from tests.trace.folding import START, scored, tid


def spans_file(folder: Path) -> Path:
    path = folder / "spans.jsonl"
    lines = [
        span(1, at=0, parent=None),
        span(2, at=1, parent=1, score=0.95),
        span(3, at=2, parent=1),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def an_incident(path: Path) -> dict[str, object]:
    for line in run("replay", "--json", str(path)).stdout.splitlines():
        record: dict[str, object] = json.loads(line)
        if record["kind"] == "incident":
            return record
    raise AssertionError("no incident")


def dump_of(records: list[bytes]) -> str:
    lines = []
    for offset, raw in enumerate(records):
        message = {
            "topic": "monitor.fragments",
            "partition": 2,
            "offset": offset,
            "timestamp": START + 5_000 * offset,
            "timestamp_type": "LogAppendTime",
            "value_b64": base64.b64encode(raw).decode(),
        }
        lines.append(json.dumps(message))
    return "\n".join(lines) + "\n"


def logged() -> list[bytes]:
    content = FoldSettings()
    return [
        encode_fold_record(
            SettingsRecord(FOLD_VERSION, (0, 1), content.sha256, content.canonical())
        ),
        encode_fold_record(
            Fragment(tid("a"), (scored(0), scored(1, 0, 0.9, name="run shell"), scored(2, 1)))
        ),
        *[encode_fold_record(Tick())] * 4,
    ]


def test_an_incident_out_of_a_file_is_drawn_and_the_same_again(tmp_path: Path) -> None:
    path = spans_file(tmp_path)
    incident = an_incident(path)
    done = run("explain", str(incident["incident_id"]), str(path))
    assert done.returncode == 0, done.stderr
    argmax = str(incident["argmax_span_id"])
    [line] = [line for line in done.stdout.splitlines() if "argmax" in line]
    assert argmax in line
    assert "0.95" in line
    assert "same: the log gives this record again" in done.stdout


def test_a_trace_is_explained_by_its_verdict(tmp_path: Path) -> None:
    path = spans_file(tmp_path)
    done = run("explain", "--json", str(an_incident(path)["trace_id"]), str(path))
    assert done.returncode == 0, done.stderr
    explained = json.loads(done.stdout)
    assert explained["same"] is True
    assert explained["record"]["kind"] == "verdict"


def test_what_is_not_known_is_said_with_where_it_was_looked_for(tmp_path: Path) -> None:
    done = run("explain", "f" * 32, str(spans_file(tmp_path)))
    assert done.returncode == 1
    assert "in these files" in done.stderr
    assert "Traceback" not in done.stderr


def test_one_changed_byte_in_a_copied_log_is_shown(tmp_path: Path) -> None:
    whole, copied = tmp_path / "whole.jsonl", tmp_path / "copied.jsonl"
    records = logged()
    whole.write_text(dump_of(records))
    published = tmp_path / "published.jsonl"
    published.write_text(run("replay", "--json", "--fragments", str(whole)).stdout)
    records[1] = records[1].replace(b"run shell", b"run shelf")
    copied.write_text(dump_of(records))
    incident = [
        json.loads(line)
        for line in published.read_text().splitlines()
        if json.loads(line)["kind"] == "incident"
    ][-1]
    arguments = ("explain", incident["incident_id"], "--fragments", "--records", str(published))
    assert run(*arguments, str(whole)).returncode == 0
    done = run(*arguments, str(copied))
    assert done.returncode == 1
    assert "fragment 2@1 is not the one that was judged" in done.stdout
    [row] = [
        line for line in done.stdout.splitlines() if "run shelf" in line and "evidence" in line
    ]
    assert "run shell" in row


def test_fragments_that_are_gone_are_named(tmp_path: Path) -> None:
    whole, rest = tmp_path / "whole.jsonl", tmp_path / "rest.jsonl"
    whole.write_text(dump_of(logged()))
    published = tmp_path / "published.jsonl"
    published.write_text(run("replay", "--json", "--fragments", str(whole)).stdout)
    lines = whole.read_text().splitlines()
    rest.write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    done = run("explain", tid("a"), "--fragments", "--records", str(published), str(rest))
    assert done.returncode == 2
    assert "offsets 1 of partition 2" in done.stderr


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    hostile = json.loads(span(1, at=0, parent=None, score=0.95))
    hostile["name"] = "\x1b[2Jall is well\u202e"
    path.write_text(json.dumps(hostile) + "\n")
    done = run("explain", str(an_incident(path)["incident_id"]), str(path))
    assert "\x1b[2J" not in done.stdout
    assert "\u202e" not in done.stdout
    assert "all is well" in done.stdout


def test_a_verdict_that_leaves_out_the_fragment_that_speaks_against_it_is_not_the_same(
    tmp_path: Path,
) -> None:
    published = tmp_path / "published.jsonl"
    records = logged()
    records.insert(2, encode_fold_record(Fragment(tid("a"), (scored(5, 0, 0.99),))))
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    whole.write_text(dump_of(records))
    part.write_text(dump_of([*records[:2], encode_fold_record(Tick()), *records[3:]]))
    published.write_text(run("replay", "--json", "--fragments", str(part)).stdout)
    done = run("explain", tid("a"), "--fragments", "--records", str(published), str(whole))
    assert done.returncode == 1
    assert "fragments of this life that no record lists: @2" in done.stdout


def test_a_scorer_whose_name_is_markup_does_not_break_the_table(tmp_path: Path) -> None:
    whole, published = tmp_path / "whole.jsonl", tmp_path / "published.jsonl"
    records = logged()
    hostile = scored(1, 0, 0.9, scorer="j[/x]\x1b]0;gone\x07")
    records[1] = encode_fold_record(Fragment(tid("a"), (scored(0), hostile)))
    whole.write_text(dump_of(records))
    text = run("replay", "--json", "--fragments", str(whole)).stdout
    published.write_text(text.replace('"gate":{', '"gate":{"k[/x]\\u001b]0;":"shifted",'))
    done = run("explain", tid("a"), "--fragments", "--records", str(published), str(whole))
    assert "Traceback" not in done.stderr
    assert "\x1b]0;" not in done.stdout
