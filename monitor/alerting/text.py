"""Names that others chose, made fit for a page: bounded, on one line, without markup.

A service, scorer or policy name comes out of a span. It must not break a chat message (``<!channel>``), hide
behind bidirectional controls, or flood Alertmanager with labels of 1 MB.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Final

LABEL_LIMIT: Final = 100  # characters; a Kubernetes name has at most 63, a service.name seldom more
ANNOTATION_LIMIT: Final = 200  # of one name or id inside an annotation

_ESCAPED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Signs that chat programs, Markdown and HTML read as markup, each by one that only looks like it.
_LOOKALIKES: Final = str.maketrans({"<": "‹", ">": "›", "`": "ˋ", "&": "＆"})
# What chat programs, Markdown and template engines behind a webhook act upon, by the sign that starts it; a model
# version such as `name@20240620` or a set of braces stays as it is.
_ACTIVE: Final = re.compile(r"\{(?=[{%])|\](?=\()|@(?=(?:all|channel|everyone|here)\b)|\$(?=\{)")


def clean(text: str, limit: int = ANNOTATION_LIMIT) -> str:
    """``text`` on one line, invisible signs written as ``\\uXXXX``, at most ``limit`` characters."""
    # Cut first: a sign becomes at most ten, and nobody reads what is behind the limit.
    written = "".join(
        _escape(c) if unicodedata.category(c) in _ESCAPED_CATEGORIES else c for c in text[:limit]
    ).translate(_LOOKALIKES)
    written = _ACTIVE.sub(r"\g<0> ", written)
    if len(text) > limit or len(written) > limit:
        return written[: limit - 1] + "…"
    return written


def label(text: str) -> str:
    """As :func:`clean`, but two long names that differ give labels that differ; never empty."""
    cleaned = clean(text, LABEL_LIMIT)
    if cleaned.endswith("…"):
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=4).hexdigest()
        return f"{cleaned[: LABEL_LIMIT - 10]}…{digest}"
    return cleaned if cleaned.strip() else "unknown"


def _escape(sign: str) -> str:
    code = ord(sign)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
