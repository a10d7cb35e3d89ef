"""``monitor policy``: what is in force, and what a file does on recorded traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from monitor.policy.load import BUILTIN
from tests.replay.test_replay import run, write

BUILTIN_FILE = "monitor/policy/builtin.toml"

LEAK = """
[[policy]]
name = "leak_by_ticket"
policy_class = "tool_chaining"
  [[policy.step]]
  name = "read"
  tags = ["private_read"]
  min_score = 0.2
  [[policy.step]]
  name = "ticket"
  tags = ["write"]
"""


def line(number: int, parent: int | None, tool: str, score: float | None, at: int) -> str:
    return json.dumps(
        {
            "trace_id": "ab" * 16,
            "span_id": f"{number:016x}",
            "parent_span_id": None if parent is None else f"{parent:016x}",
            "service": "bot",
            "name": f"execute_tool {tool}",
            "role": "tool_call" if parent else "planner",
            "model_version": "m-1",
            "start_unix_nano": at * 1_000_000_000,
            "end_unix_nano": at * 1_000_000_000 + 1_000_000,
            "scores": [] if score is None else [{"scorer": "s", "version": "1", "value": score}],
            "attributes": {"gen_ai.tool.name": tool} if parent else {},
        }
    )


def trace(read_score: float) -> list[str]:
    return [
        line(1, None, "", None, 1),
        line(2, 1, "read_email", read_score, 2),
        line(3, 1, "create_ticket", 0.01, 4),
    ]


def test_a_match_and_a_near_one_are_told_apart(tmp_path: Path) -> None:
    file = write(tmp_path / "p.toml", LEAK)
    data = write(tmp_path / "spans.jsonl", *trace(0.25))
    done = run("policy", "test", str(file), str(data))
    assert done.returncode == 0, done.stderr
    assert "leak_by_ticket  1       0            0" in done.stdout
    assert f"critical {'ab' * 16} leak_by_ticket: steps read, ticket in order" in done.stdout
    data = write(tmp_path / "low.jsonl", *trace(0.15))
    done = run("policy", "test", str(file), str(data))
    assert "score 0.15 of span 0000000000000002, step 'read' needs 0.2" in done.stdout
    assert "read 1" in done.stdout.splitlines()[1]  # no span of the trace fits it


def test_json_has_a_record_a_trace_and_the_summary_of_what_was_read(tmp_path: Path) -> None:
    file = write(tmp_path / "p.toml", LEAK)
    data = tmp_path / "spans.jsonl.gz"
    data.write_bytes(gzip.compress("\n".join([*trace(0.25), "not a span"]).encode()))
    done = run("policy", "test", str(file), str(data), "--json")
    one, summary = map(json.loads, done.stdout.splitlines())
    assert [f["policy"] for f in one["findings"]] == ["leak_by_ticket"]
    assert one["findings"][0]["span_ids"] == ["0000000000000002", "0000000000000003"]
    assert (summary["lines"], summary["spans"], summary["dead_letters"]) == (4, 3, 1)


def test_captured_messages_are_read_too(shared_data: Path) -> None:
    data = shared_data / "otlp/mixed_fleet.otlp_proto.jsonl.gz"
    done = run("policy", "test", BUILTIN_FILE, str(data), "--json")
    assert done.returncode == 0, done.stderr
    *traces, summary = map(json.loads, done.stdout.splitlines())
    assert summary["spans"] > len(traces) > 0


def test_the_builtin_file_gives_what_replay_gives(shared_data: Path) -> None:
    data = str(shared_data / "agentdojo/spans.jsonl.gz")
    *tried, _ = map(
        json.loads, run("policy", "test", BUILTIN_FILE, data, "--json").stdout.splitlines()
    )
    replayed = [json.loads(text) for text in run("replay", "--json", data).stdout.splitlines()]
    assert {(one["trace_id"], f["policy"]) for one in tried for f in one["findings"]} == {
        (r["trace_id"], r["policy"]) for r in replayed if r["kind"] == "incident" and r["policy"]
    }
    for one in tried:
        assert not {f["policy"] for f in one["findings"]} & {n["policy"] for n in one["near"]}


def test_a_rejected_identity_is_said_to_be_one(tmp_path: Path) -> None:
    file = write(tmp_path / "p.toml", LEAK)
    data = write(tmp_path / "spans.jsonl", *trace(0.25), line(3, 1, "send_email", 0.02, 5))
    done = run("policy", "test", str(file), str(data))
    assert "1 of them have a rejected identity" in done.stdout


def test_a_wrong_policy_file_is_refused_with_every_fault(tmp_path: Path) -> None:
    wrong = LEAK.replace('name = "read"', 'name = "ticket"').replace("0.2", "2.0")
    file = write(tmp_path / "p.toml", wrong)
    done = run("policy", "test", str(file), str(file))
    assert done.returncode == 2
    assert "min_score is 2.0, allowed is 0 to 1" in done.stderr
    assert "an earlier step has this name" in done.stderr
    assert str(file) in done.stderr
    assert "Traceback" not in done.stderr


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.toml", "")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    good = write(tmp_path / "p.toml", LEAK)
    nothing = write(tmp_path / "nothing.jsonl", "no span")
    for file, data, code, said in (
        (tmp_path / "gone.toml", nothing, 2, "No such file"),
        (binary, nothing, 2, "is not UTF-8"),
        (empty, nothing, 2, "no [[policy]] in it"),
        (good, tmp_path / "gone.jsonl", 2, "cannot be read"),
        (good, nothing, 1, "no line is a span"),
    ):
        done = run("policy", "test", str(file), str(data))
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_list_shows_what_is_in_force(tmp_path: Path) -> None:
    plain = run("policy", "list").stdout
    assert [policy.name for policy in BUILTIN if policy.name not in plain] == []
    assert "4 policies, built-in" in plain
    file = write(tmp_path / "p.toml", LEAK)
    own = run("policy", "list", POLICIES=str(file)).stdout
    assert "read (private_read ≥ 0.2) → ticket (write)" in own
    assert f"1 policies, {file}" in own
    (one,) = run("policy", "list", "--json", POLICIES=str(file)).stdout.splitlines()
    assert json.loads(one)["steps"][0]["min_score"] == 0.2
