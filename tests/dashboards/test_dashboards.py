"""Dashboards: committed as built, every query answerable, every panel explained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards import build
from monitor.telemetry import Telemetry
from monitor.telemetry.known import OPEN_LABELS
from tests.promql import faults, known_labels, plain_counting

BOARDS = {path.stem: json.loads(text) for path, text in build.rendered().items()}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels") or []


def queries(board: dict[str, Any]) -> Iterator[str]:
    for panel in panels(board):
        for target in panel.get("targets") or []:
            yield target["expr"]
    for annotation in board["annotations"]["list"]:
        if annotation.get("expr"):
            yield annotation["expr"]


QUERIES = [(name, query) for name, board in BOARDS.items() for query in queries(board)]


def test_the_committed_files_are_what_the_code_builds() -> None:
    assert build.main(["--check"]) == 0, "run `python -m dashboards.build`"
    assert {path.name for path in build.OUT.glob("*.json")} == {
        path.name for path in build.rendered()
    }


def test_a_stale_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "OUT", tmp_path)
    assert build.main(["--check"]) == 1
    assert build.main([]) == 0
    assert build.main(["--check"]) == 0
    next(tmp_path.glob("*.json")).write_text("{}")
    assert build.main(["--check"]) == 1


@pytest.mark.parametrize(
    ("board", "query"), QUERIES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(QUERIES)]
)
def test_a_query_asks_for_what_the_monitor_has(board: str, query: str) -> None:
    assert faults(query) == []


# Panels of a `rate` over counters with open labels, whose series are born while a worker runs, and why that is right.
MAY_MISS_A_FIRST_SAMPLE = {
    "agent_monitor_verdicts_total": "steady traffic: what a service does in the first seconds that it is known",
    "agent_monitor_unscored_traces_total": "as verdicts",
    "agent_monitor_scored_spans_total": "a share of two rates that begin together",
    "agent_monitor_unscored_spans_total": "a share of two rates that begin together",
    "agent_monitor_scalars_suppressed_total": "as verdicts",
    "agent_monitor_deliveries_total": "a post that failed is sent again and again",
    "agent_monitor_trace_score_bucket": "a distribution: one batch of many",
    "agent_monitor_trace_score_count": "a distribution: one batch of many",
    "agent_monitor_trace_spans_bucket": "a distribution: one batch of many",
}


def test_a_panel_counts_the_first_sample_of_a_series() -> None:
    """One incident of a policy is a series that is born at 1: no `increase` has seen it grow."""
    open_ended = {
        name
        for spec in Telemetry().specs
        if OPEN_LABELS & set(spec.labels)
        for name in spec.series_names()
    }
    missing = {
        re.split(r"[{\[]", series)[0] for _, query in QUERIES for series in plain_counting(query)
    }
    assert missing & (open_ended | {"agent_monitor_policy_incidents_total"}) == set(
        MAY_MISS_A_FIRST_SAMPLE
    )


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_readable(name: str) -> None:
    board = BOARDS[name]
    assert board["uid"] == name
    assert board["description"]
    shown = [panel for panel in panels(board) if panel["type"] != "row"]
    assert len(shown) >= 8
    assert len({panel["title"] for panel in shown}) == len(shown)
    for panel in shown:
        assert len(panel["description"]) > 15, panel["title"]
        assert panel["targets"], panel["title"]
        assert 0 < panel["gridPos"]["w"] <= 24
        if panel["type"] == "heatmap":
            assert panel["options"]["yAxis"]["unit"], panel["title"]
        else:
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(BOARDS[name]):
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("name", BOARDS)
def test_variables_exist_and_ask_for_what_there_is(name: str) -> None:
    board = BOARDS[name]
    defined = {variable["name"]: variable for variable in board["templating"]["list"]}
    text = json.dumps(board)
    used = set(re.findall(r"\$\{?([a-z]\w*)\}?", text))
    assert used <= set(defined), used - set(defined)
    for variable in defined.values():
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
            assert asked is not None
            assert asked[2] in known_labels()[asked[1]]


def test_no_board_rebuilds_a_mean_of_scores() -> None:
    for _, query in QUERIES:
        assert "trace_score_sum" not in query
        assert not re.search(r"\bavg\b.*trace_score", query)
