"""Write what is generated here: ``python deploy/kubernetes/build.py [--check]``.

The rules of deploy/prometheus as one PrometheusRule. ``--check`` writes nothing and exits 1 where it is not what they say.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import yaml

_HERE: Final = Path(__file__).parent
_RULES: Final = _HERE.parent / "prometheus/rules"
OUT: Final = _HERE / "prometheus-operator/prometheus-rule.yaml"
_HEAD: Final = "# Written by deploy/kubernetes/build.py from deploy/prometheus/rules: change those, and run it.\n"
_LINE: Final = 10_000  # no expression is broken: a diff shows what changed


def prometheus_rule() -> str:
    """The manifest, all groups in the order of their files."""
    groups: list[dict[str, Any]] = []
    for path in sorted(_RULES.glob("*.yml")):
        groups += yaml.safe_load(path.read_text("utf-8"))["groups"]
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "agent-monitor"},
        "spec": {"groups": groups},
    }
    return _HEAD + yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=_LINE)


def main(arguments: list[str]) -> None:
    text = prometheus_rule()
    if arguments != ["--check"]:
        OUT.write_text(text, "utf-8")
    elif not OUT.exists() or OUT.read_text("utf-8") != text:
        sys.exit(f"{OUT} is not what deploy/prometheus/rules say: run python {__file__}")


if __name__ == "__main__":
    main(sys.argv[1:])
