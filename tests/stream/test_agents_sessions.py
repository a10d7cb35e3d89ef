"""The session agent on a real broker: over kills, what it holds and publishes is what the pure core gives."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from monitor.codec import decode_output
from monitor.model import Incident
from monitor.stack import KafkaBroker
from monitor.stream.routing import Router
from monitor.stream.tables import SESSIONS
from monitor.trace.rules import Rules
from monitor.trace.sessions import SessionState, apply, decode_state
from monitor.trace.steps import SessionSteps, decode_steps
from tests.stream.agents_lab import AgentsLab, until
from tests.trace.test_sessions import act, read, steps

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


@pytest.fixture
def lab(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[AgentsLab]:
    made = AgentsLab(kafka.bootstrap, unique, tmp_path)
    yield made
    made.stop_all()


def sent(sessions: int, traces: int, *, seed: int) -> list[SessionSteps]:
    """Traces of many sessions, interleaved; in each session one value flows, in each third a trace is judged again."""
    rng = random.Random(seed)
    found: list[SessionSteps] = []
    for session in range(sessions):
        value = f"evil-{session}@example.com"
        own = [
            steps(f"{session}/0", read(f"r{session}", value)),
            *(
                steps(
                    f"{session}/{n}",
                    act(f"s{session}/{n}", value if n == 2 else f"other-{n}", at=5.0 + n),
                    closed=1_000 * (n + 2),
                )
                for n in range(1, traces)
            ),
        ]
        if session % 3 == 0:
            own.append(msgspec.structs.replace(own[2], number=1))
        found += [msgspec.structs.replace(one, session_id=f"s-{session}") for one in own]
    rng.shuffle(found)
    return found


def expected(lab: AgentsLab) -> tuple[dict[bytes, SessionState], dict[str, set[tuple[int, str]]]]:
    """What the pure core makes of the topic as it stands: state by session, (revision, digest) by incident."""
    fold = lab.settings.fold_settings()
    rules = Rules(fold, fold.sha256, fold.canonical())
    states: dict[bytes, SessionState] = {}
    incidents: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    for message in lab.messages(lab.names.session_steps):
        key, offset = message.key(), message.offset()
        one = decode_steps(message.value() or b"")
        assert key is not None
        assert offset is not None
        done = apply(key, states.get(key, SessionState()), one, rules, offset=offset)
        states[key] = done.state
        for incident in done.incidents:
            incidents[incident.incident_id].add((incident.revision, incident.digest))
    return states, dict(incidents)


def published(lab: AgentsLab) -> dict[str, set[tuple[int, str]]]:
    """(revision, digest) by incident; one that was sent twice over a crash is the same, byte for byte."""
    found: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    for _, value in lab.read(lab.names.incidents):
        incident = decode_output(value)
        assert isinstance(incident, Incident)
        found[incident.incident_id].add((incident.revision, incident.digest))
    return dict(found)


def held(lab: AgentsLab) -> dict[bytes, SessionState]:
    return {key: decode_state(row) for key, row in lab.rows(SESSIONS).items()}


async def test_killed_workers_publish_what_the_pure_core_gives(lab: AgentsLab) -> None:
    """Four kill -9 of one of two workers while steps stream in, in transactions of which some are aborted."""
    await lab.make_topics()
    router = Router(lab.settings)
    records = [router.route(one) for one in sent(60, 8, seed=1)]
    running = [lab.start_worker("a"), lab.start_worker("b")]
    await asyncio.sleep(4)
    stream = asyncio.create_task(lab.send(records, batch=5, seconds=22))
    rng = random.Random(2)
    for kill in range(4):
        await asyncio.sleep(3 + rng.random() * 2)
        victim = kill % 2
        running[victim].kill()
        running[victim] = lab.start_worker("ab"[victim])
    await stream
    states, incidents = expected(lab)
    assert len(states) == 60
    await until(lambda: held(lab) == states, 60, "the table")
    assert published(lab) == incidents
    records_out = [decode_output(value) for _, value in lab.read(lab.names.incidents)]
    proven = {
        record.session.session_id
        for record in records_out
        if isinstance(record, Incident) and record.session and record.severity == "critical"
    }
    assert len(proven) == 60
    assert [worker.stop() for worker in running] == [0, 0], lab.workers[-1].log_tail()
