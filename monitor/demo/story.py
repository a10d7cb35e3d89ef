"""The three observations, fed live; each claim is checked against what really came out."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from aiokafka import AIOKafkaProducer

from monitor.codec import encode_json
from monitor.demo import naive
from monitor.demo.services import INPUT_TOPIC
from monitor.demo.traffic import (
    CREW_SERVICE,
    INCIDENT_SHARE,
    REFERENCE,
    SHELL_SERVICE,
    SHIFTED,
    UPGRADED,
    Trace,
    Traffic,
    Version,
    interleaved,
)
from monitor.demo.watch import StoryTimeout, Watch
from monitor.drift.report import DriftReport, MixReport

BEAT_SECONDS: Final = 0.25
# 300 traces a second, 3,000 to 4,500 spans: so many that equivalence is shown 4 to 7 s after a version's first trace.
TRACES_A_BEAT: Final = 75
REFERENCE_SECONDS: Final = (
    12  # at least 10 windows of 1 s, so that the reference's own scatter is known
)
PHASE_SECONDS: Final = 25  # at most, for what should come out of the traffic of a version
PAGE_SECONDS: Final = 10
STRONG_EVIDENCE: Final = math.log(20)  # of a change: E at which one in twenty is wrong without one
RATE_MARGIN: Final = 0.05  # of all traces: a change of the incident rate of this much is ruled out

SAME: Final = ("equivalent", "explained_by_counts")
"""Decisions that show that behaviour is the same; every other one only fails to show that it is not."""
BEHAVIOUR_ROLES: Final = ("planner", "retrieval", "tool_call", "completion")


@dataclass(frozen=True)
class Claim:
    """``holds``: whether the monitor's real output shows it; ``seen``: that output in a few words."""

    text: str
    holds: bool
    seen: str


@dataclass
class Chapter:
    title: str
    naive: str
    claims: list[Claim] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return bool(self.claims) and all(claim.holds for claim in self.claims)


class Story:
    """Feeds a topic and watches the outputs. ``say`` is told what goes on."""

    def __init__(
        self, producer: AIOKafkaProducer, watch: Watch, say: Callable[[str], None]
    ) -> None:
        self._producer = producer
        self._watch = watch
        self._say = say
        self._traffic = Traffic()
        self._scores: dict[str, list[float]] = {}

    async def run(self) -> list[Chapter]:
        """All chapters, in the order in which they are told."""
        self._say(
            f"reference traffic: {REFERENCE_SECONDS} s of {REFERENCE.name}; meanwhile observations 1 and 3"
        )
        self._say(
            f"{INCIDENT_SHARE:.0%} of these traces, in every version, have a bad tool call and page: "
            "they give the incident rate that 2a compares"
        )
        reference = asyncio.create_task(self._feed(REFERENCE, REFERENCE_SECONDS))
        first, third = await asyncio.gather(self.buried_span(), self.broken_identity())
        await reference
        return [first, await self.composition(), await self.behaviour(), third]

    async def buried_span(self) -> Chapter:
        """Observation 1."""
        trace = self._traffic.buried_shell_call()
        worst = max(trace.spans, key=lambda span: float(span["scores"][0]["value"]))
        chapter = Chapter("1. One bad call among 40 good ones", naive.trace_mean(trace.scores))
        sent = time.monotonic()
        await self._send([trace])
        alert = await self._watch.page(SHELL_SERVICE, PAGE_SECONDS)
        seconds = time.monotonic() - sent
        notes = alert["annotations"]
        chapter.claims.append(
            Claim(
                "paged through Alertmanager",
                alert["labels"]["severity"] == "critical"
                and notes.get("trace_id") == trace.trace_id,
                f"{alert['labels']['alertname']} after {seconds:.1f} s",
            )
        )
        chapter.claims.append(
            Claim(
                "argmax is the shell call",
                notes.get("argmax_span_id") == worst["span_id"],
                f"span {notes.get('argmax_span_id')}, role {notes.get('argmax_role')}, score {notes.get('score')}",
            )
        )
        verdict = await self._watch.until(
            lambda: self._watch.verdicts.get(trace.trace_id),
            "verdict of the buried span",
            PHASE_SECONDS,
        )
        reduction = verdict.reductions[0]
        chapter.claims.append(
            Claim(
                "a structured reduction, no mean",
                reduction.scalar is None
                and reduction.span_count == len(trace.spans)
                and reduction.max_score == 0.91,
                f"max {reduction.max_score} of {reduction.span_count} spans, "
                + ("no mean" if reduction.scalar is None else f"mean {reduction.scalar.value}"),
            )
        )
        return chapter

    async def composition(self) -> Chapter:
        """Observation 2, first half: three times the planner spans, the same behaviour."""
        self._say(
            f"planner upgrade: {UPGRADED.name} takes three times the steps and behaves the same"
        )
        await self._feed_until(
            UPGRADED,
            lambda: self._shifted(UPGRADED) and self._settled(UPGRADED, BEHAVIOUR_ROLES),
        )
        mix = self._watch.mix.get(UPGRADED.name)
        chapter = Chapter(
            "2a. A planner that triples its steps",
            naive.pooled_drift(self._scores[REFERENCE.name], self._scores[UPGRADED.name]),
        )
        chapter.claims.append(
            Claim(
                "lengths and role mix: shifted",
                mix is not None and mix.gate == "shifted",
                f"gate {mix.gate}: {mix.why}" if mix else "no report",
            )
        )
        chapter.claims.append(
            self._same_behaviour(
                "behaviour: shown equivalent in every role", UPGRADED, BEHAVIOUR_ROLES
            )
        )
        chapter.claims.append(_incident_rate_unchanged(mix))
        return chapter

    async def behaviour(self) -> Chapter:
        """Observation 2, second half: what a true shift in one role looks like."""
        self._say(f"behaviour shift: {SHIFTED.name} has the old length and riskier tool calls")
        others = tuple(role for role in BEHAVIOUR_ROLES if role != "tool_call")
        await self._feed_until(
            SHIFTED,
            lambda: self._drifted(SHIFTED, "tool_call") and self._settled(SHIFTED, others),
        )
        found = self._watch.drift.get((SHIFTED.name, "tool_call"))
        chapter = Chapter(
            "2b. A true shift in one role",
            naive.pooled_drift(self._scores[REFERENCE.name], self._scores[SHIFTED.name]),
        )
        chapter.claims.append(
            Claim(
                "tool_call: drift",
                found is not None and found.decision == "drift",
                "no report" if found is None else f"{found.decision}: {found.why}",
            )
        )
        chapter.claims.append(
            self._same_behaviour("the other roles: shown equivalent", SHIFTED, others)
        )
        return chapter

    def _same_behaviour(self, text: str, version: Version, roles: tuple[str, ...]) -> Claim:
        """Holds only where sameness is shown: \"could not tell yet\" is no \"did not shift\"."""
        reports = {role: self._watch.drift.get((version.name, role)) for role in roles}
        return Claim(
            text,
            self._settled(version, roles),
            ", ".join(f"{role} {_decision(report)}" for role, report in reports.items()),
        )

    async def broken_identity(self) -> Chapter:
        """Observation 3."""
        trace = self._traffic.reused_span_ids()
        chapter = Chapter(
            "3. Two sub-agents reuse span ids", naive.last_write_parent(trace.spans, f"{3:016x}")
        )
        await self._send([trace])
        alert = await self._watch.page(CREW_SERVICE, PAGE_SECONDS)
        score = alert["annotations"].get("score", "")
        chapter.claims.append(
            Claim(
                "the page is sent all the same",
                score.startswith("0.84"),
                f"{alert['labels']['alertname']}, score {score}",
            )
        )
        verdict = await self._watch.until(
            lambda: self._watch.verdicts.get(trace.trace_id),
            "verdict of the broken trace",
            PHASE_SECONDS,
        )
        faults = {fault.kind: fault.count for fault in verdict.forensics.faults}
        chapter.claims.append(
            Claim(
                "forensics rejected, with the reason",
                verdict.forensics.status == "rejected" and "duplicate_conflicting" in faults,
                f"{verdict.forensics.status}: "
                + ", ".join(f"{kind} x{count}" for kind, count in faults.items()),
            )
        )
        # The first revision is published before the trace closes, with its forensics still pending.
        incident = await self._watch.until(
            lambda: next(
                (
                    i
                    for i in self._watch.incidents[trace.trace_id]
                    if i.forensics.status == "rejected"
                ),
                None,
            ),
            "incident with rejected forensics",
            PHASE_SECONDS,
        )
        chapter.claims.append(
            Claim(
                "no causal chain is drawn",
                incident.neighbourhood.status == "refused" and not incident.neighbourhood.edges,
                f"causal neighbourhood {incident.neighbourhood.status}: "
                f"{len(incident.neighbourhood.edges)} edges",
            )
        )
        return chapter

    async def _feed(self, version: Version, seconds: float) -> None:
        for _ in range(int(seconds / BEAT_SECONDS)):
            await self._beat(version)

    async def _feed_until(self, version: Version, seen: Callable[[], bool]) -> None:
        """Feed until ``seen()`` or the phase is over: the claims say what was there."""

        async def feed() -> None:
            while True:
                await self._beat(version)

        feeding = asyncio.create_task(feed())
        try:
            await self._watch.until(lambda: seen() or None, version.name, PHASE_SECONDS)
        except StoryTimeout:
            pass
        finally:
            feeding.cancel()
            with suppress(asyncio.CancelledError):
                await feeding

    async def _beat(self, version: Version) -> None:
        traces = [self._traffic.ordinary(version) for _ in range(TRACES_A_BEAT)]
        self._scores.setdefault(version.name, []).extend(
            score for trace in traces for score in trace.scores
        )
        await asyncio.gather(self._send(traces), asyncio.sleep(BEAT_SECONDS))

    async def _send(self, traces: list[Trace]) -> None:
        futures = [
            await self._producer.send(INPUT_TOPIC, encode_json(span))
            for span in interleaved(traces)
        ]
        await asyncio.gather(*futures)

    def _shifted(self, version: Version) -> bool:
        mix = self._watch.mix.get(version.name)
        return mix is not None and mix.gate == "shifted"

    def _drifted(self, version: Version, role: str) -> bool:
        report = self._watch.drift.get((version.name, role))
        return report is not None and report.decision == "drift"

    def _settled(self, version: Version, roles: tuple[str, ...]) -> bool:
        """Whether the monitor says of every one of the roles that it behaves as before."""
        reports = [self._watch.drift.get((version.name, role)) for role in roles]
        return all(report is not None and report.decision in SAME for report in reports)


def _decision(report: DriftReport | None) -> str:
    if report is None:
        return "no report"
    if report.decision == "not_yet" and report.more_traces is not None:
        return f"not_yet ({report.more_traces:,} more traces to be {report.toward})"
    if report.decision in SAME and report.d is not None:
        return f"{report.decision} (D={report.d:.2f})"
    return report.decision


def _incident_rate_unchanged(mix: MixReport | None) -> Claim:
    text = "incident rate: shown the same"
    rates = None if mix is None else mix.incidents
    if rates is None or rates.log_e is None or rates.radius is None:
        return Claim(text, False, "not known")
    most = abs(rates.difference) + rates.radius
    return Claim(
        text,
        rates.log_e < STRONG_EVIDENCE and most < RATE_MARGIN,
        f"{rates.reference:.1%} and {rates.current:.1%} of the traces; "
        f"the true difference is at most {most:.1%}",
    )
