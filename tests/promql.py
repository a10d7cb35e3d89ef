"""PromQL as data: which series with which labels an expression asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from dashboards.counting import increase
from monitor.telemetry import Telemetry

RULES = Path(__file__).resolve().parents[1] / "deploy/prometheus/rules"
# Labels that Prometheus adds to what it scrapes.
SCRAPED = frozenset({"instance", "job"})


def rules() -> list[dict[str, Any]]:
    """All rules of all files, in order."""
    return [
        rule
        for path in sorted(RULES.glob("*.yml"))
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]
        for rule in group["rules"]
    ]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


@cache
def known_labels() -> dict[str, frozenset[str]]:
    """Series name -> labels that it can have: declared metrics, recorded ones, and Prometheus' own ALERTS."""
    known = {
        name: frozenset(spec.labels) | SCRAPED | ({"le"} if name.endswith("_bucket") else set())
        for spec in Telemetry().specs
        for name in spec.series_names()
    }
    known["ALERTS"] = frozenset({"alertname", "alertstate", "severity"})
    for rule in rules():
        if "record" in rule:
            # What it sums by; where it sums nothing, what the recorded series before it have.
            groups = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
            named = frozenset(label.strip() for group in groups for label in group.split(","))
            known[rule["record"]] = named or frozenset().union(
                *(labels for name, labels in known.items() if name in rule["expr"])
            )
    return known


def plain_counting(expression: str) -> list[str]:
    """Counters of an expression under a `rate` or `increase` that misses the first sample of a series."""
    text = " ".join(expression.split())
    found = []
    for series, window in re.findall(r"\b(?:rate|increase)\(([^\[\]]+)\[([^\]]+)\]\)", text):
        whole = increase(series, window)
        if (
            text.count(whole) != len(re.findall(rf"increase\({re.escape(series)}\[", text))
            or f"rate({series}[" in text
        ):
            found.append(series)
    return found


def walk(node: Any) -> Iterator[Any]:
    """A parsed expression and all below it."""
    yield node
    for name in ("expr", "lhs", "rhs", "args", "param", "vector_selector", "vs"):
        below = getattr(node, name, None)
        for child in below if isinstance(below, list) else [below]:
            if child is not None and not isinstance(child, (str, int, float)):
                yield from walk(child)


def faults(expression: str) -> list[str]:
    """What of a query our own registry does not know: names and labels, in matchers and groupings."""
    # Grafana's variables stand where PromQL has a duration or a string.
    text = re.sub(r"\$__rate_interval|\$__range|\$__interval", "5m", expression)
    tree = promql_parser.parse(text)
    known = known_labels()
    found: list[str] = []
    asked: set[str] = set()
    for node in walk(tree):
        if isinstance(node, promql_parser.VectorSelector):
            labels = known.get(node.name)
            if labels is None:
                found.append(f"no metric is called {node.name}")
                continue
            asked |= labels
            found += [
                f"{node.name} has no label {matcher.name}"
                for matcher in node.matchers.matchers
                if matcher.name not in labels and matcher.name != "__name__"
            ]
    for node in walk(tree):
        modifier = getattr(node, "modifier", None)
        grouped = list(getattr(modifier, "labels", None) or [])
        matching = getattr(modifier, "matching", None)
        grouped += list(getattr(matching, "labels", None) or [])
        found += [f"nothing here has the label {name}" for name in grouped if name not in asked]
    return found
