"""A worker's HTTP side: metrics, health, readiness."""

from __future__ import annotations

from monitor.web.app import Readiness, create_web
from monitor.web.server import WebServer

__all__ = ["Readiness", "WebServer", "create_web"]
