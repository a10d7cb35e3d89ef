"""The settings record of this process, as it goes into the fragments log."""

from __future__ import annotations

import time

from monitor.model import SettingsRecord
from monitor.settings import Settings
from monitor.trace.fold import FOLD_VERSION


def own_settings(settings: Settings) -> SettingsRecord:
    """Ranked by MONITOR_SETTINGS_REVISION, then by the process's start: now."""
    content = settings.fold_settings()
    rank = (settings.settings_revision, int(time.time() * 1000))
    return SettingsRecord(FOLD_VERSION, rank, content.sha256, content.canonical())
