"""Write every dashboard as Grafana takes it: ``python -m dashboards.build [--check]``.

``--check`` writes nothing and exits 1, naming them, where a file is not what the code builds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import drift, incidents, overview, pipeline

OUT: Final = Path(__file__).parent / "json"
BOARDS: Final[dict[str, Callable[[], dashboard.Dashboard]]] = {
    "overview": overview.build,
    "drift": drift.build,
    "incidents": incidents.build,
    "pipeline": pipeline.build,
}


def rendered() -> dict[Path, str]:
    """File -> JSON text, keys sorted so that a change of the builder shows as few lines."""
    return {
        OUT / f"agent-monitor-{key}.json": json.dumps(
            build().build(), cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False
        )
        + "\n"
        for key, build in BOARDS.items()
    }


def main(arguments: list[str]) -> int:
    files = rendered()
    if "--check" in arguments:
        stale = [
            str(path)
            for path, text in files.items()
            if not path.is_file() or path.read_text("utf-8") != text
        ]
        sys.stderr.writelines(
            f"{path} is stale: run `python -m dashboards.build`\n" for path in stale
        )
        return 1 if stale else 0
    OUT.mkdir(exist_ok=True)
    for path, text in files.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
