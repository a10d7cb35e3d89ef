"""The user's own words out of what a model or agent was given.

Input messages repeat the whole conversation, tool results included; a value counts as the user's only where
a message of role user holds it. Content without messages (a question as plain text) is taken whole, if the
caller says that the span is one that users speak to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from monitor.intake.tokens import Content, Tokenizer, leaves, parse

_USER: Final = frozenset({"user", "human"})
# LangChain writes the role of a message as its type.
_TYPES_THAT_ARE_ROLES: Final = frozenset({"human", "ai", "system", "tool"})
_UNWRAP: Final = 3  # JSON inside a string inside JSON


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
                    stack.extend((each, unwrap) for each in reversed(item.values()))
                else:
                    saw_roles = True
                    if role in _USER:
                        user.extend(leaves(item))
            case _:
                pass
    if saw_roles:
        return tokenizer.of_texts(user, flags)
    return tokenizer.of_texts(other, flags) if plain and not (flags and not other) else None


def request_of_parts(tokenizer: Tokenizer, parts: Iterable[tuple[str, object]]) -> Content | None:
    """The same for flattened messages: ``….3.message.role``, ``….3.message.content``."""
    roles: dict[str, str] = {}
    texts: dict[str, list[str]] = {}
    for key, value in parts:
        head, _, last = key.rpartition(".")
        if last == "role" and isinstance(value, str):
            roles[head] = value
        elif last == "content":
            texts.setdefault(head, []).extend(leaves(value))
    if not roles:
        return None
    return tokenizer.of_texts(
        [text for head, own in texts.items() if roles.get(head) in _USER for text in own]
    )


def _role(message: dict[object, object]) -> str | None:
    role = message.get("role")
    if isinstance(role, str):
        return role.lower()
    kind = message.get("type")
    return kind if isinstance(kind, str) and kind in _TYPES_THAT_ARE_ROLES else None
