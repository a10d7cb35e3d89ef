"""Write the generated reference pages: ``python -m docs.reference.build [--check]``.

``--check`` writes nothing and exits 1, naming them, where a page is not what the code says.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import yaml

from monitor.alerting.content import ALERT_NAMES
from monitor.intake.reference import reference_markdown as conventions_page
from monitor.settings.reference import reference_markdown as settings_page
from monitor.telemetry.reference import reference_markdown as metrics_page

OUT: Final = Path(__file__).parent
_RULES: Final = OUT.parents[1] / "deploy/prometheus/rules"

_ALERTS_HEAD: Final = """\
# Alerts

Each has a runbook. `critical` wakes somebody, `warning` waits for the morning, `info` is for a channel.

## Pushed by the monitor

Incidents with their evidence, straight to every Alertmanager of `MONITOR_ALERTMANAGER_URLS`. Their severity is the
incident's own. They resolve `MONITOR_INCIDENT_QUIET` after the last incident of their group.

"""


def alerts_page() -> str:
    """Pushed alerts, then the rules of deploy/prometheus/rules in their order."""
    parts = [_ALERTS_HEAD]
    parts += [f"- [{name}](../runbooks/{name}.md): {_meaning(name)}\n" for name in ALERT_NAMES]
    for path in sorted(_RULES.glob("*.yml")):
        text = path.read_text("utf-8")
        rules: list[dict[str, Any]] = [
            rule
            for group in yaml.safe_load(text)["groups"]
            for rule in group["rules"]
            if "alert" in rule
        ]
        if not rules:
            continue
        parts.append(
            f"\n## Prometheus rules: {path.name}\n\n| alert | severity | after | fires when |\n|---|---|---|---|\n"
        )
        for rule in rules:
            name, severity = rule["alert"], rule["labels"]["severity"]
            expression = " ".join(rule["expr"].split()).replace("|", "\\|")
            parts.append(
                f"| [{name}](../runbooks/{name}.md) | {severity} | {rule.get('for', '0s')} | `{expression}` |\n"
            )
    return "".join(parts)


def _meaning(name: str) -> str:
    """First sentence of the runbook."""
    text = (OUT.parent / "runbooks" / f"{name}.md").read_text("utf-8")
    paragraph = " ".join(text.split("## Meaning", 1)[1].split("##", 1)[0].split())
    return paragraph.split(". ", 1)[0].rstrip(".") + "."


def rendered() -> dict[Path, str]:
    return {
        OUT / "settings.md": settings_page(),
        OUT / "metrics.md": metrics_page(),
        OUT / "alerts.md": alerts_page(),
        OUT / "conventions.md": conventions_page(),
    }


def main(arguments: list[str]) -> int:
    pages = rendered()
    if "--check" in arguments:
        stale = [
            path
            for path, text in pages.items()
            if not path.is_file() or path.read_text("utf-8") != text
        ]
        sys.stderr.writelines(
            f"{path} is stale: run `python -m docs.reference.build`\n" for path in stale
        )
        return 1 if stale else 0
    for path, text in pages.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
