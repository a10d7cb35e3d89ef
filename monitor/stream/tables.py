"""Faust tables of fenced bytes: which there are, their changelogs, and how they are written and recovered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

import faust
from faust.stores import memory
from faust.types import TP
from faust.types.tuples import FutureMessage
from yarl import URL

from monitor.settings import Settings
from monitor.stream.fence import fence_of, payload_of, seal
from monitor.stream.topics import TopicSpec

ALERT_GROUPS: Final = "alert-groups"
DRIFT_WINDOWS: Final = "drift-windows"
DRIFT_TOTALS: Final = "drift-totals"
SESSIONS: Final = "sessions"
TABLES: Final = (ALERT_GROUPS, DRIFT_WINDOWS, DRIFT_TOTALS, SESSIONS)

# Bytes of a row. The drift sums of one window have at most `max_rows` (1,024) strata of 1,002 bins, three int64 each
# before compression: 25 MB. 300 strata in which every bin is used come to 2 MB compressed, twice what Kafka takes.
ROW_LIMIT: Final = 33_554_432

_COMPACT_ONLY: Final = {"cleanup.policy": "compact"}


def changelog_name(settings: Settings, table: str) -> str:
    return f"{settings.topic_prefix}{table}-changelog"


def changelog_specs(settings: Settings) -> tuple[TopicSpec, ...]:
    """Compact and never delete: a changelog whose start moves away loses rows, and Faust then cannot seek."""
    return tuple(
        TopicSpec(
            changelog_name(settings, table),
            settings.partitions,
            {
                **_COMPACT_ONLY,
                "max.message.bytes": str(ROW_LIMIT),
                # A stopped owner's last write may come behind its successor's; until the successor has
                # seen that and written again, both must be there.
                "min.compaction.lag.ms": "600000",
            },
            needed=_COMPACT_ONLY,
        )
        for table in TABLES
    )


class FencedStore(memory.Store[bytes, bytes]):
    """Rows in memory. Recovery keeps the value with the higher fence, wherever in the changelog it stands."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._behind: dict[
            bytes, int
        ] = {}  # partition of keys whose last value in the log is an older one

    def apply_changelog_batch(
        self,
        batch: Iterable[Any],
        to_key: Callable[[Any], Any],
        to_value: Callable[[Any], Any],
    ) -> None:
        del to_value
        for event in batch:
            key, raw, partition = to_key(event.key), event.message.value, event.message.partition
            if raw is None:
                self.forget(key)
                continue
            held = self.data.get(key)
            self._key_partition[key] = partition
            if held is None or fence_of(raw) >= fence_of(held):
                self.data[key] = raw
                self._behind.pop(key, None)
            else:
                self._behind[key] = partition

    async def on_recovery_completed(self, active_tps: set[TP], standby_tps: set[TP]) -> None:
        await super().on_recovery_completed(active_tps, standby_tps)
        # Compaction keeps the last value, not the right one: write the right one behind it.
        behind, self._behind = self._behind, {}
        for key, partition in behind.items():
            if key in self.data:
                self.table.send_changelog(partition, key, self.data[key])

    def hold(self, partition: int, key: bytes, value: bytes) -> None:
        self.data[key] = value
        self._key_partition[key] = partition

    def forget(self, key: bytes) -> None:
        self.data.pop(key, None)
        self._key_partition.pop(key, None)
        self._behind.pop(key, None)

    def partition(self, key: bytes) -> int:
        return self._key_partition[key]

    def held(self) -> Iterator[tuple[bytes, int, bytes]]:
        """(key, partition, value) of all rows."""
        return ((key, self._key_partition[key], value) for key, value in self.data.items())


class FencedTable(faust.Table[bytes, bytes]):
    """``put`` names partition and offset itself instead of taking them from Faust's current event."""

    def _new_store(self) -> FencedStore:
        return FencedStore(
            URL("memory://"),
            self.app,
            self,
            table_name=self.name,
            key_type=self.key_type,
            key_serializer=self.key_serializer,
            value_serializer=self.value_serializer,
            value_type=self.value_type,
            loop=self.loop,
        )

    @property
    def rows(self) -> FencedStore:
        return cast(FencedStore, self.data)

    def fence(self, key: bytes) -> int:
        """Offset of the last message in the row; -1 where there is none."""
        value = self.rows.data.get(key)
        return -1 if value is None else fence_of(value)

    def payload(self, key: bytes) -> bytes | None:
        value = self.rows.data.get(key)
        return None if value is None else payload_of(value)

    def put(self, partition: int, key: bytes, offset: int, payload: bytes) -> FutureMessage:
        """Write a row. The future is done once the changelog has it."""
        value = seal(offset, payload)
        self.rows.hold(partition, key, value)
        return self.send_changelog(partition, key, value)

    def drop(self, key: bytes) -> FutureMessage:
        """Forget a row whose messages were committed long ago: its fence goes with it."""
        partition = self.rows.partition(key)
        self.rows.forget(key)
        return self.send_changelog(partition, key, None, value_serializer="raw")

    def highest_fences(self) -> dict[int, int]:
        """Partition -> highest fence of its rows."""
        highest: dict[int, int] = {}
        for _, partition, value in self.rows.held():
            highest[partition] = max(highest.get(partition, -1), fence_of(value))
        return highest


def fenced_table(app: faust.App, settings: Settings, name: str) -> FencedTable:
    changelog = app.topic(
        changelog_name(settings, name),
        partitions=settings.partitions,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        compacting=True,
        deleting=False,
        acks=False,
        internal=True,
        allow_empty=True,
        maxsize=131_072,  # Faust's own for changelogs: they are read at full speed while recovering
    )
    table = FencedTable(
        app,
        name=name,
        partitions=settings.partitions,
        key_type=bytes,
        value_type=bytes,
        changelog_topic=changelog,
    )
    app.tables.add(table)
    return table
