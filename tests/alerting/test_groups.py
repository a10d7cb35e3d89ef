"""The pure life of an alert group."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.alerting import groups
from monitor.alerting.groups import GroupKey, GroupRow, group_of
from monitor.errors import UndecodableRecord
from tests.alerting.incidents import incident

QUIET = 3_600_000
GROUP = group_of(incident())


def apply(
    row: GroupRow, *args: object, now: int = 1000, channel: str = "page", **changes: object
) -> GroupRow:
    return groups.apply(
        row,
        incident(*args, **changes),
        channel=channel,
        now_ms=now,
        quiet_ms=QUIET,  # type: ignore[arg-type]
    )


def test_an_episode_counts_first_last_and_worst() -> None:
    row = GroupRow(GROUP)
    row = apply(row, "a", max_score=0.5, now=1000)
    row = apply(row, "b", max_score=0.9, now=2000)
    row = apply(row, "c", max_score=0.4, now=3000)
    assert row.page is not None
    assert (row.page.count, row.total) == (3, 3)
    assert (row.page.started_ms, row.page.handled_ms) == (1000, 3000)
    ids = [b.incident_id for b in (row.page.first, row.page.last, row.page.worst)]
    assert ids == ["a", "c", "b"]


def test_of_equal_scores_the_first_stays_worst() -> None:
    row = apply(apply(GroupRow(GROUP), "a"), "b")
    assert row.page is not None
    assert row.page.worst.incident_id == "a"


def test_a_revision_changes_what_is_said_not_the_count_nor_the_time() -> None:
    row = apply(GroupRow(GROUP), "a", max_score=0.5, now=1000)
    row = apply(row, "a", revision=2, max_score=0.7, now=9000)
    assert row.page is not None
    assert (row.page.count, row.page.handled_ms) == (1, 1000)
    assert (row.page.last.revision, row.page.worst.max_score) == (2, 0.7)


def test_the_same_or_an_older_revision_changes_nothing() -> None:
    row = apply(GroupRow(GROUP), "a", revision=3)
    assert apply(row, "a", revision=3, now=5000) == row
    assert apply(row, "a", revision=2, now=5000) == row


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (0, "firing"),
        (QUIET - 1, "firing"),
        (QUIET, "resolved"),
        (QUIET + groups.RESOLVED_MS - 1, "resolved"),
        (QUIET + groups.RESOLVED_MS, "over"),
        (-50_000, "firing"),  # our clock was set back
    ],
)
def test_it_fires_while_its_last_incident_is_younger_than_quiet(after: int, expected: str) -> None:
    row = apply(GroupRow(GROUP), "a", now=10_000)
    assert row.page is not None
    assert groups.state(row.page, now_ms=10_000 + after, quiet_ms=QUIET) == expected


def test_the_next_incident_after_quiet_begins_another_episode() -> None:
    row = apply(GroupRow(GROUP), "a", now=1000)
    row = apply(row, "b", now=1000 + QUIET)
    assert row.page is not None
    assert (row.page.count, row.page.started_ms, row.total) == (1, 1000 + QUIET, 2)


def test_a_revision_after_quiet_does_not_fire_again() -> None:
    row = apply(GroupRow(GROUP), "a", now=1000)
    row = apply(row, "a", revision=2, now=1000 + QUIET)
    assert row.page is not None
    assert groups.state(row.page, now_ms=1000 + QUIET, quiet_ms=QUIET) == "resolved"


def test_an_incident_whose_severity_rose_leaves_and_the_empty_group_resolves_at_once() -> None:
    row = apply(GroupRow(GROUP), "a", now=1000)
    row = apply(row, "b", now=1500)
    row = apply(row, "a", revision=2, severity="warning", now=2000)
    assert row.page is not None
    assert (row.page.count, row.page.ended_ms) == (1, None)
    row = apply(row, "b", revision=2, severity="warning", now=2500)
    assert row.page is not None
    assert groups.state(row.page, now_ms=2500, quiet_ms=QUIET) == "resolved"
    assert row.total == 0
    assert apply(row, "b", revision=3, severity="warning", now=2600) == row


def test_an_incident_keeps_the_channel_it_was_first_put_in() -> None:
    """Its close comes up to 15 min later: it must not move from the page to the old ones meanwhile."""
    row = apply(GroupRow(GROUP), "a", channel="page")
    row = apply(row, "a", revision=2, channel="old", max_score=0.99)
    assert row.old is None
    assert row.page is not None
    assert row.page.worst.max_score == 0.99


def test_shadow_is_counted_apart_and_makes_no_episode() -> None:
    row = apply(GroupRow(GROUP), "a", channel="shadow")
    row = apply(row, "a", revision=2, channel="shadow")
    row = apply(row, "a", revision=3, channel="old")
    assert (row.shadow, row.page, row.old, row.total) == (1, None, None, 1)


@pytest.mark.parametrize("first", ["old", "shadow"])
def test_a_revision_that_is_a_page_by_itself_makes_the_incident_one_and_it_stays_one(
    first: str,
) -> None:
    """An attacker's harmless message first decides nothing over what the trace's other spans do."""
    row = apply(GroupRow(GROUP), "a", channel=first, max_score=0.3, now=1000)
    row = apply(row, "b", channel=first, max_score=0.3, now=1000)
    row = apply(row, "a", revision=2, channel="page", max_score=0.99, now=2000)
    assert row.page is not None
    assert (row.page.count, row.page.started_ms, row.page.worst.max_score) == (1, 2000, 0.99)
    assert (row.shadow, row.total) == (int(first == "shadow"), 2)
    assert (row.old is None) if first == "shadow" else (row.old is not None and row.old.count == 1)
    assert groups.channel_in(row, incident("a")) == "page"
    # Redelivered, and after a restart: counted once.
    again = groups.decode_row(groups.encode_row(row))
    assert apply(again, "a", revision=2, channel="page", max_score=0.99, now=3000) == row
    row = apply(again, "a", revision=3, channel=first, max_score=0.99, now=3000)
    assert row.page is not None
    assert (row.page.count, row.total) == (1, 2)
    row = apply(row, "b", revision=2, channel="page", now=4000)
    assert row.page is not None
    assert (row.page.count, row.shadow, row.total) == (2, 0, 2)
    if row.old is not None:
        assert groups.state(row.old, now_ms=4000, quiet_ms=QUIET) == "resolved"


def test_a_page_does_not_leave_for_a_group_in_which_it_would_be_none() -> None:
    """A forged time stamp on a graver span would take the alert back."""
    row = apply(GroupRow(GROUP), "a", now=1000)
    left = {"revision": 2, "severity": "warning", "rose_from": "critical"}
    assert apply(row, "a", channel="old", now=2000, **left) == row
    assert apply(row, "a", channel="shadow", now=2000, **left) == row
    assert apply(row, "a", channel="page", now=2000, **left).total == 0


def test_an_incident_that_rises_into_a_full_row_is_counted() -> None:
    row = GroupRow(GROUP)
    for n in range(groups.SEEN_LIMIT + 1):
        row = apply(row, f"i-{n}", channel="old")
    row = apply(row, "new", revision=2, rose_from="warning")
    assert row.page is not None
    assert (row.page.count, row.total) == (1, groups.SEEN_LIMIT + 2)


def test_a_forgotten_incident_still_becomes_a_page() -> None:
    """An attacker who fills the row's memory after a first message does not keep the page from coming."""
    row = GroupRow(GROUP)
    for n in range(groups.SEEN_LIMIT + 1):
        row = apply(row, f"i-{n}", channel="old")
    assert groups.channel_in(row, incident("i-0")) is None
    assert apply(row, "i-0", revision=2, channel="old") == row
    row = apply(row, "i-0", revision=2, channel="page")
    assert row.page is not None
    assert (row.page.count, row.total) == (1, groups.SEEN_LIMIT + 1)
    assert apply(row, "i-0", revision=2, channel="page") == row


def test_memory_is_bounded_and_a_forgotten_incidents_revision_is_not_another_incident() -> None:
    row = GroupRow(GROUP)
    for n in range(groups.SEEN_LIMIT + 50):
        row = apply(row, f"i-{n}")
    assert len(row.seen) == groups.SEEN_LIMIT
    before = row
    row = apply(row, "i-0", revision=2, max_score=0.99)
    assert row.page is not None
    assert row.page.worst.max_score == 0.99
    assert (row.page.count, row.total, row.seen) == (
        groups.SEEN_LIMIT + 50,
        groups.SEEN_LIMIT + 50,
        before.seen,
    )
    assert len(groups.encode_row(row)) < 8_000


messages = st.lists(
    st.tuples(st.integers(0, 8), st.integers(1, 4), st.integers(0, QUIET // 2), st.booleans()),
    max_size=60,
)


@given(messages)
def test_law_the_count_is_the_number_of_distinct_incidents_of_the_episode(
    sent: list[tuple[int, int, int, bool]],
) -> None:
    """Against a model that keeps everything."""
    row, now = GroupRow(GROUP), 0
    revision: dict[str, int] = {}
    inside: set[str] = set()
    last: int | None = None
    episode = 0
    ended = False
    for number, rev, step, leaves in sent:
        now += step
        name = f"i-{number}"
        row = apply(row, name, revision=rev, now=now, severity="info" if leaves else "critical")
        if leaves:
            if name in revision:
                del revision[name]
                inside.discard(name)
                if not ended and episode:
                    episode -= 1
                    ended = episode == 0
        elif name not in revision:
            if last is None or ended or now - last >= QUIET:
                episode, ended = 0, False
            episode += 1
            last = now
            revision[name] = rev
        else:
            revision[name] = max(revision[name], rev)
        assert row.total == len(revision)
        if row.page is not None:
            assert row.page.count == episode
    assert groups.decode_row(groups.encode_row(row)) == row


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 5), st.sampled_from(["page", "old", "shadow"])),
        max_size=60,
    )
)
def test_law_an_incident_is_in_one_channel_and_once_a_page_always_a_page(
    sent: list[tuple[int, int, str]],
) -> None:
    row = GroupRow(GROUP)
    revisions: dict[int, int] = {}
    channels: dict[int, str] = {}
    for number, revision, channel in sent:
        row = apply(row, f"i-{number}", revision=revision, channel=channel)
        row = apply(row, f"i-{number}", revision=revision, channel=channel)  # redelivered
        if revision > revisions.get(number, 0):
            revisions[number] = revision
            if number not in channels or channel == "page":
                channels[number] = channel
        held = [row.page, row.old]
        page, old = (0 if e is None or e.ended_ms is not None else e.count for e in held)
        found = list(channels.values())
        assert (page, row.total) == (found.count("page"), len(found))
        assert (old, row.shadow) == (found.count("old"), found.count("shadow"))


@given(st.text(), st.text(), st.text(), st.text())
def test_law_keys_come_back_and_no_name_imitates_another_group(
    a: str, b: str, c: str, d: str
) -> None:
    key = GroupKey(a, b, c, d)
    assert groups.decode_key(groups.encode_key(key)) == key


def test_a_key_or_row_of_another_kind_is_refused() -> None:
    for bad in (b"", b"shop|threshold", b"[1,2,3,4]", b"\xff\xfe", b'["a"]'):
        with pytest.raises(UndecodableRecord):
            groups.decode_key(bad)
    with pytest.raises(UndecodableRecord):
        groups.decode_row(b"\x93\x01")


def test_a_row_is_over_when_nothing_is_left_to_send() -> None:
    row = apply(GroupRow(GROUP), "a", now=0)
    end = QUIET + groups.RESOLVED_MS
    assert not groups.over(row, now_ms=end - 1, quiet_ms=QUIET, keep_ms=0)
    assert groups.over(row, now_ms=end, quiet_ms=QUIET, keep_ms=0)
    assert not groups.over(row, now_ms=end, quiet_ms=QUIET, keep_ms=end + 1)


def test_a_row_of_the_build_before_decodes_and_goes_on() -> None:
    """Its briefs ended before the neighbourhood."""
    row = apply(GroupRow(GROUP), "a")
    raw = msgspec.msgpack.decode(groups.encode_row(row))
    for brief in raw[1][3:6]:
        brief.pop()
    old = groups.decode_row(msgspec.msgpack.encode(raw))
    assert old.page is not None
    assert old.page.worst.neighbourhood == ""
    grown = apply(old, "b").page
    assert grown is not None
    assert grown.count == 2
