from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def promtool(require_binary: Callable[[str], Path]) -> Path:
    return require_binary("promtool")
