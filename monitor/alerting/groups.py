"""The life of an alert group, pure: incidents in, one row a group, and from row and clock whether it fires.

A group is (service, reason, policy, severity): the key of the incidents topic, of the table and of the alert. Its row
holds an *episode*: count, first, last and worst of the incidents since the alert last began to fire. The alert fires while
the episode's last incident was handled less than ``quiet`` ago by our clock, is then resolved, and five minutes later over;
the next incident begins another episode. A revision of an incident that was counted changes what is said of it, not
the count and not the time, but where it makes a page of one that was old or in shadow.

Clocks are milliseconds since 1970 and always given from outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from monitor.alerting.words import in_words
from monitor.errors import UndecodableRecord
from monitor.model import Incident

Channel = Literal["page", "old", "shadow"]
"""page: an alert of its own. old: past the page age, announced together. shadow: counted, never pushed."""

State = Literal["firing", "resolved", "over"]

RESOLVED_MS: Final = (
    300_000  # a resolved alert is still sent for so long: Alertmanager may have been away
)
SEEN_LIMIT: Final = 256  # incidents remembered by a row, to tell a revision from a new one: 4 kB
SUMMARY_LIMIT: Final = 500  # characters of an incident's summary that a row keeps, three times
_ID_BYTES: Final = 8  # of the hash of an incident id: 256 of them collide once in 5e14 rows


class GroupKey(msgspec.Struct, frozen=True, array_like=True):
    service: str
    reason: str
    policy: str | None
    severity: str


class Brief(msgspec.Struct, frozen=True, array_like=True):
    """What an alert says of an incident."""

    incident_id: str
    revision: int
    trace_id: str | None
    scorer: str | None
    policy_class: str | None
    argmax_span_id: str | None
    argmax_role: str | None
    max_score: float | None
    threshold: float | None
    model_version: str
    forensics: str
    summary: str
    caused_at_ms: int
    neighbourhood: str = ""


class Episode(msgspec.Struct, frozen=True, array_like=True):
    """``count`` incidents from ``started_ms`` to ``handled_ms`` (our clock); ``ended_ms``: all of them left."""

    count: int
    started_ms: int
    handled_ms: int
    first: Brief
    last: Brief
    worst: Brief
    ended_ms: int | None = None


class Seen(msgspec.Struct, frozen=True, array_like=True):
    revision: int
    channel: Channel


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    """A group's state. ``seen``: by hash of incident id, oldest first; ``forgot``: some were dropped from it."""

    group: GroupKey
    page: Episode | None = None
    old: Episode | None = None
    shadow: int = 0
    total: int = 0  # incidents ever, of all channels
    seen: dict[bytes, Seen] = {}
    forgot: bool = False
    touched_ms: int = 0


_key_decoder = msgspec.json.Decoder(GroupKey)
_row_encoder = msgspec.msgpack.Encoder()
_row_decoder = msgspec.msgpack.Decoder(GroupRow)


def group_of(incident: Incident) -> GroupKey:
    return GroupKey(incident.service, incident.reason, incident.policy, incident.severity)


def encode_key(group: GroupKey) -> bytes:
    """Key of the incidents topic and of the table: a JSON array, so no name can imitate another group."""
    return msgspec.json.encode(group)


def decode_key(key: bytes) -> GroupKey:
    """Inverse of :func:`encode_key`. Raises UndecodableRecord."""
    try:
        return _key_decoder.decode(key)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UndecodableRecord(f"key {key[:80]!r} names no alert group: {error}") from error


def encode_row(row: GroupRow) -> bytes:
    return _row_encoder.encode(row)


def decode_row(payload: bytes) -> GroupRow:
    """Inverse of :func:`encode_row`. Raises UndecodableRecord."""
    try:
        return _row_decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UndecodableRecord(
            f"alert group row of {len(payload)} bytes does not decode: {error}"
        ) from error


def apply(
    row: GroupRow, incident: Incident, *, channel: Channel, now_ms: int, quiet_ms: int
) -> GroupRow:
    """The row after this message of its topic.

    ``channel``: that of this revision by itself. An incident of another group (its severity rose) leaves this one,
    unless it is a page here and is none there: what was pushed is not taken back.
    """
    if group_of(incident) == row.group:
        return count(row, incident, channel=channel, now_ms=now_ms, quiet_ms=quiet_ms)
    identity = _identity(incident)
    known = row.seen.get(identity)
    if known is None or (known.channel == "page" and channel != "page"):
        return row
    seen = {k: v for k, v in row.seen.items() if k != identity}
    left = _uncounted(row, known.channel, now_ms)
    return msgspec.structs.replace(left, seen=seen, total=row.total - 1)


def count(
    row: GroupRow, incident: Incident, *, channel: Channel, now_ms: int, quiet_ms: int
) -> GroupRow:
    """The row with an incident that belongs to it, counted once over all its revisions.

    It stays in the channel of its first message, but that a later revision of channel ``page`` makes it a page: the
    first message is whatever a sender got in first, and must not decide over the spans of others. Never the other
    way round, however old it has become meanwhile.
    """
    identity = _identity(incident)
    known = row.seen.get(identity)
    brief = brief_of(incident)

    if known is not None:
        if incident.revision <= known.revision:
            return row
        if known.channel == "page" or channel != "page":
            seen = {**row.seen, identity: Seen(incident.revision, known.channel)}
            return _with(row, known.channel, lambda e: _revised(e, brief), seen=seen)
        row = _uncounted(row, known.channel, now_ms)
    elif row.forgot and incident.revision > 1 and incident.rose_from is None:
        # In all likelihood of one that was counted and forgotten, in a channel that nobody knows any more. While
        # the page fires it says the news; where none fires, one page too many is better than none.
        if channel != "page":
            return row
        if row.page is not None and state(row.page, now_ms=now_ms, quiet_ms=quiet_ms) == "firing":
            return _with(row, "page", lambda e: _revised(e, brief))
    else:
        row = msgspec.structs.replace(row, total=row.total + 1)
    seen = {**row.seen, identity: Seen(incident.revision, channel)}
    forgot = row.forgot
    while len(seen) > SEEN_LIMIT:
        del seen[next(iter(seen))]
        forgot = True
    counted = msgspec.structs.replace(
        row, seen=seen, forgot=forgot, touched_ms=max(row.touched_ms, now_ms)
    )
    if channel == "shadow":
        return msgspec.structs.replace(counted, shadow=row.shadow + 1)
    return _with(counted, channel, lambda e: grown(e, brief, now_ms, quiet_ms))


def channel_in(row: GroupRow, incident: Incident) -> Channel | None:
    """Where the row counted the incident. None: it did not, or has forgotten it."""
    known = row.seen.get(_identity(incident))
    return None if known is None else known.channel


def resolves_at(episode: Episode, quiet_ms: int) -> int:
    """Time from which the episode's alert no longer fires."""
    return episode.ended_ms if episode.ended_ms is not None else episode.handled_ms + quiet_ms


def state(episode: Episode, *, now_ms: int, quiet_ms: int) -> State:
    end = resolves_at(episode, quiet_ms)
    if now_ms < end:
        return "firing"
    return "resolved" if now_ms < end + RESOLVED_MS else "over"


def over(row: GroupRow, *, now_ms: int, quiet_ms: int, keep_ms: int) -> bool:
    """Nothing more is to be sent for the row, nor was it touched for ``keep_ms``: it may be dropped."""
    episodes = [e for e in (row.page, row.old) if e is not None]
    ended = all(state(e, now_ms=now_ms, quiet_ms=quiet_ms) == "over" for e in episodes)
    return ended and now_ms - row.touched_ms >= keep_ms


def worse(one: Brief, other: Brief) -> Brief:
    """The one with the higher score; of equals the first."""
    return other if (other.max_score or 0.0) > (one.max_score or 0.0) else one


def grown(episode: Episode | None, brief: Brief, now_ms: int, quiet_ms: int) -> Episode:
    """With one more incident; another episode where this one no longer fires."""
    if episode is None or state(episode, now_ms=now_ms, quiet_ms=quiet_ms) != "firing":
        return Episode(1, now_ms, now_ms, brief, brief, brief)
    return msgspec.structs.replace(
        episode,
        count=episode.count + 1,
        handled_ms=max(episode.handled_ms, now_ms),
        last=brief,
        worst=worse(episode.worst, brief),
    )


def _revised(episode: Episode | None, brief: Brief) -> Episode | None:
    if episode is None:
        return None

    def newer(held: Brief) -> Brief:
        same = held.incident_id == brief.incident_id
        return brief if same and brief.revision > held.revision else held

    first, last = newer(episode.first), newer(episode.last)
    return msgspec.structs.replace(
        episode, first=first, last=last, worst=worse(newer(episode.worst), brief)
    )


def _uncounted(row: GroupRow, channel: Channel, now_ms: int) -> GroupRow:
    """With one incident less in the channel; the alert of an episode that all have left ends."""
    if channel == "shadow":
        return msgspec.structs.replace(row, shadow=row.shadow - 1)

    def shrunk(episode: Episode | None) -> Episode | None:
        if episode is None or episode.ended_ms is not None:
            return episode
        left = episode.count - 1
        return msgspec.structs.replace(episode, count=left, ended_ms=now_ms if left <= 0 else None)

    return _with(row, channel, shrunk)


def _with(
    row: GroupRow,
    channel: Channel,
    change: Callable[[Episode | None], Episode | None],
    **fields: Any,
) -> GroupRow:
    """The row with the channel's episode changed, and other fields set."""
    if channel == "page":
        return msgspec.structs.replace(row, page=change(row.page), **fields)
    if channel == "old":
        return msgspec.structs.replace(row, old=change(row.old), **fields)
    return msgspec.structs.replace(row, **fields)


def _identity(incident: Incident) -> bytes:
    return hashlib.blake2b(incident.incident_id.encode(), digest_size=_ID_BYTES).digest()


def brief_of(incident: Incident) -> Brief:
    return Brief(
        incident.incident_id,
        incident.revision,
        incident.trace_id,
        incident.scorer,
        incident.policy_class,
        incident.argmax_span_id,
        incident.argmax_role,
        incident.max_score,
        incident.threshold,
        incident.model_version,
        incident.forensics.status,
        incident.summary[:SUMMARY_LIMIT],
        incident.caused_at_ms,
        in_words(incident),
    )
