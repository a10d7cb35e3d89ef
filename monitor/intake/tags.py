"""What a tool does, from its name: tags by verb and object, no product's tool list.

A name is cut into words (snake, kebab, camel, dots); its first known verb is what the tool does, its other
words are what it does it to. A rule gives its tag if the verb matches and, where the rule names objects,
one of them is among the words. `MONITOR_CONVENTIONS` adds rules and exact names.
"""

from __future__ import annotations

import re
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
    "export push broadcast transmit dm text fax sync webhook curl"
)
_RUN = _words("run execute exec eval evaluate invoke spawn launch deploy compile ssh shell bash")
_PAY = _words(
    "pay transfer purchase buy wire charge withdraw deposit refund donate trade sell remit"
)
_CHANGE = _words(
    "write update create add edit set modify change insert append save store move rename replace put "
    "patch schedule reschedule book reserve register make upsert reset rotate grant assign enable"
)
_REMOVE = _words(
    "delete remove drop cancel clear purge erase destroy unregister revoke trash disable"
)

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
    TagRule(MONEY, _CHANGE | _SEND | _words("approve issue place"), _ORDER_TO_PAY),
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

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


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
        self._cache: dict[str, tuple[str, ...]] = {}
        self._cache_size = cache

    def tags(self, tool_name: str) -> tuple[str, ...]:
        """Sorted tags; empty where the name says nothing.

        >>> TagTable().tags("send_email"), TagTable().tags("GmailSearchMessages")
        (('egress',), ('private_read', 'untrusted_read'))
        """
        cached = self._cache.get(tool_name)
        if cached is None:
            if len(self._cache) >= self._cache_size:
                self._cache.clear()
            cached = self._cache[tool_name] = self._derive(tool_name)
        return cached

    def _derive(self, tool_name: str) -> tuple[str, ...]:
        exact = self._names.get(tool_name.lower())
        if exact is not None:
            return tuple(sorted(exact))
        words = [word.lower() for word in _WORD.findall(tool_name)]
        verb = next((word for word in words if word in self._verbs), None)
        if verb is None:
            return tuple(sorted({NOUNS[word] for word in words if word in NOUNS}))
        objects = {form for word in words if word != verb for form in _forms(word)}
        found = {
            rule.tag
            for rule in self._rules
            if verb in rule.verbs and (not rule.objects or objects & rule.objects)
        }
        if not found and verb in _READ:
            found = {READ}
        return tuple(sorted(found))


def _forms(word: str) -> tuple[str, ...]:
    """A word and its singular."""
    if word.endswith("ies"):
        return word, word[:-3] + "y"
    if word.endswith("es"):
        return word, word[:-1], word[:-2]
    return (word, word[:-1]) if word.endswith("s") else (word,)
