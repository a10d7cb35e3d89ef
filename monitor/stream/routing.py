"""What goes where: topic, partition and key of every record that leaves the batch loops."""

from __future__ import annotations

from typing import Final

import msgspec
from aiokafka import TopicPartition

from monitor import codec
from monitor.drift.messages import ScoreDelta, encode_message
from monitor.model import DeadLetter, Incident, SettingsRecord, Source, Verdict
from monitor.settings import Settings
from monitor.stream.placement import partition_of
from monitor.stream.topics import TopicNames
from monitor.trace.steps import SessionSteps, encode_steps, session_key

Routed = tuple[TopicPartition, bytes, bytes]  # place, key, value
Output = Verdict | Incident | ScoreDelta | SessionSteps | DeadLetter | SettingsRecord

OUTPUT_LIMIT: Final = 1_000_000
"""Bytes of a value: Kafka's default limit of a message, with room for key and headers. What makes the records
keeps them below 900 kB; this is for the one that it did not foresee. One record that a topic refuses would
fail its transaction, and the same one again, for ever."""

_AlertGroup = tuple[str, str, str | None, str]
_GROUP_DECODER: Final = msgspec.json.Decoder(_AlertGroup)


def alert_group(incident: Incident) -> _AlertGroup:
    """(service, reason, policy, severity): one owner speaks for one alert."""
    return (incident.service, incident.reason, incident.policy, incident.severity)


def encode_alert_group(group: _AlertGroup) -> bytes:
    """Key of the incidents topic: a JSON array, since a service's name may hold any character."""
    return codec.encode_json(group)


def decode_alert_group(key: bytes) -> _AlertGroup:
    """Inverse of :func:`encode_alert_group`. Raises msgspec.DecodeError."""
    group: _AlertGroup = _GROUP_DECODER.decode(key)
    return group


class Router:
    """For the monitor's own output topics, all with the same number of partitions."""

    def __init__(self, settings: Settings) -> None:
        self.names = TopicNames(settings.topic_prefix)
        self._partitions = settings.partitions
        self._groups = settings.service_groups
        self._keep_bytes = settings.deadletter_bytes == "keep"

    def too_large(self, record: Output, routed: tuple[Routed, ...]) -> DeadLetter | None:
        """What goes out in place of a record that its topic would refuse; None where it fits."""
        if isinstance(record, DeadLetter):  # its topic takes the largest input whole
            return None
        size = max(len(value) for _, _, value in routed)
        if size <= OUTPUT_LIMIT:
            return None
        kind = type(record).__name__.lower()
        source, trace_id = Source(), None
        if isinstance(record, Verdict | Incident):
            cause = record.provenance
            source = Source(self.names.fragments, cause.partition, cause.causing_offset, 0, 0)
            trace_id = record.trace_id
        return DeadLetter(
            reason="output_too_large",
            detail=f"{kind} of {size} bytes, at most {OUTPUT_LIMIT} can be published",
            source=source,
            trace_id=trace_id,
        )

    def _to(self, topic: str, key: str, value: bytes) -> Routed:
        return TopicPartition(topic, partition_of(key, self._partitions)), key.encode(), value

    def routes(self, record: Output) -> tuple[Routed, ...]:
        """Where a record goes: one place, but an incident whose severity rose is also told to the group it leaves."""
        if isinstance(record, Incident) and record.rose_from is not None:
            left = (record.service, record.reason, record.policy, record.rose_from)
            key = encode_alert_group(left).decode()
            value = codec.encode_json(record)
            return self.route(record), self._to(self.names.incidents, key, value)
        return (self.route(record),)

    def route(self, record: Output) -> Routed:
        """The one place that every record has."""
        match record:
            case Verdict():
                return self._to(self.names.verdicts, record.trace_id, codec.encode_json(record))
            case Incident():
                key = encode_alert_group(alert_group(record)).decode()
                return self._to(self.names.incidents, key, codec.encode_json(record))
            case ScoreDelta():
                key = record.key.decode()
                return self._to(self.names.score_deltas, key, encode_message(record))
            case SessionSteps():
                key = session_key(record, self._groups).decode()
                return self._to(self.names.session_steps, key, encode_steps(record))
            case DeadLetter():
                source = record.source
                key = f"{source.topic}/{source.partition}/{source.offset}/{source.index}"
                if not self._keep_bytes and record.value is not None:
                    record = msgspec.structs.replace(record, value=None)
                return self._to(self.names.deadletters, key, codec.encode_json(record))
            case SettingsRecord():
                return self._to(self.names.settings, record.sha256, record.content)
