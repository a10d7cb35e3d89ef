"""Pages: at once, one incident a (life, reason, name), revised only when it says something new."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from monitor.codec import canonical_json
from monitor.model import GateRecord, Incident, Score, Span
from monitor.trace.config import FoldSettings, ScorerRule
from tests.trace.folding import START, Log, late_score, scored, unusable
from tests.trace.truth import sid

PER_UNIT = FoldSettings(scorers={"judge": ScorerRule("per_unit:pii", independent=True)})


def test_a_span_over_its_threshold_pages_with_the_trace_still_open() -> None:
    log = Log()
    out = log.spans("a", scored(1, 0), scored(2, 0, 0.3), scored(3, 0, 0.29), at=0.25)
    [page] = out
    assert isinstance(page, Incident)
    assert (page.reason, page.scorer, page.severity, page.revision) == (
        "threshold",
        "judge",
        "critical",
        1,
    )
    assert (page.argmax_span_id, page.argmax_role, page.max_score, page.threshold) == (
        sid(2),
        "tool_call",
        0.3,
        0.3,
    )
    assert page.forensics.status == "pending"
    assert page.forensics.faults == ()
    assert page.neighbourhood.status == "partial"
    assert page.span_ids == (sid(2),)
    assert page.opened_at_ms == START + 250
    assert page.caused_at_ms == START
    assert page.provenance.causing_offset == 1
    assert page.provenance.life == 1


def test_the_next_revision_comes_with_a_higher_span_and_at_closing() -> None:
    log = Log()
    log.spans("a", scored(1, 0, 0.5), at=0)
    assert log.spans("a", scored(2, 0, 0.4)) == []
    assert log.spans("a", scored(1, 0, 0.5)) == []  # the same span again
    [second] = log.spans("a", scored(3, 0, 0.7))
    log.spans("a", scored(0))
    log.until(10)
    first, _, third = log.incidents
    assert {i.incident_id for i in log.incidents} == {first.incident_id}
    assert [i.revision for i in log.incidents] == [1, 2, 3]
    assert second.provenance.causing_offset == 4
    assert (third.argmax_span_id, third.forensics.status) == (sid(3), "complete")
    assert third.neighbourhood.status == "edges"
    assert sid(0) in third.neighbourhood.span_ids
    assert third.opened_at_ms == first.opened_at_ms


def test_severity_rises_and_never_falls() -> None:
    """A retrieval alone is a warning. The argmax may stay the retrieval while a lesser call makes it grave."""
    log = Log()
    [alone] = log.spans("a", scored(1, 0, 0.95, role="retrieval"))
    [graver] = log.spans("a", scored(2, 0, 0.4))
    assert (alone.severity, graver.severity) == ("warning", "critical")
    assert (alone.rose_from, graver.rose_from) == (None, "warning")
    assert graver.argmax_span_id == sid(1)
    assert log.spans("a", scored(3, 0, 0.85, role="retrieval")) == []
    log.until(30)
    assert log.incidents[-1].severity == "critical"
    assert log.incidents[-1].rose_from is None


def test_a_retrieval_of_a_per_unit_scorer_is_critical() -> None:
    log = Log(PER_UNIT)
    [page] = log.spans("a", scored(1, 0, 0.95, role="retrieval"))
    assert (page.severity, page.policy_class) == ("critical", "per_unit:pii")


def test_the_argmax_is_among_spans_over_their_own_threshold() -> None:
    log = Log()
    log.spans("a", scored(0), scored(1, 0, 0.79, role="retrieval"), scored(2, 0, 0.35))
    log.until(10)
    assert log.incidents[-1].argmax_span_id == sid(2)
    assert log.verdicts[0].reductions[0].argmax_span_id == sid(1)


def test_each_scorer_has_its_incident() -> None:
    log = Log()
    log.spans("a", scored(1, 0, 0.5), scored(2, 0, 0.6, scorer="other"))
    assert [(i.scorer, i.argmax_span_id) for i in log.incidents] == [
        ("judge", sid(1)),
        ("other", sid(2)),
    ]
    assert len({i.incident_id for i in log.incidents}) == 2


def test_the_service_of_the_first_revision_stays() -> None:
    log = Log()
    log.spans("a", scored(1, 0, 0.5, service="one"), scored(2, 0, 0.6, service="two"))
    log.until(30)
    assert {i.service for i in log.incidents} == {"one"}


def test_a_later_lower_score_takes_no_page_back() -> None:
    log = Log()
    log.spans("a", scored(0), scored(1, 0, 0.9), at=0)
    log.scores("a", late_score(1, 0.1), at=1)
    log.until(11)
    assert log.verdicts[0].reductions[0].max_score == 0.1
    last = log.incidents[-1]
    assert last.max_score == 0.9
    assert next(e.score for e in last.evidence if e.span_id == sid(1)) == 0.1  # both are shown


def test_evaluators_never_page() -> None:
    log = Log()
    log.spans("a", scored(1, 0, 0.9, kind=1), scored(2, 0, 0.9, kind=2), scored(3, 0, 0.9, kind=3))
    assert log.incidents == []


@pytest.mark.parametrize(
    ("gate", "value", "paged"),
    [("stationary", 0.3, True), ("stationary", 0.29, False), ("shifted", 0.5, False)],
)
def test_a_mean_pages_only_while_every_condition_holds(
    gate: str, value: float, paged: bool
) -> None:
    settings = msgspec.structs.replace(PER_UNIT, thresholds={"tool_call": 0.99})
    log = Log(settings)
    log.put(GateRecord("agents", "judge", gate, 0, 5))
    log.spans("a", scored(0, None, value), scored(1, 0, value))
    log.until(10)
    scalars = [i for i in log.incidents if i.reason == "scalar"]
    assert bool(scalars) == paged
    if paged:
        [page] = scalars
        assert (page.scorer, page.severity, page.max_score, page.threshold) == (
            "judge",
            "critical",
            value,
            None,
        )
        assert page.argmax_span_id in (sid(0), sid(1))


def test_an_undeclared_scorer_has_no_mean() -> None:
    log = Log()
    log.spans("a", scored(0, None, 0.29), scored(1, 0, 0.29))
    log.until(10)
    assert log.verdicts[0].reductions[0].scalar is None
    assert log.incidents == []


def test_broken_identity_pages_with_the_worst_score_and_its_coordinates() -> None:
    log = Log()
    log.spans("a", scored(0), scored(1, 0, 0.5), scored(1, 0, 0.6, content_hash=b"x" * 16))
    log.until(10)
    threshold, identity = log.incidents[-2:]
    assert (identity.reason, identity.severity, identity.max_score) == ("identity", "critical", 0.6)
    assert identity.evidence[0].source.topic == "agent-spans"
    for page in (threshold, identity):
        assert page.forensics.status == "rejected"
        assert page.neighbourhood.status == "refused"
        assert page.neighbourhood.edges == ()
    assert [f.kind for f in identity.forensics.faults] == ["duplicate_conflicting"]


def test_a_broken_identity_below_every_threshold_is_a_warning() -> None:
    log = Log()
    log.spans("a", scored(0), scored(1, 1, 0.2))
    log.until(30)
    [page] = log.incidents
    assert (page.reason, page.severity, page.max_score, page.threshold) == (
        "identity",
        "warning",
        0.2,
        None,
    )


def test_a_span_without_a_usable_id_pages_at_once() -> None:
    log = Log()
    log.spans("a", scored(0), at=0)
    [page] = log.faults("a", unusable(0.8))
    assert (page.reason, page.argmax_span_id, page.max_score) == ("identity", None, 0.8)
    assert page.forensics.status == "rejected"
    assert page.evidence[0].source.offset == 99
    log.until(10)
    assert log.verdicts[0].forensics.status == "rejected"
    assert [i.revision for i in log.incidents] == [1, 2]


def test_a_span_past_max_spans_is_judged() -> None:
    settings = FoldSettings(
        lifecycle=msgspec.structs.replace(FoldSettings().lifecycle, max_spans=2)
    )
    log = Log(settings)
    log.spans("a", scored(0), scored(1, 0), at=0)
    [page] = log.spans("a", scored(2, 0, 0.9))
    assert (page.argmax_span_id, page.forensics.status) == (sid(2), "pending")
    log.until(5)
    verdict, concluded = log.records[-2:]
    assert (verdict.revision, verdict.span_count) == (2, 2)
    assert concluded.neighbourhood.status == "partial"
    assert concluded.evidence[0].span_id == sid(2)


def test_a_fault_past_max_spans_rejects_for_good() -> None:
    settings = FoldSettings(
        lifecycle=msgspec.structs.replace(FoldSettings().lifecycle, max_spans=2)
    )
    log = Log(settings)
    log.spans("a", scored(0), scored(1, 0), at=0)
    log.faults("a", unusable(0.1))
    log.until(5)
    assert [v.forensics.status for v in log.verdicts] == ["complete", "rejected"]
    log.spans("a", scored(0), at=6)
    log.until(10)
    assert log.verdicts[-1].forensics.status == "rejected"


def test_an_incident_seals_itself() -> None:
    log = Log()
    log.spans("a", scored(0), *(scored(n, 0, 0.1 * n) for n in range(1, 9)))
    log.until(10)
    for incident in log.incidents:
        bare = canonical_json(msgspec.structs.replace(incident, digest=""))
        assert incident.digest == hashlib.sha256(bare).hexdigest()
    last = log.incidents[-1]
    assert last.others["count"] + len(last.evidence) == 9


def test_an_incident_stays_under_its_limit_and_counts_what_it_left_out() -> None:
    log = Log()
    spans = [scored(n, 0, 0.1, name="x" * 30_000) for n in range(1, 60)]
    log.spans("a", scored(0, None, 0.9), *spans)
    log.until(10)
    last = log.incidents[-1]
    assert len(canonical_json(last)) <= 900_000
    assert last.others["left_out"]["evidence"] > 0


def many_scorers(n: int) -> list[Span]:
    return [
        msgspec.structs.replace(
            scored(place, 0, None),
            scores=tuple(Score("s" * 100 + f"{place}/{k}", "1", 0.1) for k in range(32)),
        )
        for place in range(1, n + 1)
    ]


def test_an_incident_whose_settings_name_thousands_of_scorers_is_sealed_as_it_is() -> None:
    """The gates of all of them do not fit; a digest over something else than the record says it was forged."""
    spans = many_scorers(319)
    declared = {score.scorer: ScorerRule() for span in spans for score in span.scores}
    log = Log(FoldSettings(scorers=declared))
    log.spans("a", scored(0, None, 0.9), *spans)
    log.until(10)
    last = log.incidents[-1]
    bare = canonical_json(msgspec.structs.replace(last, digest=""))
    assert len(bare) <= 900_000
    assert last.digest == hashlib.sha256(bare).hexdigest()
    assert last.others["left_out"]["gates"] > 0
    [verdict] = log.verdicts
    assert (len(verdict.reductions), verdict.reductions_left_out) == (200, 319 * 32 + 1 - 200)
    assert verdict.reductions[0].max_score == 0.9
    assert len(canonical_json(verdict)) <= 900_000
