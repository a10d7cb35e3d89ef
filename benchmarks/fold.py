"""How fast the fold is: `python -m benchmarks.fold [--profile]`.

Ordinary traffic: 20 spans a trace, one score each and none over its threshold, 200 traces interleaved, 10 spans a
fragment, root last. Everything is paid for: decoding, closing, identity, reduction, drift sums, closed log.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import random
import time
import tracemalloc

from monitor.codec import decode_fold_record, encode_fold_record
from monitor.model import Fragment, Score, SettingsRecord, Source, Span, SpanDetail, Tick
from monitor.trace.closed import decode_closed, encode_closed
from monitor.trace.config import FoldSettings, Lifecycle
from monitor.trace.fold import FOLD_VERSION, PartitionFold

SPANS_A_TRACE = 20
INTERLEAVED = 200
SPANS_A_SECOND = 5_000  # of virtual time: with 10 s of grace 2,500 traces wait for their closing

ROLES = ("planner", "retrieval", "tool_call", "completion")


def settings_record(settings: FoldSettings, rank: tuple[int, int] = (0, 1)) -> bytes:
    return encode_fold_record(
        SettingsRecord(FOLD_VERSION, rank, settings.sha256, settings.canonical())
    )


def traffic(traces: int, fragment_spans: int, seed: int = 1) -> list[tuple[int, bytes]]:
    """(timestamp ms, value) of fragments; spans of ``INTERLEAVED`` traces come in turns."""
    rng = random.Random(seed)
    log: list[tuple[int, bytes]] = []
    sent = 0
    for group in range(0, traces, INTERLEAVED):
        members = [_spans(rng, n) for n in range(group, min(group + INTERLEAVED, traces))]
        for start in range(0, SPANS_A_TRACE, fragment_spans):
            for trace_id, spans in members:
                part = tuple(spans[start : start + fragment_spans])
                log.append(
                    (
                        1_760_000_000_000 + sent * 1000 // SPANS_A_SECOND,
                        encode_fold_record(Fragment(trace_id, part)),
                    )
                )
                sent += len(part)
    return log


def _spans(rng: random.Random, trace: int) -> tuple[str, list[Span]]:
    ids = [f"{rng.getrandbits(64) | 1:016x}" for _ in range(SPANS_A_TRACE)]
    spans = []
    for i in range(1, SPANS_A_TRACE + 1):
        n = i % SPANS_A_TRACE  # the root ends last
        role = ROLES[n % 4]
        spans.append(
            Span(
                ids[n],
                role,
                (Score("injection", "1", round(rng.betavariate(1, 20), 3) * 0.28),),
                None if n == 0 else ids[(n - 1) // 4],
                "support-agent",
                f"step {role}",
                "model-2025-01",
                1_760_000_000_000_000_000 + n * 1_000_000,
                1_760_000_000_500_000_000 + n * 1_000_000,
                0,
                rng.randbytes(16),
                Source("agent-spans", trace % 8, trace * 20 + n, 0, 1_760_000_000_000),
                SpanDetail(tool_name="search_orders") if role == "tool_call" else None,
            )
        )
    return f"{rng.getrandbits(128) | 1:032x}", spans


def fold_all(log: list[tuple[int, bytes]], settings: FoldSettings) -> tuple[PartitionFold, float]:
    fold = PartitionFold(0)
    fold.apply(0, log[0][0], settings_record(settings))
    started = time.process_time()
    for offset, (timestamp, raw) in enumerate(log, 1):
        fold.apply(offset, timestamp, raw)
        if not offset % 500:
            fold.drain()
    return fold, time.process_time() - started


def run(log: list[tuple[int, bytes]], settings: FoldSettings) -> float:
    """Seconds of CPU until the last trace of the log has closed."""
    fold, seconds = fold_all(log, settings)
    tick = encode_fold_record(Tick())
    started = time.process_time()
    while fold.open_lives:
        assert fold.last_ts is not None
        fold.apply(len(log) + 1, fold.last_ts + 1_000, tick)
        fold.drain()
    assert fold.counters["closed_root_complete"] == sum(
        count for name, count in fold.counters.items() if name.startswith("closed_")
    )
    return seconds + time.process_time() - started


def memory(log: list[tuple[int, bytes]], settings: FoldSettings) -> None:
    """Bytes of this process that a span open and a span kept late take, and how fast both come back."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    fold = PartitionFold(0)
    fold.apply(0, log[0][0], settings_record(settings))
    closed: list[bytes] = []

    def drain() -> None:
        closed.extend(encode_closed(entry) for entry in fold.drain().closed)

    for offset, (timestamp, raw) in enumerate(log, 1):
        # The bytes come from the network, so the copy that the log holds is not the one that is kept.
        fold.apply(offset, timestamp, bytes(bytearray(raw)))
        if not offset % 500:
            drain()
    drain()
    open_spans = fold.open_lives * SPANS_A_TRACE
    late_spans = fold.closed_lives * SPANS_A_TRACE
    held = tracemalloc.get_traced_memory()[0] - before - sum(map(len, closed))
    tracemalloc.stop()
    print(
        f"memory: {held / (open_spans + late_spans):,.0f} bytes a span, {open_spans:,} open, {late_spans:,} late"
    )
    started = time.process_time()
    snapshot = fold.snapshot()
    encoded = time.process_time()
    PartitionFold.restore(0, snapshot, [decode_closed(entry) for entry in closed])
    restored = time.process_time()
    print(
        f"snapshot: {len(snapshot):,} bytes, {encoded - started:.3f} s; restored with the closed log at "
        f"{(open_spans + late_spans) / (restored - encoded):,.0f} spans/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--traces", type=int, default=10_000)
    arguments = parser.parse_args()
    settings = FoldSettings(lifecycle=Lifecycle(closed_bytes=64_000_000))
    for fragment_spans in (20, 10, 4):
        log = traffic(arguments.traces, fragment_spans)
        gc.collect()
        gc.freeze()
        best = min(run(log, settings) for _ in range(3))
        spans = arguments.traces * SPANS_A_TRACE
        started = time.process_time()
        for _, raw in log:
            decode_fold_record(raw)
        decoding = time.process_time() - started
        print(
            f"{fragment_spans:3} spans a fragment: {best / spans * 1e6:.2f} us a span, {spans / best:,.0f} spans/s "
            f"(decoding alone {decoding / spans * 1e6:.2f} us)"
        )
        if arguments.profile:
            profile = cProfile.Profile()
            profile.runcall(run, log, settings)
            pstats.Stats(profile).sort_stats("tottime").print_stats(22)
    memory(traffic(arguments.traces, 10), settings)


if __name__ == "__main__":
    main()
