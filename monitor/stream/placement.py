"""Which partition a thing goes to: the one function for it, used by writers, readers and tests alike."""

from __future__ import annotations

import zlib


def partition_of(key: str, partitions: int) -> int:
    """Partition of ``key`` (a trace id, a fault id, an alert group) among ``partitions``.

    CRC-32 over the whole text. Not the id's first digits: AWS X-Ray ids begin with the time in seconds, and
    all traces of a second would share a partition. Not murmur2: no client library's partitioner is asked,
    and nothing invites the belief that another producer's placement agrees with ours. Not a secret hash:
    whoever can choose ids could as well send all spans under one, and a secret that changes would move open
    traces; what bounds such a sender is ``max_spans`` and the partition's byte budgets.
    """
    return zlib.crc32(key.encode()) % partitions
