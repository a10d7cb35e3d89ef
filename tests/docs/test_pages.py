"""What the written pages promise: links, examples and commands that are there, tables that are whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from monitor.alerting.content import ALERT_OF_REASON
from monitor.settings import Settings
from monitor.stream.tables import changelog_specs
from monitor.stream.topics import specs
from tests.replay.test_replay import run

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs/runbooks"
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", ROOT / "docs/architecture.md", *sorted(RUNBOOKS.glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).resolve().exists(), link


def test_the_line_in_the_readme_is_one_span_of_the_example() -> None:
    (block,) = re.findall(r"```json\n(.+?)```", README, re.DOTALL)
    examples = (ROOT / "examples/spans.jsonl").read_text("utf-8").splitlines()
    assert block.rstrip("\n") in examples
    schema = json.loads(run("schema", "span").stdout)
    for line in examples:
        jsonschema.validate(json.loads(line), schema)


def test_the_commands_of_the_readme_on_the_example_print_what_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    block = README[README.index("$ .venv/bin/monitor replay examples") :]
    block = block[: block.index("```")]
    for part in block.removeprefix("$ ").split("\n$ "):
        command, *expected = part.rstrip("\n").split("\n")
        setting, words = re.fullmatch(r"(?:MONITOR_(\S+) )?\S*monitor (.+)", command).groups()  # type: ignore[union-attr]
        settings = dict([setting.split("=")]) if setting else {}
        done = run(*words.split(), **settings)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[: len(expected)] == expected


def test_the_table_of_topics_is_what_is_created() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `monitor.")]
    settings = Settings()
    created = {spec.name for spec in (*specs(settings), *changelog_specs(settings))}
    assert set(re.findall(r"`(monitor\.[\w-]+)`", "".join(rows))) == created


def test_the_index_of_the_runbooks_has_each_once() -> None:
    index = (RUNBOOKS / "README.md").read_text("utf-8")
    listed = re.findall(r"^- \[(\w+)\]\(\1\.md\)", index, re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in RUNBOOKS.glob("AgentMonitor*.md"))


def test_the_runbook_of_an_incident_begins_with_the_incident() -> None:
    for path in sorted(RUNBOOKS.glob("AgentMonitor*.md")):
        text = path.read_text("utf-8")
        assert "topics dump monitor.incidents" not in text, path.name
        if path.stem in ALERT_OF_REASON.values():
            assert "```sh\nmonitor incidents show $INCIDENT\n" in text, path.name


def test_names_in_commands_are_explained_before_one_begins() -> None:
    index = (RUNBOOKS / "README.md").read_text("utf-8")
    for path in sorted(RUNBOOKS.glob("AgentMonitor*.md")):
        for name in re.findall(r"\$[A-Z]+\b", path.read_text("utf-8")):
            assert f"`{name}`" in index, (path.name, name)
