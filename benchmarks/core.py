"""The pure stages apart, in this process: intake, fold, drift sums; memory and recovery of the state."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from benchmarks.load import spans
from monitor.codec import encode_fold_record
from monitor.intake import Batch, Intake, IntakeConfig
from monitor.model import SettingsRecord
from monitor.trace.closed import ClosedEntry
from monitor.trace.config import FoldSettings, Lifecycle
from monitor.trace.fold import FOLD_VERSION, PartitionFold

T = TypeVar("T")

BATCH: Final = 4_000  # records of one ingest transaction at this load
KEY: Final = b"benchmark-key-benchmark-key-0001"
RATE: Final = 60_000  # spans a second of log time


@dataclass(frozen=True)
class Record:
    offset: int
    timestamp: int
    value: bytes


def timed(work: Callable[[], T]) -> tuple[T, float]:
    gc.collect()
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def run(count: int) -> dict[str, float]:
    """Figures of one run over ``count`` spans; us are microseconds of processor a span."""
    lines = [Record(number, 1, line) for number, line in enumerate(spans(count))]
    intake = Intake(IntakeConfig(token_key=KEY))
    decoder = msgspec.json.Decoder()
    _, plain = timed(lambda: [decoder.decode(line.value) for line in lines])
    fragments, decoding = timed(lambda: _fragments(intake, lines))
    fold, folding = timed(lambda: _fold(fragments, Lifecycle()))
    snapshot, snapping = timed(fold.snapshot)
    kept: list[ClosedEntry] = fold.drain().closed
    restored, restoring = timed(lambda: PartitionFold.restore(0, snapshot, kept))
    assert (restored.open_lives, restored.closed_lives) == (fold.open_lives, fold.closed_lives)
    return {
        "json_parse_only_us": plain / count * 1e6,
        "intake_us": decoding / count * 1e6,
        "fold_us": folding / count * 1e6,
        "snapshot_us": snapping / count * 1e6,
        "restore_spans_per_s": count / restoring,
        **_memory(fragments, count),
    }


def _fragments(intake: Intake, lines: list[Record]) -> list[bytes]:
    found = []
    for start in range(0, len(lines), BATCH):
        batch = Batch()
        intake.decode("json", "agent-spans", 0, lines[start : start + BATCH], batch)
        found += [payload for _, payload in batch.encoded_fragments()]
    return found


def _fold(fragments: list[bytes], lifecycle: Lifecycle) -> PartitionFold:
    fold = PartitionFold(0)
    settings = FoldSettings(lifecycle=lifecycle)
    fold.apply(
        0,
        0,
        encode_fold_record(
            SettingsRecord(FOLD_VERSION, (0, 0), settings.sha256, settings.canonical())
        ),
    )
    step = 1000 * BATCH / RATE / max(1, len(fragments) * BATCH // max(1, len(fragments)))
    for offset, raw in enumerate(fragments, start=1):
        fold.apply(offset, int(offset * step), raw)
    return fold


def _memory(fragments: list[bytes], count: int) -> dict[str, float]:
    """Bytes of this process a span, open and kept late, by its resident set (budgets beyond the load)."""
    huge = 10**12
    before = _resident()
    opened = _fold(
        fragments, Lifecycle(root_grace_ms=10**9, idle_ms=10**9, open_bytes=huge, closed_bytes=huge)
    )
    with_open = _resident()
    del opened
    gc.collect()
    base = _resident()
    closed = _fold(
        fragments, Lifecycle(root_grace_ms=0, idle_ms=1, open_bytes=huge, closed_bytes=huge)
    )
    closed.drain()
    gc.collect()
    with_closed = _resident()
    return {
        "open_bytes_per_span": (with_open - before) / count,
        "late_bytes_per_span": (with_closed - base) / count,
    }


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
