"""What is remembered of one (service, scorer) beside its sums: windows, versions, references, pairs, decisions."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from typing import Final

import msgspec

from monitor.drift.phi import Phi
from monitor.errors import UndecodableRecord


class Version(msgspec.Struct, array_like=True):
    """A (scorer version, model version) that was seen, and the windows of its first and latest traces.

    Nothing of it counts in windows before ``opened``, where some of it may have been refused: what takes a
    refused trace back must be refused as well.
    """

    scorer_version: str
    model_version: str
    first: int
    last: int
    opened: int = 0


class Reference(msgspec.Struct, array_like=True):
    """The baseline of one scorer version."""

    scorer_version: str
    model_version: str
    pinned: bool = False


class Pair(msgspec.Struct, array_like=True):
    """One role of one version held against the reference. ``n``: its number in the role, 0 until it counts."""

    scorer_version: str
    role: str
    reference: str
    current: str
    n: int = 0
    log_pi: tuple[float, ...] = ()
    drifted: bool = False
    tail_drifted: bool = False
    said: str = ""  # what the last report said, to know a change


class MixPair(msgspec.Struct, array_like=True):
    """Length and role mix of two versions, or of one (reference = current) against its own first windows."""

    reference: str
    current: str
    n: int = 0
    shifted: bool = False
    said: str = ""


class RolePhis(msgspec.Struct, array_like=True):
    """phi of a reference's role, as of the fence its totals had."""

    scorer_version: str
    model_version: str
    role: str
    fence: int
    by_role: Phi | None
    by_counts: Phi | None
    tail: Phi | None
    tail_threshold: float | None


class RoleThreshold(msgspec.Struct, array_like=True):
    """The incident threshold in force in the latest window with traces of a role."""

    scorer_version: str
    role: str
    window: int
    value: float


class Block(msgspec.Struct, array_like=True):
    """A value of the table of windows that holds the windows ``start`` .. ``last``, ``size`` of them not empty.

    ``fence``: the offset at which the bins were dropped; a version's part up to it is in that version's totals,
    also where the totals do not list the window (added and taken back before it was folded).
    ``sealed``: strata of the window were left out; of several windows nothing more is taken in then, since what
    comes may take back what never came in.
    """

    start: int
    last: int
    fence: int
    size: int = 1
    sealed: bool = False


class Ledger(msgspec.Struct, array_like=True):
    fence: int = -1
    deltas: int = 0
    highest: int = -1  # window
    look_due: bool = False  # a baseline was pinned or promoted since the last look
    open: list[int] = []  # windows not folded yet
    strip: list[int] = []  # folded, their bins still to be dropped
    kept: list[Block] = []  # folded and stripped, ascending
    versions: list[Version] = []
    references: list[Reference] = []
    pairs: list[Pair] = []
    mix_pairs: list[MixPair] = []
    phis: list[RolePhis] = []
    thresholds: list[RoleThreshold] = []
    numbers: dict[str, int] = {}  # role -> pairs that ever counted; "" -> mix pairs
    gate: str = ""
    refused: int = 0  # strata and mix rows left out of the sums, by any bound
    schema: int = 1
    closed: int = -1  # windows up to it take in no version that is not known
    aged: int = -1  # windows up to it that are not known have been dropped for age
    sealed: int = -1  # of those, the ones up to it take in nothing more

    def version(self, scorer_version: str, model_version: str) -> Version | None:
        return next(
            (
                v
                for v in self.versions
                if v.scorer_version == scorer_version and v.model_version == model_version
            ),
            None,
        )

    def block_of(self, window: int) -> Block | None:
        """The block that holds a window whose bins were dropped."""
        at = bisect_right(self.kept, window, key=lambda b: b.start) - 1
        return self.kept[at] if at >= 0 and window <= self.kept[at].last else None

    def knows(self, window: int) -> bool:
        """Whether the window has a value of its own or in a block (or is due one)."""
        return window in self.open or window in self.strip or self.block_of(window) is not None

    def place_of(self, window: int) -> int:
        """The window under whose key this window's sums lie: its block's start, or itself."""
        block = self.block_of(window)
        return window if block is None else block.start

    def reference(self, scorer_version: str) -> Reference | None:
        return next((r for r in self.references if r.scorer_version == scorer_version), None)


_ENCODER: Final = msgspec.msgpack.Encoder(order="sorted")
_DECODER: Final = msgspec.msgpack.Decoder(Ledger)


def encode_ledger(ledger: Ledger) -> bytes:
    return zlib.compress(_ENCODER.encode(ledger), 1)


def decode_ledger(raw: bytes | None) -> Ledger:
    """A new one for None. Raises UndecodableRecord."""
    if raw is None:
        return Ledger()
    try:
        return _DECODER.decode(zlib.decompress(raw))
    except (zlib.error, msgspec.DecodeError) as error:
        raise UndecodableRecord(
            f"a ledger of the drift table 'totals' does not decode: {error}"
        ) from error
