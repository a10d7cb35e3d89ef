"""How sums move: a delta into its windows, a window into the totals of its versions, old windows into blocks.

Every value takes a message in only if its own fence is below it, whatever the other values know. So a crash
between any two writes, or the loss of any of them, is made good by redelivery:

- a window is folded into a version's totals only if these list it; until its bins are dropped, one fold
  later, totals that do not list it are given it again;
- a later part for a folded window goes to the totals if above the fence the window had when folded and above
  the totals' own.
"""

from __future__ import annotations

from bisect import insort

from monitor.drift.ledger import Block
from monitor.drift.settings import DriftSettings
from monitor.drift.state import State, Traffic, traffic_of, version_part, versions_in
from monitor.drift.sums import Sums, merge
from monitor.drift.values import EMPTY_TOTAL, TotalValue, WindowValue

FOLD_LAG = 2  # windows: partitions close traces at slightly different virtual times
LARGEST_BLOCK = (
    256  # windows; two of each size are kept beyond the versions' first ones, so about 1,000 in all
)


def take_in(state: State, by_window: dict[int, Sums], offset: int, settings: DriftSettings) -> None:
    """Add a delta to its windows, and to the totals of windows that are folded.

    by_window: of known versions only. Strata past ``max_rows`` a window are left out, here as in the totals.
    """
    ledger = state.ledger
    late: dict[tuple[str, str], list[tuple[int, Sums, dict[str, int]]]] = {}
    for window, sums in by_window.items():
        start = ledger.place_of(window)
        block = ledger.block_of(window)
        gone = window <= ledger.aged and not ledger.knows(window)
        if (gone and window <= ledger.sealed) or (block and block.sealed and block.size > 1):
            state.refuse("strata", len(sums.rows.keys) + len(sums.mix.keys))
            continue
        value = (None if gone else state.window(start)) or WindowValue(-1, window, 0, Sums.empty())
        part, left_out = _fitting(value, sums, settings)
        state.refuse("strata", left_out)
        is_new = value.fence < offset
        for version in versions_in(part):
            total = state.total(*version)
            folded_at = None if total is None else total.fence_of(window)
            if folded_at is None and block is not None:
                folded_at = block.fence
            if folded_at is None and gone:
                folded_at = -1
            if folded_at is not None and offset > folded_at:
                piece = version_part(part, *version)
                before = _traffic_before(value.sums, version, piece, is_new, block)
                late.setdefault(version, []).append((window, piece, before))
        if is_new and not gone:
            summed = merge([value.sums, part], bins=block is None)
            strata = {*value.sums.rows.keys, *part.rows.keys, *value.idle}
            idle = tuple(sorted(strata.difference(summed.rows.keys)))
            value = WindowValue(
                offset, max(value.last, window), value.dropped + left_out, summed, idle
            )
            state.put_window(start, value)
        if block is not None and value.strata >= settings.max_rows:
            block.sealed = True
    for version, parts in late.items():
        total = state.total(*version) or EMPTY_TOTAL
        if offset <= total.fence:
            continue
        traffic = dict(total.traffic)
        for _, piece, before in parts:
            for role, n in traffic_of(piece).items():
                known, squares = traffic.get(role, (0, 0))
                traffic[role] = (known + n, squares + n * n + 2 * n * before.get(role, 0))
        unlisted = [(w, offset) for w, _, _ in parts if total.fence_of(w) is None]
        summed = merge([total.sums, *(piece for _, piece, _ in parts)])
        state.put_total(*version, _listed(total, unlisted, offset, traffic, summed, settings))


def _fitting(value: WindowValue, sums: Sums, settings: DriftSettings) -> tuple[Sums, int]:
    """What of a delta finds room in its window, and how many strata do not."""
    room = settings.max_rows - value.strata
    if len(sums.rows.keys) <= room:
        return sums, 0
    known = {*value.sums.rows.keys, *value.idle}
    known.update([key for key in sums.rows.keys if key not in known][: max(0, room)])
    return sums.keep(known.__contains__, lambda _: True)


def _traffic_before(
    known: Sums, version: tuple[str, str], piece: Sums, is_new: bool, block: Block | None
) -> dict[str, int]:
    """Traces by role that a window had before a late part came; the mean window's, inside a block."""
    before = traffic_of(version_part(known, *version))
    if not is_new:
        for role, n in traffic_of(piece).items():
            before[role] = before.get(role, 0) - n
    size = 1 if block is None else block.size
    return {role: n // size for role, n in before.items()}


def fold_windows(state: State, offset: int, settings: DriftSettings) -> None:
    """Fold every open window that lies two or more behind the highest."""
    ledger = state.ledger
    due = [w for w in ledger.open if w <= ledger.highest - FOLD_LAG]
    if due:
        _fold(state, due, offset, settings)
        ledger.open = [w for w in ledger.open if w not in due]
        for w in due:
            insort(ledger.strip, w)


def _fold(state: State, windows: list[int], offset: int, settings: DriftSettings) -> None:
    """Add windows to the totals of their versions that do not list them yet."""
    due: dict[tuple[str, str], list[tuple[int, WindowValue]]] = {}
    for window in windows:
        value = state.window(window)
        if value is None or value.sums.bins is None:
            continue
        for version in versions_in(value.sums):
            if state.ledger.version(*version) is not None:  # else forgotten
                due.setdefault(version, []).append((window, value))
    for version, found in due.items():
        total = state.total(*version) or EMPTY_TOTAL
        new = [(w, value) for w, value in found if total.fence_of(w) is None]
        if not new:
            continue
        pieces = [version_part(value.sums, *version) for _, value in new]
        traffic = dict(total.traffic)
        for piece in pieces:
            for role, n in traffic_of(piece).items():
                known, squares = traffic.get(role, (0, 0))
                traffic[role] = (known + n, squares + n * n)
        listed = [
            (w, max(offset, value.fence)) for w, value in new
        ]  # a value may be ahead, after a loss
        summed = merge([total.sums, *pieces])
        state.put_total(*version, _listed(total, listed, offset, traffic, summed, settings))


def _listed(
    total: TotalValue,
    new: list[tuple[int, int]],
    offset: int,
    traffic: Traffic,
    sums: Sums,
    settings: DriftSettings,
) -> TotalValue:
    folded = sorted((*total.folded, *new))
    floor = total.floor
    if len(folded) > settings.max_fences:
        first, rest = folded[: settings.phi_windows], folded[settings.phi_windows :]
        over = len(folded) - settings.max_fences
        floor = max(floor, rest[over - 1][0])
        folded = first + rest[over:]
    return TotalValue(offset, floor, tuple(folded), traffic, sums)


def strip_windows(state: State, offset: int, settings: DriftSettings) -> None:
    """Drop the bins of windows folded earlier, and merge old ones: their totals must be durable by then.

    A window that some version's totals do not list (a part came since, or the fold was lost) is folded into
    these now and keeps its bins until the next time.
    """
    ledger = state.ledger
    incomplete = [w for w in ledger.strip if not _is_listed(state, w, offset)]
    _fold(state, incomplete, offset, settings)
    for window in ledger.strip:
        value = state.window(window)
        if value is not None and window not in incomplete:
            bare = value.sums.without_bins()
            state.put_window(
                window, WindowValue(offset, value.last, value.dropped, bare, value.idle)
            )
            sealed = value.strata >= settings.max_rows
            block = Block(window, value.last, offset, sealed=sealed)
            insort(ledger.kept, block, key=lambda b: b.start)
    ledger.strip = incomplete
    _merge_blocks(state, offset, settings)


def _is_listed(state: State, window: int, offset: int) -> bool:
    """Whether the totals of every version that has something in the window list it since before this message."""
    value = state.window(window)
    if (
        value is None or value.sums.bins is None
    ):  # no bins: done before, the ledger that said so was lost
        return True
    totals = (
        state.total(*version) or EMPTY_TOTAL
        for version in versions_in(value.sums)
        if state.ledger.version(*version) is not None
    )
    return all(
        window <= total.floor or ((at := total.fence_of(window)) is not None and at < offset)
        for total in totals
    )


def _merge_blocks(state: State, offset: int, settings: DriftSettings) -> None:
    """Past the versions' first windows keep two blocks of each size 1, 2, 4, ... 256; older ones go."""
    ledger = state.ledger
    if len(ledger.kept) <= settings.phi_windows:
        return
    protected: set[int] = set()
    for version in ledger.versions:
        first = state.first_windows(
            version.scorer_version, version.model_version, settings.phi_windows
        )
        protected.update(first)
    size = 1
    while size <= LARGEST_BLOCK:
        blocks = [
            i for i, b in enumerate(ledger.kept) if b.size == size and b.start not in protected
        ]
        if len(blocks) <= 2:
            size *= 2
            continue
        oldest, second = blocks[0], blocks[1]
        joins = size < LARGEST_BLOCK and second == oldest + 1
        if any(_is_touched(state, ledger.kept[i], offset) for i in blocks[: 1 + joins]):
            size *= 2
        elif joins:
            _join(state, ledger.kept[oldest], ledger.kept[second], offset, settings)
            del ledger.kept[second]
        else:  # the largest, or a version's first windows lie between: what is this old goes
            gone = ledger.kept.pop(oldest)
            state.put_window(gone.start, None)
            ledger.aged = max(ledger.aged, gone.last)
            if gone.sealed:
                ledger.sealed = max(ledger.sealed, gone.last)


def _is_touched(state: State, block: Block, offset: int) -> bool:
    """Whether this message has changed the block's value (not: joined it, before a crash).

    Such a block waits for the next time, so that a redelivered message finds what it has found before.
    """
    value = state.window(block.start)
    return value is not None and value.fence == offset and value.last == block.last


def _join(state: State, first: Block, second: Block, offset: int, settings: DriftSettings) -> None:
    """Strata and mix rows of the two past ``max_rows`` are left out, and the block is sealed."""
    a, b = state.window(first.start), state.window(second.start)
    if b is not None and (a is None or a.last < second.start):  # else joined before a crash
        values = [v for v in (a, b) if v is not None]
        merged = merge([v.sums for v in values], bins=False)
        rows = set(merged.rows.keys[: settings.max_rows])
        mix = set(merged.mix.keys[: settings.max_rows])
        kept, over = merged.keep(rows.__contains__, mix.__contains__)
        idle = sorted({key for v in values for key in v.idle} - set(merged.rows.keys))
        dropped = sum(v.dropped for v in values) + over
        a = WindowValue(
            offset, second.last, dropped, kept, tuple(idle[: settings.max_rows - len(rows)])
        )
        state.put_window(first.start, a)
    state.put_window(second.start, None)
    full = a is not None and settings.max_rows <= max(a.strata, len(a.sums.mix.keys))
    first.sealed = first.sealed or second.sealed or full
    first.last, first.size = second.last, first.size + second.size
    first.fence = max(first.fence, second.fence)
