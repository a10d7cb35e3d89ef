"""What a tool does, from its name: tags by verb and object, no product's tool list.

A name is cut into words (snake, kebab, camel, dots); its verbs are what the tool does, its other words are
what it does it to. A rule gives its tag if a verb matches and, where the rule names objects, one of them is
among the words. The tags of all verbs count, so that a name which begins harmlessly hides nothing, and a tool
only reads if every verb of its name does. `MONITOR_CONVENTIONS` adds rules and exact names.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

import msgspec

PRIVATE_READ: Final = "private_read"  # reads what belongs to the user or the organisation
UNTRUSTED_READ: Final = "untrusted_read"  # reads what a stranger may have written
READ: Final = "read"  # reads; nothing says what
EGRESS: Final = "egress"  # carries data to somebody else
EXECUTE: Final = "execute"  # runs code or commands
MONEY: Final = "money"  # moves money
ACCESS: Final = "access"  # changes credentials or who may do what
WRITE: Final = "write"  # changes stored things
DELETE: Final = "delete"  # removes stored things
READ_TAGS: Final = frozenset({PRIVATE_READ, UNTRUSTED_READ, READ})


class TagRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``objects`` empty: the verb alone is enough."""

    tag: str
    verbs: frozenset[str]
    objects: frozenset[str] = frozenset()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READ = _words(
    "get read list search find fetch lookup look query view show retrieve check load open download "
    "browse scrape crawl describe count select scan inspect recall summarize watch receive"
)
_SEND = _words(
    "send post publish share forward upload email mail tweet reply notify invite message submit "
    "export push broadcast transmit dm text fax sync webhook curl respond announce disclose leak"
)
_RUN = _words("run execute exec eval evaluate invoke spawn launch deploy compile ssh shell bash")
_PAY = _words(
    "pay transfer purchase buy wire charge withdraw deposit refund donate trade sell remit spend redeem "
    "reimburse swap checkout"
)
_CHANGE = _words(
    "write update create add edit set modify change insert append save store move rename replace put "
    "patch schedule reschedule book reserve register make upsert reset rotate grant assign enable overwrite "
    "copy clone merge commit install configure promote elevate unlock lock block ban approve accept confirm sign "
    "restore revert import"
)
_REMOVE = _words(
    "delete remove drop cancel clear purge erase destroy unregister revoke trash disable "
    "wipe truncate uninstall deactivate terminate kill unsubscribe"
)
# Verbs that are as often nouns or adjectives: after another verb they are what is read or sent, as in
# `get_post`, `send_email`, `list_scheduled_transfer`; after "and" or at the start of a name they are verbs.
_NOUN_TOO = _words(
    "email mail message post share tweet text fax dm invite webhook export forward reply push sync "
    "run shell bash ssh launch trigger transfer purchase wire charge deposit refund trade swap checkout "
    "update change set store move book patch schedule register reserve grant edit reset make put "
    "copy clone merge commit lock block sign import drop trash call use request issue place"
)
_AND: Final = _words("and then or plus also & +")

_OWN = _words(
    "email mail inbox message contact calendar event appointment file document doc drive folder note "
    "memory user account balance transaction profile credential secret password token customer client "
    "patient employee order record database db table sql invoice statement iban history crm ticket "
    "address phone chat conversation kb knowledge repository repo log meeting contract report photo "
    "attachment schedule payment salary"
)
_STRANGER = _words(
    "web website webpage page url link internet online site html http news article browser email mail "
    "inbox message review comment issue post feed rss forum channel tweet attachment wiki "
    "search result review pull"
)
_ORDER_TO_PAY = _words(
    "money payment transaction fund funds cash crypto bitcoin stock share invoice bill"
)
_CODE = _words("code script command cmd shell bash terminal python sql query program notebook job")
_WHO = _words("password credential permission role key token access member user group policy mfa")

RULES: Final[tuple[TagRule, ...]] = (
    TagRule(PRIVATE_READ, _READ, _OWN),
    TagRule(UNTRUSTED_READ, _READ, _STRANGER),
    TagRule(EGRESS, _SEND),
    TagRule(EGRESS, _words("invite add"), _words("participant attendee guest recipient invite")),
    TagRule(EGRESS, _words("request call"), _words("http api webhook url rest")),
    TagRule(EXECUTE, _RUN - {"evaluate", "invoke"}),
    TagRule(EXECUTE, _RUN | _SEND | _words("call use"), _CODE),
    TagRule(MONEY, _PAY),
    TagRule(MONEY, _CHANGE | _SEND | _words("issue place"), _ORDER_TO_PAY),
    TagRule(ACCESS, _CHANGE | _REMOVE | _words("invite"), _WHO),
    TagRule(WRITE, _CHANGE),
    TagRule(DELETE, _REMOVE),
)
# Names without a verb: the noun is the act.
NOUNS: Final[dict[str, str]] = {
    **dict.fromkeys(("shell", "bash", "terminal", "python", "interpreter", "repl", "ssh"), EXECUTE),
    **dict.fromkeys(("http", "requests", "smtp", "slack"), EGRESS),
    **dict.fromkeys(("browser", "web", "website", "url"), UNTRUSTED_READ),
    **dict.fromkeys(("payment", "payments", "stripe", "paypal"), MONEY),
    **dict.fromkeys(("inbox", "mailbox", "contacts", "database", "sql"), PRIVATE_READ),
}

# A verb before one of these does it, even after another verb: `check_wire_funds`, `lookup_reset_password`.
_GRAVE: Final = (
    TagRule(MONEY, _PAY, _ORDER_TO_PAY),
    *(rule for rule in RULES if rule.tag in (MONEY, ACCESS) and rule.objects),
)

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[&+]")
_LONG: Final = 200  # characters: a longer name is no tool's, and is not kept in the cache


class TagTable:
    """Tags of a tool name, cached. ``names`` (exact, lower case) win over all rules."""

    def __init__(
        self,
        rules: tuple[TagRule, ...] = (),
        names: dict[str, tuple[str, ...]] | None = None,
        cache: int = 20_000,
    ) -> None:
        self._rules = rules + RULES
        self._names = {name.lower(): tags for name, tags in (names or {}).items()}
        self._verbs = frozenset().union(*(rule.verbs for rule in self._rules))
        self._acting = frozenset().union(
            *(rule.verbs for rule in self._rules if rule.tag not in READ_TAGS)
        )
        # What an operator calls a verb is one wherever it stands.
        self._noun_too = _NOUN_TOO.difference(*(rule.verbs for rule in rules))
        self._cache: dict[str, tuple[str, ...]] = {}
        self._cache_size = cache

    def tags(self, tool_name: str) -> tuple[str, ...]:
        """Sorted tags; empty where the name says nothing.

        >>> TagTable().tags("send_email"), TagTable().tags("GmailSearchMessages")
        (('egress',), ('private_read', 'untrusted_read'))
        >>> TagTable().tags("mcp__bank__check_and_send_funds")
        ('egress', 'money')
        """
        cached = self._cache.get(tool_name)
        if cached is None:
            cached = self._derive(tool_name)
            if len(tool_name) <= _LONG:
                if len(self._cache) >= self._cache_size:
                    self._cache.clear()
                self._cache[tool_name] = cached
        return cached

    def _derive(self, tool_name: str) -> tuple[str, ...]:
        exact = self._names.get(tool_name.lower())
        if exact is not None:
            return tuple(sorted(exact))
        where, does = _split(tool_name)
        verbs = set(self._verbs_of(does)) or set(self._verbs_of(where))
        words = where + does
        if not verbs:
            return tuple(sorted({NOUNS[word] for word in words if word in NOUNS}))
        forms = [(word, form) for word in words for form in _forms(word)]
        objects = {form for _, form in forms}
        found: set[str] = set()
        acts = False  # by a verb that no rule has a tag for
        for verb in verbs:
            others = objects if verb not in objects else {f for word, f in forms if word != verb}
            tags = {
                rule.tag
                for rule in self._rules
                if verb in rule.verbs and (not rule.objects or others & rule.objects)
            }
            acts = acts or (not tags and verb in self._acting)
            found |= tags
        if acts and found and READ_TAGS.issuperset(found):
            found.add(EXECUTE)  # what is called or used besides what is read
        if not found and self._acting.isdisjoint(verbs):
            found = {READ}
        return tuple(sorted(found))

    def _verbs_of(self, words: list[str]) -> Iterator[str]:
        """The words that are verbs where they stand, each "and" beginning anew."""
        before = acting = (
            False  # whether a verb, one that does more than read, stands before in this clause
        )
        for place, word in enumerate(words):
            if word in _AND:
                before = acting = False
            elif word not in self._verbs:
                continue
            elif word in self._acting:
                following = words[place + 1 : place + 2]
                if not before or word not in self._noun_too or _grave(word, following):
                    before = acting = True
                    yield word
            elif not acting:  # after it, as in `delete_search_history`, it is what that is done to
                before = True
                yield word


def _split(tool_name: str) -> tuple[list[str], list[str]]:
    """Words of the server's name and of the tool's own: a server that is called for what it reads, or sends,
    says little of one of its tools. Letters that only look different are made the same."""
    if not tool_name.isascii():
        plain = unicodedata.normalize("NFKD", tool_name)
        tool_name = "".join(c for c in plain if unicodedata.category(c) not in ("Cf", "Mn"))
    where = ""
    if tool_name[:5].lower() == "mcp__":
        server, mark, tool = tool_name[5:].partition("__")
        if mark:
            where, tool_name = server, tool
    return _lower(where), _lower(tool_name)


def _lower(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _grave(verb: str, following: list[str]) -> bool:
    return any(
        verb in rule.verbs and not rule.objects.isdisjoint(_forms(word))
        for word in following
        for rule in _GRAVE
    )


def _forms(word: str) -> tuple[str, ...]:
    """A word and its singular."""
    if word.endswith("ies"):
        return word, word[:-3] + "y"
    if word.endswith("es"):
        return word, word[:-1], word[:-2]
    return (word, word[:-1]) if word.endswith("s") else (word,)
