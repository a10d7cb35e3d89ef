"""What the lanes of one process share so that they do not trip over each other."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from monitor.stream.transaction import OPEN_AT_ONCE


class Turns:
    """``work``: one lane at a time uses the processor, so that a step of another's open transaction waits for
    one slice of records and not for one of every lane (with 16 lanes a commit of 6 steps would take seconds).
    ``permits``: at most so many transactions open.
    """

    def __init__(self) -> None:
        self.work = asyncio.Lock()
        self.permits = asyncio.Semaphore(OPEN_AT_ONCE)

    @classmethod
    def here(cls) -> Turns:
        """The one of the running loop, that is of this process's batch loops."""
        loop = asyncio.get_running_loop()
        turns = _of_loop.get(loop)
        if turns is None:
            turns = _of_loop[loop] = cls()
        return turns


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()
