"""The user's own words out of what a model or agent was given.

Input messages repeat the whole conversation, tool results included; a value counts as the user's only where
a message of role user holds it. Content without messages (a question as plain text) is taken whole, if the
caller says that the span is one that users speak to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from monitor.intake.tokens import Content, Tokenizer, leaves, parse

_USER: Final = frozenset({"user", "human"})
# LangChain writes the role of a message as its type.
_TYPES_THAT_ARE_ROLES: Final = frozenset({"human", "ai", "system", "tool"})
_UNWRAP: Final = 3  # JSON inside a string inside JSON
# Providers without a role for tools hand results back in a message of the user (Anthropic, Bedrock, Gemini). What
# a tool gave is nobody's request: else a value that an attacker put there would count as the user's own.
_RESULT_TYPES: Final = frozenset(
    {"tool_result", "tool_call_response", "function_call_output", "tool-result", "tool-return"}
)
_RESULT_KEYS: Final = frozenset(
    {"toolResult", "tool_result", "functionResponse", "function_response"}
)


def request(tokenizer: Tokenizer, value: object, *, plain: bool, limit: int) -> Content | None:
    """Tokens of the user's messages in ``value``; None where the user's words cannot be told apart."""
    user: list[str] = []
    other: list[str] = []
    saw_roles = False
    flags = 0
    stack: list[tuple[object, int]] = [(value, _UNWRAP)]
    while stack:
        item, unwrap = stack.pop()
        match item:
            case str() if unwrap and item[:1] in ("{", "[", '"'):
                inner, cut = parse(item[:limit])
                flags |= cut
                if inner is None or inner == item:
                    other.append(item)
                else:
                    stack.append((inner, unwrap - 1))
            case str():
                other.append(item)
            case list() | tuple():
                stack.extend((each, unwrap) for each in reversed(item))
            case dict():
                role = _role(item)
                if role is None:
                    stack.extend((each, unwrap) for each in _but_results(item))
                else:
                    saw_roles = True
                    if role in _USER:
                        user.extend(_own_words(item))
            case _:
                pass
    if saw_roles:
        return tokenizer.of_texts(user, flags)
    return tokenizer.of_texts(other, flags) if plain and not (flags and not other) else None


def request_of_parts(tokenizer: Tokenizer, parts: Iterable[tuple[str, object]]) -> Content | None:
    """The same for flattened messages: ``….3.message.role``, ``….3.message.content``, and of a content in parts
    ``….3.message.contents.0.message_content.text``."""
    roles: dict[str, str] = {}
    texts: dict[str, list[str]] = {}
    for key, value in parts:
        head, _, last = key.rpartition(".")
        if last == "role" and isinstance(value, str):
            roles[head] = value
        elif last in ("content", "text"):
            head = head.partition(".contents.")[0]
            texts.setdefault(head, []).extend(_own_words({"content": value}))
    if not roles:
        return None
    return tokenizer.of_texts(
        [text for head, own in texts.items() if roles.get(head) in _USER for text in own]
    )


def _own_words(message: dict[object, object]) -> Iterator[str]:
    """Texts of a user's message but for the results of tools in it, which may lie in JSON text, too."""
    stack: list[tuple[object, int]] = [(message, _UNWRAP)]
    while stack:
        item, unwrap = stack.pop()
        match item:
            case dict():
                stack.extend((value, unwrap) for value in _but_results(item))
            case list() | tuple():
                stack.extend((each, unwrap) for each in reversed(item))
            case str() if unwrap and item[:1] in ("{", "["):
                inner, _ = parse(item)
                if inner is None or inner == item:
                    yield item
                else:
                    stack.append((inner, unwrap - 1))
            case _:
                yield from leaves(item)


def _but_results(item: dict[object, object]) -> Iterator[object]:
    """Values of a part of a message, the last one first; none of what a tool gave back."""
    kind = item.get("type", item.get("part_kind"))
    if not (isinstance(kind, str) and kind in _RESULT_TYPES):
        yield from (value for key, value in reversed(item.items()) if key not in _RESULT_KEYS)


def _role(message: dict[object, object]) -> str | None:
    role = message.get("role")
    if isinstance(role, str):
        return role.lower()
    kind = message.get("type")
    return kind if isinstance(kind, str) and kind in _TYPES_THAT_ARE_ROLES else None
