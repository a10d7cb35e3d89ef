"""How much of a hostile input is looked at. Every bound is a setting; its reason stands beside it."""

from __future__ import annotations

from typing import Final

import msgspec

# A fragment is one message of our own topic: a quarter of Kafka's default message limit, so that several
# fit one produce request and a life's fragments are read in small steps.
FRAGMENT_LIMIT: Final = 256_000

_UTF8: Final = 4  # bytes of the longest UTF-8 character


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Raises ValueError where a span at every bound would not fit one fragment."""

    message_bytes: int = 4_194_304  # four times what Kafka and the Collector allow by default
    nesting: int = (
        64  # no instrumentation nests attribute values deeper than a message list (about 8)
    )
    spans_per_message: int = (
        20_000  # over twice the batch size of OpenTelemetry's Collector (8,192)
    )
    attributes: int = 1_024  # eight times OpenTelemetry's default limit a span
    events: int = 256  # twice OpenTelemetry's default limit a span
    links: int = 32  # kept; a fan-in of more is cut, counted
    scores: int = 32  # scorers that judge one span; more are refused one by one
    name: int = 256  # characters of a span, tool or agent name, and of an id that is not a span's
    label: int = (
        128  # characters of service, model version, scorer, scorer version: they become labels
    )
    tags: int = 16  # a tool has two or three
    tokens: int = 64  # flow tokens kept of a span: of its arguments, its result and the user's request together
    call_ids: int = 16  # tool calls of one model answer; models ask for a handful at once
    content: int = 65_536  # characters of one content attribute that are tokenised
    cache: int = 20_000  # entries of each cache of strings: memory, not meaning
    unknown_roles: int = 100  # distinct raw values counted by name; the rest is `other`

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if getattr(self, field) < 1:
                raise ValueError(f"bound {field} is {getattr(self, field)}, must be at least 1")
        if self.span_bytes > FRAGMENT_LIMIT:
            raise ValueError(
                f"a span at every bound has {self.span_bytes} bytes, more than a fragment's "
                f"{FRAGMENT_LIMIT}: lower scores, links, tokens, name or label"
            )

    @property
    def span_bytes(self) -> int:
        """Upper limit of an encoded span, score or fault."""
        # span, tool, agent, session, tool call id, ids of calls asked for
        names = (5 + self.call_ids) * self.name * _UTF8
        labels = 2 * self.label * _UTF8  # service, model version
        scores = self.scores * (2 * self.label * _UTF8 + 24)
        links = self.links * 64
        tags = self.tags * (self.label * _UTF8 + 3)
        tokens = self.tokens * 8 + 15
        return (
            names + labels + scores + links + tags + tokens + 1_024
        )  # ids, times, source, framing
