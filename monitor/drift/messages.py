"""Records of monitor.score-deltas: sums of one (service, scorer) between two flushes, and baseline controls."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from monitor.errors import UndecodableRecord

UNSCORED: Final = -1  # own-count bucket of an entry that only counts traces without a score


class ScoreEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sums of one stratum in one window. Sparse: only bins and cuts whose sums are not zero.

    ``length``, ``own``: log2 buckets of the trace's member spans and of its scored spans in the group
    (UNSCORED where there are none). ``tails``: (threshold, traces judged by it, traces at or over it).
    ``squares``: differences of S2 from cut to cut.
    """

    window: int
    scorer_version: str
    model_version: str
    role: str
    length: int
    own: int
    traces: int = 0
    spans: int = 0
    spans2: int = 0  # sum over traces of their scored spans squared
    unscored: int = 0  # traces
    tails: tuple[tuple[float, int, int], ...] = ()
    bins: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    cuts: tuple[int, ...] = ()
    squares: tuple[int, ...] = ()


class MixEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sums over traces of one length bucket, of one verdict model version, in one window.

    ``shares``, ``squares``: by role in the order of ROLES, Y_r = the role's share of the trace's members at
    scale 720720 (a trace's shares sum to exactly that), and (Y_r^2 + 360360) // 720720.
    """

    window: int
    model_version: str
    length: int
    traces: int = 0
    incidents: int = 0
    sum_n: int = 0
    sum_n2: int = 0
    shares: tuple[int, ...] = ()
    squares: tuple[int, ...] = ()


class ScoreDelta(msgspec.Struct, frozen=True, array_like=True, tag="score_delta", gc=False):
    """Value of monitor.score-deltas: what changed in the sums of one (service, scorer)."""

    service: str
    scorer: str
    entries: tuple[ScoreEntry, ...] = ()
    mix: tuple[MixEntry, ...] = ()

    @property
    def key(self) -> bytes:
        return delta_key(self.service, self.scorer)


class BaselineControl(msgspec.Struct, frozen=True, array_like=True, tag="baseline", gc=False):
    """What ``monitor baseline`` sends, under the key it is about, so that it takes effect at one offset.

    ``pin``: ``model_version`` is the reference from here on. ``promote``: the version that is current (or
    ``model_version`` where given) becomes the reference. ``who``, ``at_ms``, ``why``: as given, for audit.
    """

    service: str
    scorer: str
    action: Literal["pin", "promote"]
    model_version: str | None
    who: str
    at_ms: int
    why: str

    @property
    def key(self) -> bytes:
        return delta_key(self.service, self.scorer)


DriftMessage = ScoreDelta | BaselineControl


def delta_key(service: str, scorer: str) -> bytes:
    """Kafka key of monitor.score-deltas and of everything said about one (service, scorer).

    Names are the sender's: what stands between them is escaped inside them, or two pairs could share their sums.

    >>> delta_key("agents", "judge"), delta_key("a|b", "c") == delta_key("a", "b|c")
    (b'agents|judge', False)
    """
    return f"{key_part(service)}|{key_part(scorer)}".encode()


def key_part(name: str) -> str:
    """A name as one part of a key whose parts are separated by ``|``."""
    return name.replace("\\", "\\\\").replace("|", "\\|")


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[DriftMessage]] = msgspec.msgpack.Decoder(
    ScoreDelta | BaselineControl
)


def encode_message(message: DriftMessage) -> bytes:
    """Bytes of a record of monitor.score-deltas (msgpack)."""
    return _ENCODER.encode(message)


def decode_message(raw: bytes) -> DriftMessage:
    """The reverse. Raises UndecodableRecord."""
    try:
        return _DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UndecodableRecord(
            f"a record of the score-deltas topic does not decode: {error}"
        ) from error
