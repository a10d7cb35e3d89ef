"""Bytes of input topics -> spans, faults, scores and dead letters. Pure: no Kafka, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol, get_args

from monitor.intake.batch import Batch, KafkaRecord
from monitor.intake.config import IntakeConfig
from monitor.intake.evaluations import Scorekeeper
from monitor.intake.meaning import Interpreter
from monitor.intake.native import NativeDecoder
from monitor.intake.otlp_json import JsonTraces
from monitor.intake.otlp_logs import JsonLogs, ProtoLogs
from monitor.intake.otlp_proto import ProtoTraces
from monitor.intake.scores import Scales

Encoding = Literal[
    "json", "otlp_proto/traces", "otlp_json/traces", "otlp_proto/logs", "otlp_json/logs"
]
ENCODINGS: Final[tuple[Encoding, ...]] = get_args(Encoding)


class Decoder(Protocol):
    def decode(
        self, topic: str, partition: int, records: Sequence[KafkaRecord], batch: Batch
    ) -> None: ...


class Intake:
    """One a process: its caches serve all topics. Not for several threads at once."""

    def __init__(self, config: IntakeConfig) -> None:
        interpreter = Interpreter(config)
        keeper = Scorekeeper(Scales(config.scorers), config.bounds)
        given = config, interpreter, keeper
        self._decoders: dict[Encoding, Decoder] = {
            "json": NativeDecoder(*given),
            "otlp_proto/traces": ProtoTraces(*given),
            "otlp_json/traces": JsonTraces(*given),
            "otlp_proto/logs": ProtoLogs(*given),
            "otlp_json/logs": JsonLogs(*given),
        }

    def decode(
        self,
        encoding: Encoding,
        topic: str,
        partition: int,
        records: Sequence[KafkaRecord],
        into: Batch,
    ) -> None:
        """Every record ends in ``into`` as spans, faults, scores, dead letters, or counted as ignored; bad
        input never raises. Raises KeyError for an encoding that is not in ENCODINGS."""
        self._decoders[encoding].decode(topic, partition, records, into)
