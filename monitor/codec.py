"""Encoders and decoders of the model's records, each built once.

Fragments topic: msgpack arrays told apart by tag. Output topics: JSON objects told apart by ``kind``.
"""

from __future__ import annotations

import msgspec

from monitor.errors import UndecodableRecord
from monitor.model import DeadLetter, FoldRecord, Incident, Verdict

Output = Verdict | Incident | DeadLetter

_fold_encoder = msgspec.msgpack.Encoder()
_fold_decoder: msgspec.msgpack.Decoder[FoldRecord] = msgspec.msgpack.Decoder(FoldRecord)
_json_encoder = msgspec.json.Encoder()
_canonical_encoder = msgspec.json.Encoder(order="sorted")
_output_decoder: msgspec.json.Decoder[Output] = msgspec.json.Decoder(Output)

# What a decoder of msgspec raises on hostile bytes: its own errors, invalid UTF-8 inside a string, nesting
# past the interpreter's limit.
_DECODER_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def encode_fold_record(record: FoldRecord) -> bytes:
    """Value of a record of the fragments topic."""
    return _fold_encoder.encode(record)


def decode_fold_record(payload: bytes) -> FoldRecord:
    """Inverse of :func:`encode_fold_record`. Raises UndecodableRecord for anything else."""
    try:
        return _fold_decoder.decode(payload)
    except _DECODER_ERRORS as error:
        raise UndecodableRecord(
            f"record of {len(payload)} bytes is no fold record: {error}"
        ) from error


def encode_json(record: object) -> bytes:
    """Compact JSON, fields in the order of their declaration."""
    return _json_encoder.encode(record)


def canonical_json(record: object) -> bytes:
    """Compact JSON with sorted keys: equal records give equal bytes. For digests."""
    return _canonical_encoder.encode(record)


def decode_output(payload: bytes) -> Output:
    """A record of the verdicts, incidents or dead-letters topic. Raises UndecodableRecord for anything else."""
    try:
        return _output_decoder.decode(payload)
    except _DECODER_ERRORS as error:
        raise UndecodableRecord(
            f"record of {len(payload)} bytes is no output record: {error}"
        ) from error


def chunks(payload: bytes, limit: int) -> list[bytes]:
    """``payload`` cut into pieces of at most ``limit`` bytes, at least one (empty for an empty payload)."""
    if limit < 1:
        raise ValueError(f"chunk limit is {limit}, must be at least 1 byte")
    return [payload[i : i + limit] for i in range(0, len(payload), limit)] or [b""]
