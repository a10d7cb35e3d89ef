"""The batch loops, with a signal to themselves at a named point: `CHAOS_CRASH_AT=<stage>:<point>:<nth time>:<KILL|STOP>`.

The points lie inside the transaction and the restore, and are put in from outside: nothing of this is in the
product's own code.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from monitor.settings import Settings
from monitor.stream.batch import run
from monitor.stream.recovery import Recovery
from monitor.stream.transaction import Outbox
from monitor.telemetry import Telemetry

VARIABLE: Final = "CHAOS_CRASH_AT"

POINTS: Final = (
    "begun",  # the transaction is open, nothing is sent
    "partly_sent",  # one batch is with the broker
    "sent",  # every record is acknowledged, no offset is
    "offsets_added",  # all but the commit
    "committing",  # the commit is on its way, its outcome unknown
    "committed",  # memory has not been told
    "restoring",  # the snapshot is read, the fold is not yet restored
)


def arm(stage: str, point: str, nth: int, what: signal.Signals) -> None:
    """At the ``nth`` time that a lane of ``stage`` passes ``point`` this process is killed, or stands still."""
    left = nth

    def strike() -> None:
        os.kill(os.getpid(), what)

    def passes(client_id: str) -> bool:
        nonlocal left
        if f"-{stage}-" in client_id:
            left -= 1
        return left == 0

    def after(owner: Any, name: str, client: Callable[[Any], str]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        async def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = await original(self, *args, **kwargs)
            if passes(client(self)):
                strike()
            return result

        setattr(owner, name, wrapped)

    def of_producer(producer: AIOKafkaProducer) -> str:
        return str(producer.client._client_id)

    match point:
        case "begun":
            after(AIOKafkaProducer, "begin_transaction", of_producer)
        case "partly_sent":
            after(AIOKafkaProducer, "send_batch", of_producer)
        case "sent":
            after(Outbox, "send", lambda outbox: of_producer(outbox.producer))
        case "offsets_added":
            after(AIOKafkaProducer, "send_offsets_to_transaction", of_producer)
        case "committed":
            after(AIOKafkaProducer, "commit_transaction", of_producer)
        case "restoring":
            after(Recovery, "_snapshot", lambda _: "-assemble-")
        case "committing":
            original = AIOKafkaProducer.commit_transaction

            async def commit(self: AIOKafkaProducer) -> None:
                if not passes(of_producer(self)):
                    return await original(self)
                task = asyncio.ensure_future(original(self))
                await asyncio.sleep(0.002)  # the request is out, the answer is not read
                strike()
                return await task

            AIOKafkaProducer.commit_transaction = commit
        case _:
            sys.exit(f"{VARIABLE}: no point {point!r}; there are {', '.join(POINTS)}")


async def main() -> int:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, show_tasks)
    return await run(Settings.load(), Telemetry())


def show_tasks() -> None:
    """Where every task stands: what a test asks for when nothing moves."""
    for task in asyncio.all_tasks():
        if any(own in repr(task) for own in ("-lane-", "Coordinator", "Service")):
            task.print_stack(limit=4, file=sys.stderr)
    sys.stderr.flush()


if __name__ == "__main__":
    if wanted := os.environ.get(VARIABLE):
        stage_, point_, nth_, what_ = wanted.split(":")
        arm(stage_, point_, int(nth_), signal.Signals[f"SIG{what_}"])
    sys.exit(asyncio.run(main()))
