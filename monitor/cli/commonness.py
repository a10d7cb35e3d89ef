"""The line of ``monitor incidents show`` that says how common so high a score is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiokafka.structs import TopicPartition
from rich.text import Text

from monitor.cli.tree import printable
from monitor.codec import decode_output
from monitor.model import Incident, Verdict
from monitor.settings import Settings
from monitor.stream import clients
from monitor.stream.ranges import log_range, read_range
from monitor.stream.topics import TopicNames, partition_counts
from monitor.trace.commonness import Commonness

# Verdicts that are read for it, the latest of each partition: some 10 s. The topic may hold a week of any traffic.
VERDICTS: Final = 200_000


async def read_commonness(settings: Settings, incidents: Sequence[Incident]) -> list[Commonness]:
    """One count an incident, over the latest verdicts of the topic."""
    counts = [Commonness(incident) for incident in incidents]
    topic = TopicNames(settings.topic_prefix).verdicts
    if not any(count.answerable for count in counts):
        return counts
    async with clients.admin(settings) as admin:
        partitions = (await partition_counts(admin, [topic])).get(topic, 0)
    async with clients.reader(settings) as reader:
        for number in range(partitions):
            place = TopicPartition(topic, number)
            first, end = await log_range(reader, place)
            async for records in read_range(
                reader, place, max(first, end - VERDICTS // partitions), end
            ):
                for record in records:
                    verdict = decode_output(record.value) if record.value is not None else None
                    if isinstance(verdict, Verdict):
                        for count in counts:
                            count.add(verdict)
    return counts


def commonness_line(incident: Incident, count: Commonness) -> Text | None:
    """None where the incident is not about a score."""
    if not count.answerable:
        return None
    found = count.found()
    if found is None:
        return Text("how common: not known before its trace has closed, or past the verdicts read")
    scorer = f" by {incident.scorer} {incident.scorer_version}" if incident.scorer else ""
    return Text(
        printable(
            f"how common: {found.as_high:,} of {found.traces:,} earlier traces of {incident.service} with "
            f"{found.shortest:,} to {found.longest:,} spans had a maximum at least as high in {incident.argmax_role}"
            f"{scorer} (counted over the latest verdicts, not modelled)"
        )
    )
