"""Intake: bytes -> spans. Pure; the shell gives it records and takes a batch."""

from monitor.intake.batch import Batch, KafkaRecord
from monitor.intake.bounds import Bounds
from monitor.intake.config import IntakeConfig
from monitor.intake.decode import ENCODINGS, Encoding, Intake

__all__ = ["ENCODINGS", "Batch", "Bounds", "Encoding", "Intake", "IntakeConfig", "KafkaRecord"]
