"""Policies tried on files: each trace judged whole, what matched and what nearly did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from monitor.intake import IntakeConfig
from monitor.policy.nearly import Near, nearly
from monitor.policy.rules import Finding, Policy
from monitor.replay.runner import Summary
from monitor.replay.whole import judged_whole
from monitor.trace.config import FoldSettings
from monitor.trace.judge import Judgement


class Tried(msgspec.Struct, frozen=True, tag_field="kind", tag="policy_test"):
    """What came of the policies on one trace. ``absent``: policy -> steps for which the trace has no span at all."""

    trace_id: str
    service: str
    forensics: str
    findings: tuple[Finding, ...]
    near: tuple[Near, ...]
    absent: dict[str, tuple[str, ...]]


def try_policies(
    paths: list[Path],
    policies: Sequence[Policy],
    intake: IntakeConfig,
    settings: FoldSettings,
    summary: Summary | None = None,
) -> Iterator[Tried]:
    """Every trace of the files, in the order of its first span, under ``policies`` and the thresholds of ``settings``.

    ``summary``: is told what was read. Raises UnreadableFile.
    """
    settings = msgspec.structs.replace(settings, policies=tuple(policies))
    for judged in judged_whole(paths, intake, settings, summary):
        yield _tried(judged, policies)


def _tried(judged: Judgement, policies: Sequence[Policy]) -> Tried:
    matched = {finding.policy for finding in judged.findings}
    near: list[Near] = []
    absent: dict[str, tuple[str, ...]] = {}
    for policy in policies:
        if policy.name in matched:
            continue
        near += nearly(
            judged.report, policy, judged.rules.thresholds, cut=False, highest=judged.highest
        )
        lacking = tuple(
            step.name
            for step in policy.steps
            if not any(step.fits(s, judged.highest.get(s.span_id, ())) for s in judged.report.spans)
        )
        if lacking:
            absent[policy.name] = lacking
    return Tried(
        judged.trace_id,
        judged.service,
        judged.forensics.status,
        judged.findings,
        tuple(near),
        absent,
    )
