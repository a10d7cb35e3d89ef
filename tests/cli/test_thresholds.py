"""``monitor thresholds suggest`` on files: the proposal holds on a replay of the same files."""

from __future__ import annotations

import json
from pathlib import Path

from tests.replay.test_replay import T0, replay, run, write

DAY = 86_400_000


def line(number: int, score: float | None, at: int, **more: object) -> str:
    return json.dumps(
        {
            "trace_id": f"{number + 1:032x}",
            "span_id": "0a" * 8,
            "parent_span_id": None,
            "service": "bot",
            "name": "call",
            "role": "tool_call",
            "model_version": "m-1",
            "start_unix_nano": (T0 + at - 1) * 1_000_000,
            "end_unix_nano": (T0 + at) * 1_000_000,
            "scores": [] if score is None else [{"scorer": "s", "version": "1", "value": score}],
            "attributes": {},
        }
        | more
    )


def traffic(path: Path, count: int = 200) -> Path:
    """Two days, scores .000 to .199 in no order; those over .18 are labelled."""
    lines = []
    for n in range(count):
        score = (n * 7 % count) / 1000
        attributes = {"reviewed.bad": "yes"} if score > 0.18 else {"reviewed.bad": "no"}
        lines.append(line(n, score, n * 2 * DAY // (count - 1), attributes=attributes))
    return write(path, *lines)


def suggested(*arguments: str) -> dict[str, object]:
    done = run("thresholds", "suggest", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    record: dict[str, object] = json.loads(done.stdout)
    return record


def test_the_proposal_pages_on_a_replay_as_often_as_it_says(tmp_path: Path) -> None:
    data = traffic(tmp_path / "spans.jsonl")
    found = suggested(str(data), "--pages-per-day", "10", "--label", "reviewed.bad")
    assert found["days"] == 2.0
    assert found["environment"] == {"MONITOR_THRESHOLD__TOOL_CALL": "0.1791"}
    assert (found["pages"], found["pages_now"]) == (20, 0)
    assert (found["labelled"], found["missed"]) == (19, 0)
    records = replay(data, THRESHOLD__TOOL_CALL="0.1791")
    pages = {r["trace_id"] for r in records if r["kind"] == "incident"}
    assert len(pages) == 20


def test_what_is_missed_is_shown_with_its_size(tmp_path: Path) -> None:
    data = traffic(tmp_path / "spans.jsonl")
    done = run(
        "thresholds", "suggest", str(data), "--pages-per-day", "5", "--label", "reviewed.bad"
    )
    assert "9 of 19 (27–68 %)" in done.stdout
    assert "\nMONITOR_THRESHOLD__TOOL_CALL=0.1891\n" in done.stdout
    assert "Too few" not in done.stdout


def test_without_labels_the_exceedances_are_shown(tmp_path: Path) -> None:
    data = traffic(tmp_path / "spans.jsonl")
    done = run("thresholds", "suggest", str(data), "--pages-per-day", "5")
    assert "what the proposal misses is not known" in done.stdout
    (row,) = [text for text in done.stdout.splitlines() if text.startswith("0.1 ")]
    assert row.split() == ["0.1", "100"]


def test_labels_may_come_from_a_file(tmp_path: Path) -> None:
    data = traffic(tmp_path / "spans.jsonl")
    rows = [{"trace_id": f"{n + 1:032x}", "bad": n == 0} for n in range(200)]
    labels = write(tmp_path / "labels.jsonl", *map(json.dumps, rows))
    found = suggested(str(data), "--labels", str(labels), "--label", "bad")
    assert (found["labelled"], found["missed"]) == (1, 1)


def test_few_data_are_said_to_be_few(tmp_path: Path) -> None:
    data = traffic(tmp_path / "spans.jsonl", 20)
    done = run("thresholds", "suggest", str(data), "--pages-per-day", "1")
    assert "Too few data for tool_call: rests on 2 traces over it" in done.stdout
    done = run("thresholds", "suggest", str(data), "--pages-per-day", "1", "--days", "0.5")
    assert "1 pages a day are none in 0.5 days" in done.stdout


def test_a_wish_that_no_threshold_grants_is_said_to_be_one(tmp_path: Path) -> None:
    data = write(tmp_path / "ones.jsonl", *(line(n, 1.0, n * DAY // 10) for n in range(11)))
    done = run("thresholds", "suggest", str(data), "--pages-per-day", "3")
    assert "No thresholds keep within the wish" in done.stdout
    assert "MONITOR_THRESHOLD__TOOL_CALL=1\n" in done.stdout


def test_what_cannot_be_answered_is_refused(tmp_path: Path) -> None:
    unscored = write(tmp_path / "unscored.jsonl", line(0, None, 0), line(1, None, DAY))
    moment = write(tmp_path / "moment.jsonl", line(0, 0.1, 0))
    for arguments, code, said in (
        ([str(unscored)], 1, "no trace with a score"),
        ([str(moment)], 2, "say with --days"),
        ([str(moment), "--labels", str(moment)], 2, "--labels: name the field"),
        (["--label", "x"], 2, "--label: verdicts have no attributes"),
    ):
        done = run("thresholds", "suggest", *arguments)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
