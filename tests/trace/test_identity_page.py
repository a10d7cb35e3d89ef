"""The page of shapes is what the code does, and each rejected shape still says its worst score and where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace import identity_page
from tests.trace.identity_page import MESSAGES, OVER, Messages, of_messages, of_shape
from tests.trace.test_identity import SHAPES, Shape


def test_the_committed_page_is_what_the_code_does() -> None:
    assert identity_page.main(["--check"]) == 0, "run `python -m tests.trace.identity_page`"


def test_a_stale_page_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "identity.md"
    path.write_text("old\n")
    assert identity_page.main(["--check"], lambda: "new\n", path) == 1
    assert identity_page.main([], lambda: "new\n", path) == 0
    assert identity_page.main(["--check"], lambda: "new\n", path) == 0


@pytest.mark.parametrize(
    "shape", [s for s in SHAPES if s.spans or s.unusable], ids=lambda shape: shape.name
)
def test_no_shape_silences_a_page(shape: Shape) -> None:
    incidents = of_shape(shape).incidents
    worst = [i for i in incidents if i.severity == "critical" and i.max_score == OVER]
    assert worst
    assert all(any(e.score == OVER for e in i.evidence) for i in worst)
    rejected = [i for i in incidents if i.forensics.status == "rejected"]
    assert all(i.neighbourhood.status == "refused" and not i.neighbourhood.edges for i in rejected)
    assert any(i.reason == "identity" for i in incidents) == (shape.status == "rejected")


@pytest.mark.parametrize("sent", MESSAGES, ids=lambda sent: sent.name)
def test_message(sent: Messages) -> None:
    found = of_messages(sent)
    assert [v.forensics.status for v in found.verdicts] == [sent.status] * sent.traces
    last = {i.incident_id: i for i in found.incidents}
    assert len(last) == max(sent.traces, 1)  # one trace's ids say nothing of another's
    for incident in last.values():
        assert (incident.severity, incident.max_score) == ("critical", OVER)
        at = {e.source.offset for e in incident.evidence if e.score == OVER}
        over = {n for n, one in enumerate(sent.spans) if one["scores"]}
        assert at
        assert at <= over  # the coordinates of the record that had it
