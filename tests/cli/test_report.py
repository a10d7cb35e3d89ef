"""The report of a replay, for people."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from monitor.cli.report import Report
from monitor.drift.report import DriftReport, MixReport, Sizes
from monitor.replay.runner import Summary
from tests.alerting.incidents import incident
from tests.replay.test_replay import run, span, write


def test_the_first_line_says_what_would_have_paged(tmp_path: Path) -> None:
    lines = [span(2, at=0, trace=n, score=0.9) for n in (1, 2, 3)]
    lines.append(span(2, at=0, trace=4, score=0.9, role="retrieval"))
    lines.append(span(2, at=0, trace=5))
    done = run("replay", str(write(tmp_path / "a", *lines)))
    assert done.stdout.splitlines()[0] == (
        "3 pages (critical) in 1 alert by service, reason and policy, 1 warning in 5 traces"
    )


def test_what_is_in_shadow_is_no_page() -> None:
    report = Report(page_scorers=("judge",))
    report.add(incident("a"))
    assert report.headline() == (
        "0 pages (critical), 0 warnings in 0 traces; 1 incident in shadow: not of MONITOR_PAGE_SCORERS"
    )


def test_dead_letters_are_shown_three_of_a_reason_by_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    files = [
        write(tmp_path / "a.jsonl", "", "{", span(2, at=0), "{"),
        write(tmp_path / "more" / "a.jsonl", "{", "{"),
    ]
    done = run("replay", *map(str, files))
    assert done.returncode == 0
    shown = done.stdout.replace("\n", " ")
    for where in (f"{files[0]}:2 ", f"{files[0]}:4 ", f"{files[1]}:1 "):
        assert where in shown
    assert f"{files[1]}:2" not in shown
    letters = [
        json.loads(line)
        for line in run("replay", "--json", *map(str, files)).stdout.splitlines()
        if '"dead_letter"' in line
    ]
    assert [letter["source"][:3] for letter in letters] == [
        ["a.jsonl", 0, 2],
        ["a.jsonl", 0, 4],
        ["a.jsonl", 1, 1],
        ["a.jsonl", 1, 2],
    ]


@pytest.mark.parametrize(
    ("content", "json_flag"), [("\n\n", []), ("{\n[]\n", []), ("{\n", ["--json"])]
)
def test_nothing_read_is_said_and_exit_code_1(
    tmp_path: Path, content: str, json_flag: list[str]
) -> None:
    path = tmp_path / "a"
    path.write_text(content)
    done = run("replay", *json_flag, str(path))
    assert done.returncode == 1
    assert ("no line is a span" if content.strip() else "the files are empty") in done.stderr


def test_roles_that_are_not_known_and_wrong_units_of_time_are_told(tmp_path: Path) -> None:
    seconds = {"start_unix_nano": 1_800_000_000, "end_unix_nano": 1_800_000_001}
    path = write(
        tmp_path / "a",
        span(2, at=0, role="tool"),
        span(3, at=1, role="tool"),
        span(4, at=2, **seconds),
    )
    said = run("replay", str(path)).stdout
    assert "roles not known, their spans are `unknown`: tool x2" in said
    assert "1 span before the year 2000" in said
    fine = run("replay", str(write(tmp_path / "b", span(2, at=0)))).stdout
    assert "not known" not in fine
    assert "year 2000" not in fine


def test_drift_and_mix_say_why() -> None:
    report = Report()
    common: dict[str, Any] = {
        "report_id": "r",
        "service": "s",
        "scorer": "j",
        "reason": "x",
        "traces": Sizes(1, 1),
    }
    report.add(
        DriftReport(
            **common, scorer_version="1", role="planner", reference="m-0", current="m-1", decision="not_yet",
            why="too few traces", spans=Sizes(1, 1),
        )
    )  # fmt: skip
    report.add(
        MixReport(
            **common,
            reference="m-1",
            current="m-1",
            gate="unknown",
            why="no past",
            comparison="past",
        )
    )
    console = Console(file=io.StringIO(), width=200)
    report.print(console, Summary())
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("m-0 → m-1", "too few traces", "m-1: its past → its latest", "no past"):
        assert words in said


def test_a_gzipped_file_by_any_name(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(gzip.compress(span(2, at=0).encode()))
    assert "1 span," in run("replay", str(path)).stdout
