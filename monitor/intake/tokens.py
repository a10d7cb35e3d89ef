"""Content as keyed hashes of the values in it: enough to see that a value flowed, no way back to the text.

A *value* is what an attacker must name exactly: addresses, URLs, hosts, paths, file names, account numbers,
amounts, ids. Plain words, dates and times are no tokens: they are in everything, and everything would seem
to flow. At most ``Bounds.tokens`` a span, addresses first, then in order of appearance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec

from monitor.intake.bounds import Bounds
from monitor.model import OVERFLOW, TRUNCATED

TOKEN_BYTES = 8
_REMEMBERED = 128  # characters of a value whose hash is worth remembering
_NESTING = 64  # of cut JSON that is closed again; more is no message list
_HELD_BY_ANOTHER = 3  # JSON inside a string inside JSON: how often it is unwrapped

_CUT = r"\s\"'<>()\[\]{},;|=&?#`*"  # what words are cut at
# The words that are not letters alone: prose, which is most of a text, is passed over inside the expression.
# Possessive throughout, and the word may be empty: each character is looked at once, whatever the text.
_WORDS = re.compile(rf"(?:[A-Za-z]*+[{_CUT}]++)*+([^{_CUT}]*+)")
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[nrt\"])")
_WHEN = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}(?:t.*)?|\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:am|pm)?|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}"
)
_DOTTED = re.compile(r"(?:[\w-]+\.)+[a-z]{2,10}")
_BEGINS_AS_JSON = re.compile(r'\{\s*"|\[\s*(?:[\[{"\d-]|true|false|null)|"[^"]*\Z')
_EDGE = ".,:!?-_~^$€£%+\\"

_json = msgspec.json.Decoder()


class Content(msgspec.Struct, frozen=True):
    """``tokens`` as in SpanDetail; ``flags``: TRUNCATED, OVERFLOW."""

    tokens: bytes
    flags: int = 0


class Tokenizer:
    def __init__(self, key: bytes, bounds: Bounds) -> None:
        self._base = blake2b(key=key, digest_size=TOKEN_BYTES, person=b"flow-token")
        self._bounds = bounds
        self._cache: dict[str, bytes] = {}

    def content(self, values: Iterable[object]) -> Content:
        """Tokens of attribute values: text, JSON text, or lists and dicts of either."""
        flags = 0
        texts: list[str] = []
        for value in values:
            if isinstance(value, str) and len(value) > self._bounds.content:
                value, flags = value[: self._bounds.content], flags | TRUNCATED
            flags |= self._texts(value, texts, _HELD_BY_ANOTHER)
        return self.of_texts(texts, flags)

    def of_texts(self, texts: Iterable[str], flags: int = 0) -> Content:
        """Tokens of plain texts."""
        first: dict[str, None] = {}
        second: dict[str, None] = {}
        for text in texts:
            if len(text) > self._bounds.content:
                text, flags = text[: self._bounds.content], flags | TRUNCATED
            # An escape glues two words together; paths lose the same parts everywhere.
            if "\\" in text:
                text = _ESCAPE.sub(" ", text)
            for word in _WORDS.findall(text):
                if len(word) < 4 or word.isalpha():
                    continue
                for value, is_address in values_of(word):
                    (first if is_address else second)[value] = None
        kept = [*first, *(value for value in second if value not in first)]
        if len(kept) > self._bounds.tokens:
            flags |= OVERFLOW
            del kept[self._bounds.tokens :]
        return Content(b"".join([self._hash(value) for value in kept]), flags)

    def _texts(self, value: object, into: list[str], unwrap: int) -> int:
        flags = 0
        for leaf in leaves(value):
            if unwrap and leaf[:1] in ("{", "[", '"'):
                inner, cut = parse(leaf)
                flags |= cut
                if inner is not None and inner != leaf:
                    flags |= self._texts(inner, into, unwrap - 1)
                    continue
            into.append(leaf)
        return flags

    def _hash(self, value: str) -> bytes:
        token = self._cache.get(value)
        if token is None:
            state = self._base.copy()
            state.update(value.encode())
            token = state.digest()
            if len(value) <= _REMEMBERED:
                if len(self._cache) >= self._bounds.cache:
                    self._cache.clear()
                self._cache[value] = token
        return token


def shared(contents: tuple[Content | None, ...], limit: int) -> tuple[Content | None, ...]:
    """The contents of one span, cut so that they hold ``limit`` tokens in all: none is cut to less than its
    equal share while another has more, and what one does not need of its share goes to the others."""
    left, room = sum(content is not None for content in contents), limit
    kept: dict[int, int] = {}
    for place, content in sorted(
        ((place, content) for place, content in enumerate(contents) if content is not None),
        key=lambda each: len(each[1].tokens),
    ):
        kept[place] = min(len(content.tokens) // TOKEN_BYTES, room // left)
        room, left = room - kept[place], left - 1
    return tuple(
        content
        if content is None or kept[place] * TOKEN_BYTES == len(content.tokens)
        else Content(content.tokens[: kept[place] * TOKEN_BYTES], content.flags | OVERFLOW)
        for place, content in enumerate(contents)
    )


def values_of(word: str) -> Iterator[tuple[str, bool]]:
    """The values in a word that is cut at white space and brackets; True for addresses."""
    word = word.strip(_EDGE).casefold()
    if len(word) < 4 or word.isalpha():
        return
    if "://" in word or word.startswith("www."):
        bare = word.partition("://")[2] or word
        host, _, path = bare.partition("/")
        if path:
            yield bare.rstrip("/"), True
        if host:
            yield host, True
        return
    if "@" in word:
        yield word.removeprefix("mailto:").rsplit(":", 1)[-1], True
        return
    if _WHEN.fullmatch(word):
        return
    if _DOTTED.fullmatch(word):
        yield word, True
        return
    if "/" in word or "\\" in word:
        yield word, False
        return
    if ":" in word:
        for part in word.split(":"):
            yield from values_of(part)
        return
    digits = sum(c.isdigit() for c in word)
    named = "_" in word and len(word) >= 6  # an identifier: snake case is nobody's prose
    if digits >= 4 or named or (digits and len(word) >= 5 and not word.replace(".", "").isdigit()):
        yield word, False


def leaves(value: object) -> Iterator[str]:
    """Strings and numbers in ``value``, in order, without recursion; keys of a dict are no content."""
    stack: list[object] = [value]
    while stack:
        item = stack.pop()
        match item:
            case str():
                yield item
            case bool() | None:
                pass
            case float():
                yield repr(item)
            case int() if -(2**63) <= item < 2**64:  # longer ones are no account number
                yield str(item)
            case bytes():
                yield item.decode("utf-8", "replace")
            case dict():
                stack.extend(reversed(item.values()))
            case list() | tuple():
                stack.extend(reversed(item))


def parse(text: str) -> tuple[object, int]:
    """JSON text as a value, also where the sender cut it (TRUNCATED); None if it is none, or beyond use."""
    try:
        return _json.decode(text), 0
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        pass
    if not _BEGINS_AS_JSON.match(text):  # a Python dict as printed, a sentence in brackets
        return None, 0
    try:
        return _json.decode(closed(text)), TRUNCATED
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None, TRUNCATED


_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{},:]', re.DOTALL)


def closed(text: str) -> str:
    """Cut JSON closed again: after its last whole value, or in the middle of a string value.

    >>> closed('{"a": [1, {"b": "xy')
    '{"a": [1, {"b": "xy"}]}'
    """
    stack: list[str] = []
    end, quote, open_brackets = 0, "", ""  # up to where closing gives valid JSON, and with what
    value_next = True  # in an object: the next string is a value, not a key
    for match in _STRUCTURE.finditer(text):
        token = match.group()
        head = token[0]
        if head in "{[":
            if len(stack) == _NESTING:
                return text
            stack.append("}" if head == "{" else "]")
            value_next = head == "["
            end, quote, open_brackets = match.end(), "", "".join(stack)
        elif head in "}]":
            if not stack:
                return text
            stack.pop()
            end, quote, open_brackets = match.end(), "", "".join(stack)
        elif head == ",":
            end, quote, open_brackets = match.start(), "", "".join(stack)
            value_next = not stack or stack[-1] == "]"
        elif head == ":":
            value_next = True
        elif value_next:
            end, quote, open_brackets = match.end(), "", "".join(stack)
            if len(token) == 1 or token[-1] != '"' or _ends_escaped(token):
                end, quote = len(text[:end].rstrip("\\")), '"'
    return text[:end] + quote + open_brackets[::-1]


def _ends_escaped(token: str) -> bool:
    tail = token[1:-1]
    return (len(tail) - len(tail.rstrip("\\"))) % 2 == 1
