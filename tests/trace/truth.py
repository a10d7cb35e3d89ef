"""Spans of one trace for the tests of identity, reduction and neighbourhood, written as short as they are read."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from monitor.model import Score, Span, SpanDetail

SECOND = 1_000_000_000


def sid(name: str | int) -> str:
    """A span id: 16 hex digits, the same for the same name."""
    return blake2b(str(name).encode(), digest_size=8).hexdigest()


def span(key: str | int, parent: str | int | None = None, at: float = 1.0, **fields: Any) -> Span:
    """A span of half a second that starts ``at`` seconds. Its content hash is over all of it, as at intake."""
    fields.setdefault("span_id", sid(key))
    fields.setdefault("service", "agents")
    fields.setdefault("start_unix_nano", int(at * SECOND))
    fields.setdefault("end_unix_nano", int((at + 0.5) * SECOND) if at else 0)
    if isinstance(fields.get("scores"), float):
        fields["scores"] = (Score("judge", "1", fields["scores"]),)
    parent_id = None if parent is None else sid(parent)
    content = repr((fields, parent_id)).encode()
    fields.setdefault("content_hash", blake2b(content, digest_size=16).digest())
    return Span(parent_span_id=parent_id, **fields)


def tokens(*values: str) -> bytes:
    """What intake makes of content: 8 bytes a value."""
    return b"".join(blake2b(value.encode(), digest_size=8).digest() for value in values)


def detail(
    *tags: str,
    given: tuple[str, ...] | None = (),
    result: tuple[str, ...] | None = (),
    asked: tuple[str, ...] | None = None,
    **fields: Any,
) -> SpanDetail:
    """``given``: values in the arguments, ``asked``: in the user's request; None: not captured."""

    def packed(values: tuple[str, ...] | None) -> bytes | None:
        return None if values is None else tokens(*values)

    return SpanDetail(
        tags=tags,
        argument_tokens=packed(given),
        result_tokens=packed(result),
        request_tokens=packed(asked),
        **fields,
    )


def cpu_seconds(work: Callable[[], object], tries: int = 3) -> float:
    """The least CPU time of this thread that ``work`` took: what else runs on the machine does not count."""
    best = float("inf")
    gc.disable()  # its passes over all that the test session holds would be measured, not the work
    try:
        for _ in range(tries):
            start = time.thread_time()
            work()
            best = min(best, time.thread_time() - start)
    finally:
        gc.enable()
    return best
