"""Policies tried on files: each trace judged whole, what matched and what nearly did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from monitor.codec import decode_fold_record
from monitor.drift.settings import DriftSettings
from monitor.intake import IntakeConfig
from monitor.model import Fragment, SpanScore
from monitor.policy.nearly import Near, nearly
from monitor.policy.rules import Finding, Policy
from monitor.replay.lines import read
from monitor.replay.runner import Replay, Summary
from monitor.trace.config import FoldSettings
from monitor.trace.judge import judge
from monitor.trace.life import Content
from monitor.trace.rules import Rules


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

    A trace is judged once, with all that the files have of it: lifetimes, limits and late arrival play no part.
    ``summary``: is told what was read. Raises UnreadableFile.
    """
    traces: dict[str, list[bytes]] = {}

    def keep(_: int, value: bytes) -> None:
        fragment = decode_fold_record(value)
        if isinstance(fragment, Fragment):
            traces.setdefault(fragment.trace_id, []).append(value)

    # For what it hands to the fold; what the fold makes of it at one moment in time is of no interest.
    run = Replay(intake, FoldSettings(), DriftSettings())
    run.logged = keep
    for line, _ in read(paths):
        for _record in run.feed(line, 1):
            pass
    if summary is not None:
        for name in ("lines", "spans", "scores", "faults", "dead_letters", "unknown_roles"):
            setattr(summary, name, getattr(run.summary, name))
    settings = msgspec.structs.replace(settings, policies=tuple(policies))
    rules = Rules(settings, settings.sha256, settings.canonical())
    for trace_id in list(traces):
        yield _tried(trace_id, Content.of(traces.pop(trace_id)), policies, rules)


def _tried(trace_id: str, content: Content, policies: Sequence[Policy], rules: Rules) -> Tried:
    here = {span.span_id for span in content.spans}
    alone: list[SpanScore] = [late for _, late in content.scores if late.span_id not in here]
    judged = judge(trace_id, content, alone, rules, {}, cut=False)
    matched = {finding.policy for finding in judged.findings}
    near: list[Near] = []
    absent: dict[str, tuple[str, ...]] = {}
    for policy in policies:
        if policy.name in matched:
            continue
        near += nearly(judged.report, policy, rules.thresholds, cut=False, highest=judged.highest)
        lacking = tuple(
            step.name
            for step in policy.steps
            if not any(step.fits(s, judged.highest.get(s.span_id, ())) for s in judged.report.spans)
        )
        if lacking:
            absent[policy.name] = lacking
    return Tried(
        trace_id, judged.service, judged.forensics.status, judged.findings, tuple(near), absent
    )
