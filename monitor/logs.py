"""Logs: structlog for us, the same renderer for the libraries that log through the standard module.

An event is a short sentence in the past or present tense; what varies are fields, never the sentence.
Fields carry names, ids and counts, never content of spans.
"""

from __future__ import annotations

import logging
import sys
from typing import Final, Literal, TextIO

import structlog
from structlog.typing import Processor

from monitor.chatter import ChatterFilter

_SHARED: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)

# Without the values of local variables: those hold spans' content and the operator's secrets.
_TRACEBACKS: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)

# They say at info what every rebalance or fetch does; a fault is a warning or an error.
_QUIET: Final = ("aiokafka", "faust", "mode", "kafka", "asyncio", "aiohttp.access")


def configure(
    level: str = "info", style: Literal["json", "console"] = "json", stream: TextIO | None = None
) -> None:
    """Set up logging of this process, anew at each call. ``stream`` defaults to standard error."""
    out = stream if stream is not None else sys.stderr
    render: tuple[Processor, ...]
    if style == "json":
        render = (
            _TRACEBACKS,
            structlog.processors.JSONRenderer(ensure_ascii=True),
        )
    else:
        plain = structlog.dev.plain_traceback
        render = (structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain),)
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    if level != "debug":
        handler.addFilter(ChatterFilter(logging.getLevelNamesMapping()[level.upper()]))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    quiet = max(logging.WARNING, root.level) if level != "debug" else logging.DEBUG
    for name in _QUIET:
        logging.getLogger(name).setLevel(quiet)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # a second configure (tests, the CLI) must reach loggers in use
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module: ``log = get_logger(__name__)``."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger
