"""The page on policies: its policy loads, its commands print what it says, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from monitor.intake.tags import (
    ACCESS,
    DELETE,
    EGRESS,
    EXECUTE,
    MONEY,
    PRIVATE_READ,
    UNTRUSTED_READ,
    WRITE,
)
from monitor.policy.load import load_policies
from monitor.policy.rules import UNTAGGED
from tests.replay.test_replay import run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/policies.md"
TEXT = PAGE.read_text("utf-8")


def test_the_policy_of_the_page_is_the_example() -> None:
    (block,) = re.findall(r"```toml\n(.+?)```", TEXT, re.DOTALL)
    (shown,) = load_policies(block)
    (example,) = load_policies((ROOT / "examples/policies.toml").read_text("utf-8"))
    assert (shown.name, shown.steps) == (example.name, example.steps)


@pytest.mark.parametrize("block", re.findall(r"```text\n\$ (.+?)```", TEXT, re.DOTALL))
def test_a_command_prints_what_the_page_says(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command, *expected = block.rstrip("\n").split("\n")
    setting, words = re.fullmatch(r"(?:MONITOR_(\S+) )?monitor (.+)", command).groups()  # type: ignore[union-attr]
    done = run(*words.split(), **dict([setting.split("=")] if setting else []))
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()][: len(expected)] == expected


def test_every_tag_is_named() -> None:
    tags = (PRIVATE_READ, UNTRUSTED_READ, EGRESS, EXECUTE, MONEY, ACCESS, WRITE, DELETE, UNTAGGED)
    assert [tag for tag in tags if f"`{tag}`" not in TEXT] == []


@pytest.mark.parametrize("page", ["policies.md", "evaluation.md", "identity.md"])
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", (PAGE.parent / page).read_text("utf-8")):
        assert (PAGE.parent / link).resolve().exists(), link
