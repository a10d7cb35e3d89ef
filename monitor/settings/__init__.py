"""Every setting, in one place: read from the environment, checked as a whole, handed on as plain values."""

from __future__ import annotations

from monitor.intake.decode import Encoding
from monitor.settings.load import Settings
from monitor.settings.sections import Stage
from monitor.settings.values import InputSpec, milliseconds

__all__ = ["Encoding", "InputSpec", "Settings", "Stage", "milliseconds"]
