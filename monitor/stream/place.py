"""Commit metadata of a fragments partition: where its snapshot lies and what it stands for."""

from __future__ import annotations

from typing import Final

import msgspec

from monitor.errors import PartitionRefused

METADATA_LIMIT: Final = 4_096
"""Bytes that a broker takes (offset.metadata.max.bytes). Ours has under 200."""


class StateCommit(msgspec.Struct, frozen=True, array_like=True):
    """Metadata of the commit of offset c: restore = snapshot, closed log, fold of [at, c).

    ``chunks`` 0: no snapshot was written yet, the state at ``at`` is the empty one. The closed log's range
    [cf, ce) is as it stood at the snapshot; cf = ce where no closed life was in memory.
    """

    partitions: int  # that the state was made with
    fold_version: int
    at: int
    snapshot: int  # offset of the first chunk
    chunks: int
    cf: int
    ce: int

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


_DECODER: Final = msgspec.json.Decoder(StateCommit)


def decode_state_commit(metadata: str) -> StateCommit:
    """Raises PartitionRefused for metadata that is not ours."""
    try:
        return _DECODER.decode(metadata)
    except msgspec.MsgspecError as error:
        raise PartitionRefused(
            f"the commit's metadata {metadata[:100]!r} does not say where the snapshot lies: {error}"
        ) from error
