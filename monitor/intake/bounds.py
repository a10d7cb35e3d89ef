"""How much of a hostile input is looked at. Every bound is a setting, and its reason the setting's text."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

# A fragment is one message of our own topic: a quarter of Kafka's default message limit, so that several
# fit one produce request and a life's fragments are read in small steps.
FRAGMENT_LIMIT: Final = 256_000

_UTF8: Final = 4  # bytes of the longest UTF-8 character


def _bound(reason: str) -> msgspec.Meta:
    return msgspec.Meta(description=reason)


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Raises ValueError where a span at every bound would not fit one fragment."""

    message_bytes: Annotated[
        int,
        _bound(
            "Bytes of a message that are read, after decompression: four times what Kafka and the Collector allow "
            "by default."
        ),
    ] = 4_194_304
    nesting: Annotated[
        int,
        _bound(
            "Lists and maps inside one another in an attribute's value. No instrumentation nests deeper than a "
            "message list, about 8; protobuf's runtime reads at most 49."
        ),
    ] = 40
    spans_per_message: Annotated[
        int,
        _bound(
            "Spans or log records of a message: over twice the batch size of OpenTelemetry's Collector (8,192)."
        ),
    ] = 20_000
    attributes: Annotated[
        int,
        _bound(
            "Attributes of a span, span event, link or log record: eight times OpenTelemetry's default limit."
        ),
    ] = 1_024
    events: Annotated[int, _bound("Events of a span: twice OpenTelemetry's default limit.")] = 256
    links: Annotated[
        int, _bound("Links of a span that are kept; a fan-in of more is cut, and counted.")
    ] = 32
    scores: Annotated[
        int, _bound("Scorers that judge one span; more are refused one by one, the lowest first.")
    ] = 32
    name: Annotated[
        int,
        _bound(
            "Characters of the name of a span, tool or agent, and of an id that is not a span's; more are cut."
        ),
    ] = 256
    label: Annotated[
        int,
        _bound(
            "Characters of a service, model version, scorer or scorer version, which become labels; more are cut."
        ),
    ] = 128
    tags: Annotated[int, _bound("Tags of a tool; a tool has two or three.")] = 16
    tokens: Annotated[
        int,
        _bound(
            "Flow tokens kept of a span: of its arguments, its result and the user's request together."
        ),
    ] = 64
    call_ids: Annotated[
        int, _bound("Tool calls of one model answer; models ask for a handful at once.")
    ] = 16
    content: Annotated[
        int,
        _bound(
            "Characters of one content attribute that are tokenised; what is longer is marked as cut."
        ),
    ] = 65_536
    cache: Annotated[
        int, _bound("Entries of each cache of strings: memory and speed, never meaning.")
    ] = 20_000
    unknown_roles: Annotated[
        int, _bound("Distinct raw roles that are counted by name; the rest is `other`.")
    ] = 100

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
