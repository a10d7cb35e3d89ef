"""Grafana dashboards, built by code: ``python -m dashboards.build`` writes the JSON beside it."""
