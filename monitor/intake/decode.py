"""Bytes of input topics -> spans, faults, scores and dead letters. Pure: no Kafka, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

from monitor.intake.batch import Batch, KafkaRecord
from monitor.intake.config import IntakeConfig
from monitor.intake.evaluations import Scorekeeper
from monitor.intake.meaning import Interpreter
from monitor.intake.native import NativeDecoder
from monitor.intake.otlp_proto import ProtoTraces
from monitor.intake.scores import Scales

Encoding = Literal["json", "otlp_proto/traces"]
ENCODINGS: Final[tuple[Encoding, ...]] = get_args(Encoding)


class Intake:
    """One a process: its caches serve all topics. Not for several threads at once."""

    def __init__(self, config: IntakeConfig) -> None:
        interpreter = Interpreter(config)
        keeper = Scorekeeper(Scales(config.scorers), config.bounds)
        self._decoders: dict[Encoding, NativeDecoder | ProtoTraces] = {
            "json": NativeDecoder(config, interpreter, keeper),
            "otlp_proto/traces": ProtoTraces(config, interpreter, keeper),
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
