"""Tags by verb and object. The names come from many products and none is in the table."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.intake.tags import READ_TAGS, TagRule, TagTable

from .common import CONFIG, decode, native, only

TABLE = TagTable()


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("send_email", {"egress"}),
        ("GmailSendMessage", {"egress"}),
        ("slack.post-message", {"egress"}),
        ("http_request", {"egress"}),
        ("upload_to_s3", {"egress"}),
        ("searchEmails", {"private_read", "untrusted_read"}),
        ("get_post", {"untrusted_read"}),
        ("read_channel_messages", {"private_read", "untrusted_read"}),
        ("fetch_webpage", {"untrusted_read"}),
        ("web_search", {"untrusted_read"}),
        ("get_customer_orders", {"private_read"}),
        ("kb_retrieve", {"private_read"}),
        ("queryDatabase", {"private_read"}),
        ("get_weather", {"read"}),
        ("lookup", {"read"}),
        ("run_python_code", {"execute"}),
        ("execute-shell", {"execute"}),
        ("bash", {"execute"}),
        ("transfer_funds", {"money"}),
        ("createPayment", {"money", "write"}),
        ("refund", {"money"}),
        ("update_password", {"access", "write"}),
        ("grantUserRole", {"access", "write"}),
        ("delete_file", {"delete"}),
        ("create_ticket", {"write"}),
        ("calculator", set()),
        ("think", set()),
        ("", set()),
        ("送信", set()),
    ],
)
def test_tags_of(name: str, tags: set[str]) -> None:
    assert set(TABLE.tags(name)) == tags


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("check_and_send_funds", {"egress", "money"}),
        ("checkAndSendFunds", {"egress", "money"}),
        ("CheckAndSendFunds", {"egress", "money"}),
        ("check-and-send-funds", {"egress", "money"}),
        ("bank.check.send_funds", {"egress", "money"}),
        ("check&send+funds", {"egress", "money"}),
        ("mcp__bank__check_and_send_funds", {"egress", "money"}),
        ("mcp_bank_check_send_funds", {"egress", "money"}),
        ("get_or_create_user", {"access", "private_read", "write"}),
        ("view_wipe", {"delete"}),
        ("find_replace", {"write"}),
        ("loadAndRun", {"execute"}),
        ("ReadFileAndPost", {"egress", "private_read", "untrusted_read"}),
        ("check_wire_funds", {"money"}),
        ("lookup_reset_password", {"access", "private_read", "write"}),
        ("fetch_then_execute", {"execute"}),
        ("read_email_and_call", {"execute", "private_read", "untrusted_read"}),
        ("mcp__search__send_email", {"egress"}),
        ("get_\uff53\uff45\uff4e\uff44_email", {"egress", "private_read", "untrusted_read"}),
        ("get_se\u200bnd", {"egress"}),
    ],
)
def test_the_gravest_verb_wins_wherever_it_stands(name: str, tags: set[str]) -> None:
    """A harmless first verb must not make a tool that acts one that only reads."""
    assert set(TABLE.tags(name)) >= tags
    assert not READ_TAGS.issuperset(TABLE.tags(name))


@pytest.mark.parametrize(
    "name",
    [
        "get_post",
        "get_latest_post",
        "getEmailAddress",
        "get_transfer_status",
        "list_trade_history",
        "get_commit",
        "mcp__send_grid__list_contacts",
        "mcp__postgres__query",
        "mcp__fetch__fetch",
        "gmail.users.messages.get",
        "get_place_details",
        "search_run_log",
        "list_files_and_folders",
    ],
)
def test_what_a_reading_verb_reads_is_a_noun(name: str) -> None:
    tags = TABLE.tags(name)
    assert tags
    assert READ_TAGS.issuperset(tags)


@given(
    st.sampled_from(["get", "check", "list", "search", "view"]),
    st.sampled_from(["send", "delete", "create", "execute", "pay", "transfer", "email", "run"]),
    st.sampled_from(["_", "-", ".", "__", " ", "/", "::"]),
    st.booleans(),
)
def test_law_a_verb_that_acts_is_never_read_only(
    reads: str, acts: str, between: str, camel: bool
) -> None:
    words = [reads, "thing", "and", acts]
    name = "".join(map(str.title, words)) if camel else between.join(words)
    for prefix in ("", "mcp__server__", "functions.", "default_api:"):
        assert not READ_TAGS.issuperset(TABLE.tags(prefix + name)), prefix + name


def test_operators_verbs_count_wherever_they_stand() -> None:
    table = TagTable((TagRule("money", frozenset({"dues"})),))
    assert table.tags("get_dues") == ("money",)
    assert TABLE.tags("get_dues") == ("read",)


def test_a_name_that_is_no_name_is_not_kept() -> None:
    table = TagTable()
    assert table.tags("get_" + "x" * 100_000 + "_and_pay") == ("money",)
    assert not table._cache


def test_agentdojos_tools_keep_their_roles(shared_data: Path) -> None:
    """The data's own roles are by hand: reading tools are retrievals."""
    tools: dict[str, str] = {}
    with gzip.open(shared_data / "agentdojo/spans.jsonl.gz") as lines:
        for line in lines:
            span = json.loads(line)
            name = span["attributes"].get("gen_ai.tool.name")
            if name:
                tools[name] = span["role"]
    assert len(tools) == 26
    for name, role in tools.items():
        only_reads = READ_TAGS.issuperset(TABLE.tags(name))
        assert only_reads == (role == "retrieval"), name


def test_operators_rules_and_names_count() -> None:
    rule = TagRule("egress", frozenset({"teleport"}))
    table = TagTable((rule,), {"Calculator": ("execute", "audited")})
    assert table.tags("teleport_parcel") == ("egress",)
    assert table.tags("calculator") == ("audited", "execute")


@given(st.text(max_size=60))
def test_any_name_is_taken_and_the_cache_changes_nothing(name: str) -> None:
    small = TagTable(cache=1)
    assert small.tags(name) == TABLE.tags(name) == small.tags(name)


def test_a_senders_own_tags_do_not_push_out_what_the_tools_name_says() -> None:
    own = [f"a{n:02}" for n in range(40)]
    span = only(
        decode(native(attributes={"gen_ai.tool.name": "send_email", "agent_monitor.tags": own}))
    )
    assert span.detail is not None
    assert "egress" in span.detail.tags
    assert len(span.detail.tags) == CONFIG.bounds.tags
