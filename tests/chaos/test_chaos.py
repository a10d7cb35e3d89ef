"""Exactly once: workers killed, paused, joining and leaving under load change nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from monitor.stack import KafkaBroker
from tests.chaos.lab import SHORT_LIVES, Lab
from tests.chaos.run import Chaos, assert_exactly_once, assert_same_verdicts, rerun, traffic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]


@pytest.fixture
def lab(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Lab:
    made = Lab(kafka.bootstrap, unique, tmp_path, SHORT_LIVES)
    made.make_input()
    return made


def test_kills_at_random_and_at_named_points_change_nothing(lab: Lab) -> None:
    load = traffic(lab, seed=11)
    chaos = Chaos(lab, seed=11)
    try:
        chaos.start()
        time.sleep(2)
        chaos.kill()
        chaos.crash("assemble", "sent")
        chaos.crash("ingest", "offsets_added")
        chaos.crash("assemble", "committing")
        chaos.crash("ingest", "partly_sent")
        chaos.crash("assemble", "committed")
        chaos.crash("assemble", "restoring")
        chaos.kill()
        load.end()
        chaos.settle()
        counts = assert_exactly_once(lab)
        assert counts["verdicts"] > 300
        assert counts["incidents"] > 100
        assert assert_same_verdicts(lab, rerun(lab)) > 50
    finally:
        load.end()
        lab.kill_workers()


def test_a_pause_past_the_session_and_members_that_come_and_go_change_nothing(lab: Lab) -> None:
    load = traffic(lab, seed=12)
    chaos = Chaos(lab, seed=12)
    try:
        chaos.start()
        time.sleep(2)
        chaos.leave_and_join()
        chaos.pause()
        chaos.pause_at("assemble", "sent")
        chaos.pause_at("ingest", "offsets_added")
        time.sleep(2)
        load.end()
        chaos.settle()
        assert_exactly_once(lab)
        assert (
            chaos.done["assemble:sent SIGSTOP"] == chaos.done["ingest:offsets_added SIGSTOP"] == 1
        )
    finally:
        load.end()
        lab.kill_workers()
