"""`python -m benchmarks.sessions`: attacks whose halves lie in two traces of a session, and what a session's steps cost.

Shares caught need the AgentDojo traces (benchmarks.agentdojo); the cost is of the pure part, without Kafka.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from benchmarks.agentdojo import DATA, load, replayed, two_halves
from monitor.model import Incident, Score, Span, SpanDetail
from monitor.policy.load import BUILTIN
from monitor.trace.config import FoldSettings
from monitor.trace.rules import Rules
from monitor.trace.sessions import SessionState, apply, decode_state, encode_state
from monitor.trace.steps import SessionSteps, decode_steps, encode_steps

_TOKENS: Final = 24  # of a result: an ordinary page of text
_TRACES: Final = 20  # of a session


def caught(*, asks_again: bool) -> dict[str, tuple[int, int, int]]:
    """Policy class (``benign`` for none) -> (sessions, with an incident over both traces or in one of them, of these with a
    critical one over both)."""
    dojo = load()
    owner, traces, of_trace = {}, [], {}
    for trace_id, trace in dojo.traces.items():
        halves = two_halves(trace, dojo.labels[trace_id], asks_again=asks_again)
        for half in halves:
            of_trace[half[0]["trace_id"]] = trace_id
            traces.append(half)
        owner[trace_id] = dojo.labels[trace_id]["policy_class"] or "benign"
    found: set[str] = set()
    proven: set[str] = set()
    for record in replayed(traces):
        if not isinstance(record, Incident):
            continue
        if record.session is None:
            found.add(of_trace[record.trace_id or ""])
            continue
        trace_id = of_trace[record.session.traces[0].trace_id]
        found.add(trace_id)
        if record.severity == "critical":
            proven.add(trace_id)
    counts = [Counter(owner[t] for t in some) for some in (owner, found, proven)]
    return {kind: (n, counts[1][kind], counts[2][kind]) for kind, n in sorted(counts[0].items())}


def steps(session: int, number: int, spans: int = 4) -> SessionSteps:
    """An ordinary trace of a session: reads and sends, nothing of one in another, one in ten with an elevated read."""
    kept = tuple(
        Span(
            f"{n:016x}",
            role="tool_call" if n % 2 else "retrieval",
            scores=(Score("judge", "1", 0.35 if n == 0 and number % 10 == 4 else 0.05),),
            service="agents",
            start_unix_nano=10**18 + number * 10**9 + n,
            end_unix_nano=10**18 + number * 10**9 + n,
            detail=SpanDetail(
                tool_name="send_email" if n % 2 else "read_inbox",
                tags=("egress",) if n % 2 else ("private_read", "untrusted_read"),
                argument_tokens=_tokens(session, number, n, 4),
                result_tokens=_tokens(session, number, -n - 1, _TOKENS),
            ),
        )
        for n in range(spans)
    )
    return SessionSteps(
        f"s-{session}",
        "agents",
        f"{session:016x}{number:016x}",
        number,
        0,
        0,
        number * 1000,
        "complete",
        kept,
        b"",
    )


def _tokens(*seed: int) -> bytes:
    count = seed[-1]
    return b"".join((hash((*seed, k)) & 2**64 - 1).to_bytes(8, "little") for k in range(count))


def rate(sessions: int = 200, spans: int = 4) -> float:
    """Summaries a second: decode, state, match, encode."""
    fold = FoldSettings(policies=BUILTIN)
    rules = Rules(fold, fold.sha256, fold.canonical())
    payloads = [
        (s, encode_steps(steps(s, n, spans))) for n in range(_TRACES) for s in range(sessions)
    ]
    rows = {s: encode_state(SessionState()) for s in range(sessions)}
    start = time.perf_counter()
    for offset, (session, payload) in enumerate(payloads):
        state = decode_state(rows[session])
        done = apply(b"s", state, decode_steps(payload), rules, offset=offset)
        rows[session] = encode_state(done.state)
    return len(payloads) / (time.perf_counter() - start)


def main() -> None:
    if DATA.exists():
        print("| the second root says | class | sessions | caught | proven over both |")
        print("|---|---|---|---|---|")
        for asks_again in (True, False):
            says = "the request again" if asks_again else "nothing"
            for kind, (count, found, proven) in caught(asks_again=asks_again).items():
                print(f"| {says} | {kind} | {count} | {found} | {proven} |")
    for spans in (4, 16, 64):
        print(
            f"{rate(spans=spans, sessions=200 if spans < 64 else 20):,.0f} summaries/s of {spans} steps, {_TRACES} traces a session"
        )


if __name__ == "__main__":
    main()
