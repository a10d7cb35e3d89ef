"""What a judged trace says to its session: the bounded steps that composition may need beside another trace's.

A sub-agent that starts a trace of its own, or a conversation of many, hides a composed attack from each of its
traces. So a trace with a session id emits its *session steps* at its closing and at each revision: what a residue
would keep of it, and untagged acts that a policy may follow a value into. A later revision replaces the earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from monitor.codec import encode_json
from monitor.errors import UndecodableRecord
from monitor.model import Span, SpanDetail
from monitor.policy.causal import parts
from monitor.policy.flow import NO_TOKENS, arguments_of, results_of, user_request
from monitor.policy.session import packed
from monitor.trace.judge import Judgement
from monitor.trace.life import Life
from monitor.trace.residue import chosen

STEPS_LIMIT: Final = 64_000  # bytes of a summary: a session of 50 traces stays a few MB at worst
REQUEST_TOKENS: Final = (
    1_024  # 8 kB; ordinary requests hold under 100; of what is explained as many
)
SESSIONS_LIMIT: Final = (
    4  # that one trace speaks to: its own, and those that services on its way name
)
# Ids and names around the spans: each is bounded by intake (256 characters of at most 4 bytes).
_SPANS_LIMIT: Final = STEPS_LIMIT - 2 * 8 * REQUEST_TOKENS - 4_096

DEFAULT_GROUP: Final = "default"


class SessionSteps(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The steps of one life of a trace for one session.

    service       the verdict's; it decides the group that the session is looked for in
    number        of this judgement of the life: a higher one replaces a lower
    closed_at_ms  the log's date of the life's closing
    request       tokens of what the user asked for, for sure; None where that was not captured
    explained     tokens in the arguments of ``spans`` that came out of results of others of the trace
    """

    session_id: str
    service: str
    trace_id: str
    life: int
    number: int
    partition: int
    closed_at_ms: int
    forensics: Literal["complete", "incomplete", "rejected"]
    spans: tuple[Span, ...]
    request: bytes | None = None
    explained: bytes = b""
    version: int = 1


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SessionSteps)


def encode_steps(steps: SessionSteps) -> bytes:
    return _ENCODER.encode(steps)


def decode_steps(payload: bytes) -> SessionSteps:
    """Raises UndecodableRecord."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableRecord(
            f"record of {len(payload)} bytes is no session steps: {error}"
        ) from error


def session_key(steps: SessionSteps, groups: Mapping[str, str]) -> bytes:
    """Key of the session: a JSON array of its service group and its id. ``groups``: service -> group; services that
    stand in none share one, since sub-agents mostly are services of their own."""
    return encode_json((groups.get(steps.service, DEFAULT_GROUP), steps.session_id))


def session_steps(partition: int, life: Life, judged: Judgement) -> list[SessionSteps]:
    """One for each session that the trace names, the earliest first; none where there is no session or no step."""
    sessions: dict[str, None] = {}
    for span in judged.spans:
        if span.detail is not None and span.detail.session_id:
            sessions[span.detail.session_id] = None
            if len(sessions) == SESSIONS_LIMIT:
                break
    if not sessions:
        return []
    rules = life.rules
    caring = rules.caring
    elevated = _either(caring.elevated, rules.thresholds.elevated)
    spans, _ = chosen(judged.members, judged.highest, elevated, _SPANS_LIMIT, acts=caring.acts)
    if not spans:
        return []
    request: bytes | None = None
    if judged.report.status != "rejected":
        asked = user_request(parts(judged.report))
        request = None if asked is None else packed(asked, REQUEST_TOKENS)
    own = tuple(_step(span) for span in spans)
    explained = packed(_explained(judged.members, own), REQUEST_TOKENS)
    return [
        SessionSteps(
            session_id,
            judged.service,
            life.trace_id,
            life.birth,
            life.judged,
            partition,
            life.closed_at_ms,
            judged.report.status,
            own,
            request,
            explained,
        )
        for session_id in sessions
    ]


def _explained(members: Sequence[Span], kept: Sequence[Span]) -> frozenset[int]:
    wanted = NO_TOKENS.union(*map(arguments_of, kept)).difference(*map(results_of, kept))
    if not wanted:
        return wanted
    return NO_TOKENS.union(*(results_of(span) & wanted for span in members))


def _either(one: Callable[[Span], bool], other: Callable[[Span], bool]) -> Callable[[Span], bool]:
    return lambda span: one(span) or other(span)


def _step(span: Span) -> Span:
    """Without what no policy reads across traces: whose words are the user's is said of the whole trace."""
    detail = span.detail
    if detail is None:
        return span
    return msgspec.structs.replace(
        span,
        detail=SpanDetail(
            tool_name=detail.tool_name,
            tags=detail.tags,
            argument_tokens=detail.argument_tokens,
            result_tokens=detail.result_tokens,
            flags=detail.flags,
        ),
    )
