"""A real Prometheus on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from monitor.stack.http import HttpService
from monitor.stack.process import find_binary


class Prometheus(HttpService):
    """One Prometheus that scrapes the targets, evaluates the rules, and alerts the Alertmanagers."""

    name: ClassVar[str] = "prometheus"
    start_timeout: ClassVar[float] = 30.0

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        targets: Mapping[str, Sequence[str]],
        rule_files: Sequence[Path] = (),
        alertmanager_urls: Sequence[str] = (),
        interval: str = "1s",
        port: int | None = None,
    ) -> None:
        """`targets`: job -> addresses (`host:port`). `interval`: of scrapes and of rule evaluations;
        the default suits a demo of a minute, not production."""
        missing = [str(path) for path in rule_files if not path.is_file()]
        if missing:
            raise FileNotFoundError(
                f"Prometheus rule files that are not there: {', '.join(missing)}"
            )
        self._binary = find_binary("prometheus")
        super().__init__(data_dir, port)
        self._config = prometheus_config(
            targets=targets,
            rule_files=rule_files,
            alertmanager_urls=alertmanager_urls,
            interval=interval,
        )

    def _prepare(self) -> Sequence[str | Path]:
        config = self.data_dir / "prometheus.yml"
        config.write_text(self._config, encoding="utf-8")
        return (
            self._binary,
            f"--config.file={config}",
            f"--storage.tsdb.path={self.data_dir / 'data'}",
            f"--web.listen-address={self._address}",
            # The exemplars carry the trace id of a bucket's worst span.
            "--enable-feature=exemplar-storage",
        )


def prometheus_config(
    *,
    targets: Mapping[str, Sequence[str]],
    rule_files: Sequence[Path],
    alertmanager_urls: Sequence[str],
    interval: str,
) -> str:
    config = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(path.resolve()) for path in rule_files],
        "alerting": {"alertmanagers": [_alertmanager(url) for url in alertmanager_urls]},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
            for job, addresses in targets.items()
        ],
    }
    return json.dumps(config, indent=2)  # JSON is YAML


def _alertmanager(url: str) -> dict[str, object]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is no Alertmanager URL: it must look like http://127.0.0.1:9093")
    return {
        "scheme": parts.scheme,
        "path_prefix": parts.path or "/",
        "static_configs": [{"targets": [parts.netloc]}],
    }
