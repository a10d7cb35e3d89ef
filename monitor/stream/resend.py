"""What goes back to an input topic for a dead letter, or why nothing does. Knows no Kafka.

Of an item (a message, a span, a log record) the letter holds a whole message of its topic's encoding: that is sent as
it is. Of a refused score it holds the score alone, whose span lives on: what is sent is a message that says nothing but
this score of that span, so that no span counts twice. Which span a score was of stands only in the input record, which
is read again.

Whatever is to be sent is first read by the decoder of its topic, under the settings of now. What that would refuse
again stays where it is: to send it would only make another dead letter.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from monitor.intake import Batch, Encoding, Intake, IntakeConfig, KafkaRecord
from monitor.intake.evaluations import Given
from monitor.intake.reasons import NO_SPAN_ID, REASONS, TOO_MANY_SCORES
from monitor.intake.scores import AS_IT_STANDS, Refusal, Scales
from monitor.model import DeadLetter, Score, SpanScore, judged_role
from monitor.stream.score_message import score_message

SCORE_REASONS: Final = frozenset(
    {reason for reason in REASONS if reason.startswith("score_")} | {TOO_MANY_SCORES, NO_SPAN_ID}
)
"""Their letters hold one score; the letters of all other reasons of intake hold a whole message."""

SPAN_NOT_IN_MEMORY: Final = "span_not_in_memory"

# Codes of why a letter stays, each with what a person should know or do.
STAYS: Final[dict[str, str]] = {
    "redriven": "sent again before",
    "refused_again": "would be refused again; cure the cause first (`monitor deadletters show`, `monitor schema span`)",
    "ignored": "holds nothing that intake would take (a log record without an evaluation, or left out by MONITOR_KEEP)",
    "bytes_not_kept": "its bytes were not kept (MONITOR_DEADLETTER_BYTES=none); `monitor topics reset-partition --input` "
    "reads the input topic once more",
    "not_an_input": "comes from the monitor's own log, not from an input message; please report it",
    "evaluator_scored": "its span is an evaluator or guardrail, which are not scored; the sender must name the judged span",
    "not_named": "its span was not in memory, and it was judged alone; sent only with `--reason span_not_in_memory`, "
    "after or together with its span",
    "no_such_input": "MONITOR_INPUTS does not name its topic any more",
    "no_such_partition": "its topic or partition is not there",
    "input_gone": "the input record that says which span the score is of has left its topic",
    "no_longer_there": "the input record, as it is read now, does not hold this score",
    "no_such_value": "under the scorer table of now no value of its scorer gives its safety score",
    "unreadable": "its value is no score as intake writes one",
    "over_topic_limit": "larger than max.message.bytes of its topic",
}


_READINGS: Final = 8
"""Input records remembered as they are read. The letters of a message stand in a row, and it has up to
`spans_per_message` of them: to decode it for each would cost time in the square of its size."""


class Send(NamedTuple):
    values: tuple[bytes, ...]  # messages of the source topic's encoding


class Stays(NamedTuple):
    why: str  # a key of STAYS
    reason: str = ""  # of what intake would say


Fate = Send | Stays


class _Reading(NamedTuple):
    """An input record as intake reads it now: good scores by the item that they came on, and what is refused again."""

    accepted: Mapping[int, list[tuple[str, SpanScore]]]  # index -> (trace id, score of a span)
    refused: frozenset[tuple[int, bytes | None]]  # index and value of dead letters


class _Record(NamedTuple):
    offset: int
    timestamp: int
    value: bytes | None


class Resender:
    """Not for several threads at once: it holds a decoder."""

    def __init__(self, config: IntakeConfig, encodings: Mapping[str, Encoding]) -> None:
        """``encodings``: of the input topics."""
        self._config = config
        self._encodings = encodings
        self._intake = Intake(config)
        self._scales = Scales(config.scorers)
        self._readings: OrderedDict[tuple[str, int, int], _Reading | None] = OrderedDict()

    def needs_input(self, letter: DeadLetter) -> bool:
        """Whether ``fate`` needs the record at the letter's coordinates: once for all letters in a row from there."""
        return (
            letter.reason in SCORE_REASONS
            and letter.source.topic in self._encodings
            and _place(letter) not in self._readings
        )

    def fate(self, letter: DeadLetter, record: KafkaRecord | None = None) -> Fate:
        """``record``: the one at the letter's coordinates; None where it is gone, or not needed."""
        if letter.reason == "scores_no_member":
            return Stays("evaluator_scored")
        if letter.reason not in REASONS and letter.reason != SPAN_NOT_IN_MEMORY:
            return Stays("not_an_input")
        encoding = self._encodings.get(letter.source.topic)
        if encoding is None:
            return Stays("no_such_input")
        if letter.value is None:
            return Stays("bytes_not_kept")
        if letter.reason == SPAN_NOT_IN_MEMORY:
            return self._lone(letter, letter.value, encoding)
        if letter.reason in SCORE_REASONS:
            reading = self._reading(letter, encoding, record)
            if reading is None:
                return Stays("input_gone")
            return self._score(letter, letter.value, encoding, reading)
        return self._item(letter, letter.value, encoding)

    def _item(self, letter: DeadLetter, value: bytes, encoding: Encoding) -> Fate:
        source = letter.source
        batch = self._read(letter, encoding, _Record(source.offset, source.timestamp_ms, value))
        if batch.spans or batch.scores:
            return Send((value,))
        if batch.dead_letters:
            return Stays("refused_again", batch.dead_letters[0].reason)
        return Stays("ignored")

    def _score(
        self, letter: DeadLetter, value: bytes, encoding: Encoding, reading: _Reading
    ) -> Fate:
        """A score that intake refused, for each span that the input record names for it."""
        given = _given(value)
        if given is None:
            return Stays("unreadable")
        index = letter.source.index
        if (index, value) in reading.refused:
            return Stays("refused_again", letter.reason)
        read = given.read(self._scales, self._config.bounds.label)
        if isinstance(read, Refusal):
            return Stays("refused_again", read.reason)
        targets = {
            (trace_id, each.span_id): each
            for trace_id, each in reading.accepted.get(index, ())
            if (each.score.scorer, each.score.version) == (read.scorer, read.version)
        }
        if not targets:
            return Stays("no_longer_there")
        return self._messages(letter, encoding, given, read, targets)

    def _lone(self, letter: DeadLetter, value: bytes, encoding: Encoding) -> Fate:
        """A score that found no span, as the fold wrote it: a safety score, which the scorer table turned already."""
        try:
            said = msgspec.json.decode(value, type=_Lone)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return Stays("unreadable")
        safety = Score(said.scorer, said.version, said.value)
        raw = self._unscaled(safety)
        if raw is None:
            return Stays("no_such_value")
        target = SpanScore(said.span_id, safety, said.service, said.role)
        given = Given(said.scorer, raw, version=said.version)
        targets = {(said.trace_id, said.span_id): target}
        return self._messages(letter, encoding, given, safety, targets)

    def _unscaled(self, safety: Score) -> float | None:
        """The value that the scorer table turns into just this safety score; None if no double does."""
        scale = self._config.scorers.get(safety.scorer, AS_IT_STANDS)
        share = 1.0 - safety.value if scale.one_means == "safe" else safety.value
        near = scale.minimum + share * (scale.maximum - scale.minimum)
        for raw in (near, math.nextafter(near, math.inf), math.nextafter(near, -math.inf)):
            if self._scales.score(safety.scorer, raw, safety.version) == safety:
                return raw
        return None

    def _messages(
        self,
        letter: DeadLetter,
        encoding: Encoding,
        given: Given,
        read: Score,
        targets: Mapping[tuple[str, str], SpanScore],
    ) -> Fate:
        """One message a span. Each must be read as just this score of that span."""
        source, values = letter.source, []
        for (trace_id, span_id), target in targets.items():
            judged = target.score.judged
            message = score_message(encoding, letter, given, trace_id, target, self._config.keep)
            record = _Record(source.offset, source.timestamp_ms, message)
            found = list(_detached(self._read(letter, encoding, record)))
            score = msgspec.structs.replace(read, judged=judged)
            if [(t, each.span_id, each.score) for t, each in found] != [(trace_id, span_id, score)]:
                return Stays("ignored")
            values.append(message)
        return Send(tuple(values))

    def _reading(
        self, letter: DeadLetter, encoding: Encoding, record: KafkaRecord | None
    ) -> _Reading | None:
        place = _place(letter)
        if place not in self._readings:
            reading = None
            if record is not None:
                batch = self._read(letter, encoding, record)
                accepted = defaultdict(list)
                for index, trace_id, each in _accepted(batch):
                    accepted[index].append((trace_id, each))
                again = frozenset((each.source.index, each.value) for each in batch.dead_letters)
                reading = _Reading(accepted, again)
            self._readings[place] = reading
            if len(self._readings) > _READINGS:
                self._readings.popitem(last=False)
        return self._readings[place]

    def _read(self, letter: DeadLetter, encoding: Encoding, record: KafkaRecord) -> Batch:
        batch = Batch()
        source = letter.source
        self._intake.decode(encoding, source.topic, source.partition, [record], batch)
        return batch


class _Lone(msgspec.Struct):
    """What ``trace/records.py`` writes of a score without its span."""

    trace_id: str
    span_id: str
    scorer: str
    version: str
    value: float
    service: str
    role: str


def _given(value: bytes) -> Given | None:
    """What intake writes of a refused score (``evaluations.value_of``)."""
    try:
        said: Any = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    scorer, version = said.get("scorer"), said.get("version")
    return Given(
        scorer if isinstance(scorer, str) else None,
        said.get("value"),
        said.get("label"),
        version if isinstance(version, str) else None,
    )


def _accepted(batch: Batch) -> Iterator[tuple[int, str, SpanScore]]:
    """(index of an item, trace id, score of a span) for every good score."""
    for trace_id, spans in batch.spans.items():
        for span in spans:
            for score in span.scores:
                role = judged_role(span.role, score.judged)
                scored = SpanScore(span.span_id, score, span.service, role)
                yield span.source.index, trace_id, scored
    for trace_id, each in _detached(batch):
        yield each.source.index, trace_id, each


def _place(letter: DeadLetter) -> tuple[str, int, int]:
    return letter.source.topic, letter.source.partition, letter.source.offset


def _detached(batch: Batch) -> Iterator[tuple[str, SpanScore]]:
    for trace_id, scores in batch.scores.items():
        for each in scores:
            yield trace_id, each
