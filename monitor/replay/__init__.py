"""The same pure core on files: no broker, no clock. What ``monitor replay`` and the tests run."""

from __future__ import annotations

from monitor.replay.runner import Replay, fold_fragments

__all__ = ["Replay", "fold_fragments"]
