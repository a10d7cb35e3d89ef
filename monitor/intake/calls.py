"""Tool calls in what a model and a tool said: whether a model asked for one, and the ids that tie the two."""

from __future__ import annotations

import re
from typing import Final

from monitor.intake.bounds import Bounds
from monitor.intake.found import Found

_MEANS_TOOL: Final = frozenset(
    {"tool_calls", "tool_call", "tool-calls", "tool_use", "function_call"}
)
_NO_CALLS: Final = ("", "[]")  # the list of calls of an answer
# Of finish reasons written as one text, some as the name of an enumeration: `FinishReason.STOP,FinishReason.…`.
_REASON: Final = re.compile(r"[a-z_-]+")
_REASONS: Final = 256  # characters of finish reasons that are looked at
# In an output that may be cut: a list of calls that is not empty, a part that is a call, or why the model stopped.
_TOOL_IN_OUTPUT: Final = re.compile(
    r'"(?:tool_calls?|toolCalls|function_?[cC]all|toolUse|toolRequest)"\s*:\s*[\[{]\s*["{]'
    r'|"type"\s*:\s*"(?:tool_call|tool_use|tool-call|function_call)"'
    r'|"(?:finish|stop)_?[rR]eason"\s*:\s*"(?:tool_calls?|tool-calls|tool_use|function_call)"'
)
# Ids in the output of a model that asked for a tool. Those of messages and responses are among them; no tool call
# has one of these, so they tie nothing.
_ID_IN_OUTPUT: Final = re.compile(
    r'"(?:id|call_id|tool_call_id|toolCallId|toolUseId)"\s*:\s*"([^"\\]{1,256})"'
)
# What LangChain's tools give back is a message that holds the id of its call; a tool's own text is quoted in it, so
# that an id in there does not match.
_TOOL_MESSAGE: Final = re.compile(r'"type"\s*:\s*"tool"|"ToolMessage"')
_TOOL_MESSAGE_HEAD: Final = 256  # characters in which it says so
_ANSWERED_ID: Final = re.compile(r'"tool_call_id"\s*:\s*"([^"\\]{1,256})"')


def asks_for_tool(found: Found) -> bool:
    """Whether a model's answer is a call: by attributes of it, by why the model stopped, by its output."""
    if any(value not in _NO_CALLS for _, value in found.many.get("tool_request", ())):
        return True
    finish = found.get("finish")
    if finish is not None:
        reasons = finish if isinstance(finish, list | tuple) else (finish,)
        for reason in reasons:
            if isinstance(reason, str) and not _MEANS_TOOL.isdisjoint(
                _REASON.findall(reason[:_REASONS].lower())
            ):
                return True
    output = found.get("output")
    return isinstance(output, str) and _TOOL_IN_OUTPUT.search(output) is not None


def requested_ids(found: Found, bounds: Bounds) -> tuple[str, ...]:
    """Ids of the tool calls that a model asked for, each once, cut as a tool span's own id is."""
    ids = [value for _, value in found.many.get("call_id", ()) if isinstance(value, str)]
    for text in (found.get("output"), *(v for _, v in found.many.get("tool_request", ()))):
        if isinstance(text, str) and text[:1] in ("{", "["):
            ids += _ID_IN_OUTPUT.findall(text, 0, bounds.content)
    return tuple(dict.fromkeys(each[: bounds.name] for each in ids if each))[: bounds.call_ids]


def answered_id(found: Found, bounds: Bounds) -> str | None:
    """Id of the call that a tool's message answers."""
    for text in (found.get("result"), found.get("output")):
        if isinstance(text, str) and _TOOL_MESSAGE.search(text, 0, _TOOL_MESSAGE_HEAD):
            match = _ANSWERED_ID.search(text, 0, bounds.content)
            if match is not None:
                return match.group(1)
    return None
