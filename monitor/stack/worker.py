"""One monitor worker as a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from monitor.stack.http import HttpService
from monitor.stack.process import ChildProcess


class Worker(HttpService):
    """``monitor worker`` with the settings given, and none of our own environment's ``MONITOR_*``."""

    name: ClassVar[str] = "worker"
    start_timeout: ClassVar[float] = 60.0
    ready_path: ClassVar[str] = "/readyz"

    def __init__(
        self, settings: Mapping[str, str], data_dir: Path | None = None, *, port: int | None = None
    ) -> None:
        """`settings`: ``MONITOR_*`` variables but those of its web address."""
        super().__init__(data_dir, port)
        self.settings = {
            **settings,
            "MONITOR_WEB_HOST": "127.0.0.1",
            "MONITOR_WEB_PORT": str(self.port),
        }

    def spawn(self) -> ChildProcess:
        """Start it and return at once: for what happens to a worker before it is ready."""
        self._child = self._new_child()
        self._child.start()
        return self._child

    def _prepare(self) -> Sequence[str | Path]:
        return (sys.executable, "-m", "monitor", "worker")

    def _environment(self) -> Mapping[str, str]:
        others = {
            name: value for name, value in os.environ.items() if not name.startswith("MONITOR_")
        }
        return {**others, **self.settings}
