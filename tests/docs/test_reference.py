"""Generated pages are what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.reference import build
from monitor.settings import Settings
from monitor.telemetry import Telemetry


def test_the_committed_pages_are_what_the_code_says() -> None:
    assert build.main(["--check"]) == 0, "run `python -m docs.reference.build`"


def test_a_stale_page_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "rendered", lambda: {tmp_path / "settings.md": "new\n"})
    assert build.main(["--check"]) == 1
    assert build.main([]) == 0
    assert build.main(["--check"]) == 0


def test_every_setting_and_metric_stands_there_once() -> None:
    settings = re.findall(r"^\| `(MONITOR_\w+)` \|", build.settings_page(), re.MULTILINE)
    assert sorted(settings) == sorted(Settings.variables())
    metrics = re.findall(r"^\| `(agent_monitor_\w+)` \|", build.metrics_page(), re.MULTILINE)
    assert metrics == [spec.name for spec in Telemetry().specs]


def test_the_links_of_the_pages_lead_somewhere() -> None:
    for path, text in build.rendered().items():
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (path.parent / link).resolve().is_file(), link


def test_a_table_row_has_as_many_cells_as_its_head() -> None:
    """A name or text with a bar in it would shift the cells."""
    for text in build.rendered().values():
        width = 0
        for line in text.splitlines():
            cells = len(re.findall(r"(?<!\\)\|", line))
            if not line.startswith("|"):
                width = 0
            elif width == 0:
                width = cells
            else:
                assert cells == width, line
