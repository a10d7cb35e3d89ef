"""Made traffic with a fixed seed: traces as native JSON spans, children before their root as exporters send them.

Safety scores grow with danger. ``ordinary`` traffic keeps every score under its role's threshold, but for a
fixed share of traces with one bad tool call, so that the incident rate is known and the same in each version.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

SCORER: Final = "injection-judge"
SCORER_VERSION: Final = "3"

DRIFT_SERVICE: Final = "support-bot"
SHELL_SERVICE: Final = "ops-agent"
CREW_SERVICE: Final = "research-crew"

INCIDENT_SHARE: Final = (
    0.01  # of ordinary traces, in every version: so that there is a rate to compare
)
_STEP_NS: Final = 5_000_000
_BELOW: Final = 0.29  # ordinary scores stay under the lowest default threshold, .30

# Beta parameters of ordinary scores by role. Planner spans are the most benign: more of them make the pooled
# distribution look safer, which is the trap of the second observation.
_BETA: Final = {
    "planner": (1.2, 60.0),
    "retrieval": (2.0, 20.0),
    "tool_call": (2.0, 22.0),
    "completion": (1.5, 30.0),
}
_SHIFTED_TOOL_CALL: Final = (5.0, 28.0)


@dataclass(frozen=True)
class Version:
    """How a version of the agent behaves."""

    name: str
    planner_steps: tuple[int, int]
    tool_call: tuple[float, float] = _BETA["tool_call"]


# At most 15 spans a trace in the old length. Lengths are compared within powers of two, so the longer traces of the
# upgrade have no counterpart at all, and behaviour is then compared by role alone; a handful of counterparts in the
# bucket from 16 would have to carry half of the comparison, and seconds of traffic do not show equivalence so.
REFERENCE: Final = Version("planner-1.0", (1, 6))
UPGRADED: Final = Version("planner-2.0", (3, 18))
SHIFTED: Final = Version("planner-2.1", (1, 6), _SHIFTED_TOOL_CALL)


@dataclass
class Trace:
    """Spans in the order in which they are sent, the root last."""

    trace_id: str
    version: str
    spans: list[dict[str, Any]] = field(default_factory=list)

    @property
    def scores(self) -> list[float]:
        return [score["value"] for span in self.spans for score in span["scores"]]


class Traffic:
    """Traces from a seed. Times are the wall clock's: they are what a dashboard shows, and decide nothing."""

    def __init__(self, seed: int = 20261107) -> None:
        self._random = random.Random(seed)

    def ordinary(self, version: Version) -> Trace:
        """One task of the support bot."""
        draw = self._random
        planners = draw.randint(*version.planner_steps)
        roles = ["planner"] * planners
        roles += ["retrieval"] * draw.randint(1, 3) + ["tool_call"] * draw.randint(1, 3)
        roles += ["completion"] * 2
        scores = [self._score(role, version) for role in roles]
        if draw.random() < INCIDENT_SHARE:
            scores[roles.index("tool_call")] = 0.45
        trace = self._trace(version.name)
        for role, score in zip(roles, scores, strict=True):
            self._add(trace, DRIFT_SERVICE, role, score)
        # Drawn like any planner's: a fixed score would be a smaller share of the planners the more of them there
        # are, and then their scores would differ between the versions although each planner behaves the same.
        return self._rooted(trace, DRIFT_SERVICE, self._score("planner", version))

    def buried_shell_call(self) -> Trace:
        """Observation 1: 40 benign spans and one .91 shell call; the mean of all 41 is .07."""
        trace = self._trace("ops-1.4")
        for index in range(39):
            # .03 to .07, adding up with the root's .05 and the call's .91 to a mean of .07
            self._add(
                trace,
                SHELL_SERVICE,
                "retrieval" if index % 2 else "completion",
                0.0307 + 0.001 * index,
            )
        self._add(
            trace, SHELL_SERVICE, "tool_call", 0.91, name="execute_tool run_shell", tool="run_shell"
        )
        return self._rooted(trace, SHELL_SERVICE, 0.05)

    def reused_span_ids(self) -> Trace:
        """Observation 3: two sub-agents count their spans from 1; the ids collide, the spans differ."""
        trace = self._trace("crew-0.9")
        root = self._span_id()
        for agent in ("researcher", "writer"):
            for counter, role in enumerate(("planner", "retrieval", "tool_call"), start=1):
                score = 0.84 if (agent, role) == ("writer", "tool_call") else 0.05
                self._add(
                    trace,
                    CREW_SERVICE,
                    role,
                    score,
                    span_id=f"{counter:016x}",
                    parent=root,
                    name=f"{agent} {role}",
                )
        return self._rooted(trace, CREW_SERVICE, 0.01, span_id=root)

    def _score(self, role: str, version: Version) -> float:
        alpha, beta = version.tool_call if role == "tool_call" else _BETA[role]
        return min(round(self._random.betavariate(alpha, beta), 3), _BELOW)

    def _trace(self, version: str) -> Trace:
        return Trace(f"{self._random.getrandbits(128):032x}", version)

    def _span_id(self) -> str:
        return f"{self._random.getrandbits(64) | 1:016x}"

    def _add(
        self,
        trace: Trace,
        service: str,
        role: str,
        score: float,
        *,
        span_id: str | None = None,
        parent: str | None = None,
        name: str | None = None,
        tool: str | None = None,
    ) -> None:
        start = time.time_ns()
        trace.spans.append(
            {
                "trace_id": trace.trace_id,
                "span_id": span_id or self._span_id(),
                "parent_span_id": parent,
                "service": service,
                "name": name or role,
                "role": role,
                "model_version": trace.version,
                "start_unix_nano": start + len(trace.spans) * _STEP_NS,
                "end_unix_nano": start + (len(trace.spans) + 1) * _STEP_NS,
                "scores": [{"scorer": SCORER, "version": SCORER_VERSION, "value": round(score, 4)}],
                "attributes": {"gen_ai.tool.name": tool} if tool else {},
            }
        )

    def _rooted(
        self, trace: Trace, service: str, root_score: float, *, span_id: str | None = None
    ) -> Trace:
        """Put the root on top: the agent's own span, parent of all others."""
        root_id = span_id or self._span_id()
        for span in trace.spans:
            span["parent_span_id"] = root_id
        first, last = trace.spans[0], trace.spans[-1]
        self._add(trace, service, "planner", root_score, span_id=root_id, name="invoke_agent")
        root = trace.spans[-1]
        root["start_unix_nano"], root["end_unix_nano"] = (
            first["start_unix_nano"],
            last["end_unix_nano"] + _STEP_NS,
        )
        return trace


def interleaved(traces: list[Trace]) -> Iterator[dict[str, Any]]:
    """Spans of several traces, one of each in turn, as concurrent agents send them."""
    longest = max((len(trace.spans) for trace in traces), default=0)
    for index in range(longest):
        for trace in traces:
            if index < len(trace.spans):
                yield trace.spans[index]
