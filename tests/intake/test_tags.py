"""Tags by verb and object. The names come from many products and none is in the table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.intake.tags import TagRule, TagTable

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


def test_operators_rules_and_names_count() -> None:
    rule = TagRule("egress", frozenset({"teleport"}))
    table = TagTable((rule,), {"Calculator": ("execute", "audited")})
    assert table.tags("teleport_parcel") == ("egress",)
    assert table.tags("calculator") == ("audited", "execute")


@given(st.text(max_size=60))
def test_any_name_is_taken_and_the_cache_changes_nothing(name: str) -> None:
    small = TagTable(cache=1)
    assert small.tags(name) == TABLE.tags(name) == small.tags(name)
