"""The native format: what is taken, what is refused and why, and that nothing is lost or raised."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.codec import decode_fold_record
from monitor.intake import Batch, Bounds, IntakeConfig
from monitor.intake.bounds import FRAGMENT_LIMIT
from monitor.intake.reasons import REASONS
from monitor.intake.scores import ScorerScale
from monitor.model import EVALUATOR, MEMBER, Fragment, Score, Source

from .common import CONFIG, DATA, OTHER, SPAN, TRACE, decode, native, only, spans_of


def refused(batch: Batch) -> list[str]:
    return [letter.reason for letter in batch.dead_letters]


def test_every_field_arrives() -> None:
    value = native(
        parent_span_id=OTHER,
        service="bot",
        name="execute_tool send_email",
        model_version="m-1",
        start_unix_nano=5,
        end_unix_nano=2**64 - 1,
        scores=[{"scorer": "pii", "version": "2", "value": 0.25}, {"scorer": "tox", "value": 1}],
        timestamp=1_700_000_000_000,
    )
    span = only(decode(value))
    assert (span.span_id, span.parent_span_id, span.service, span.role, span.kind) == (
        SPAN,
        OTHER,
        "bot",
        "tool_call",
        MEMBER,
    )
    assert (span.name, span.model_version) == ("execute_tool send_email", "m-1")
    assert (span.start_unix_nano, span.end_unix_nano) == (5, 2**64 - 1)
    assert span.scores == (Score("pii", "2", 0.25), Score("tox", "unknown", 1.0))
    assert span.source == Source("agent-spans", 3, 0, 0, 1_700_000_000_000)
    assert span.detail is not None
    assert (span.detail.tool_name, span.detail.tags) == ("send_email", ("egress",))


def test_only_ids_are_needed() -> None:
    span = only(decode(native(role=...)))
    assert (span.role, span.service, span.model_version, span.scores, span.detail) == (
        "unknown",
        "unknown",
        "unknown",
        (),
        None,
    )
    assert span.kind == MEMBER


@pytest.mark.parametrize("parent", [None, "", "0" * 16, ...])
def test_root_by_any_spelling(parent: Any) -> None:
    assert only(decode(native(parent_span_id=parent))).parent_span_id is None


def test_ids_are_lower_case_hex() -> None:
    batch = decode(
        native(trace_id=TRACE.upper(), span_id=SPAN.upper(), parent_span_id=OTHER.upper())
    )
    assert list(batch.spans) == [TRACE]
    assert only(batch).span_id == SPAN
    assert only(batch).parent_span_id == OTHER


@pytest.mark.parametrize(
    ("trace_id", "fault", "said"),
    [
        (..., "missing_id", "absent"),
        (None, "missing_id", "absent"),
        ("", "missing_id", "absent"),
        ("0" * 32, "missing_id", "zeros"),
        ("CvdlGRbNQ92ESOshHIAxnA==", "malformed_id", "base64"),
        ("0af76519-16cd-43dd-8448-eb211c80319c", "malformed_id", "UUID"),
        (TRACE[:-2], "malformed_id", "30 hex digits"),
        (" " + TRACE[:-1], "malformed_id", "not hex"),
        ("0a f7651916cd43dd8448eb211c8031 ", "malformed_id", "not hex"),
        (17, "malformed_id", ""),
        ([TRACE], "malformed_id", ""),
    ],
)
def test_unusable_trace_id_is_an_orphan_and_a_dead_letter(
    trace_id: Any, fault: str, said: str
) -> None:
    value = native(
        trace_id=trace_id, scores=[{"scorer": "pii", "version": "2", "value": 0.9}], service="bot"
    )
    batch = decode(value)
    assert not batch.spans
    assert not batch.faults
    [orphan], [letter] = batch.orphans, batch.dead_letters
    assert orphan.fault.fault == letter.reason == fault
    assert said in letter.detail
    assert orphan.fault.scores == (Score("pii", "2", 0.9),)
    assert (orphan.fault.service, orphan.fault.role) == ("bot", "tool_call")
    assert letter.value == value


def test_orphans_are_told_apart_by_coordinates_alone() -> None:
    batch = decode(native(trace_id=None), native(trace_id=None))
    again = decode(native(trace_id=None), native(trace_id=None))
    ids = [orphan.fault_id for orphan in batch.orphans]
    assert len(set(ids)) == 2
    assert ids == [orphan.fault_id for orphan in again.orphans]


@pytest.mark.parametrize(
    ("fields", "fault", "said"),
    [
        ({"span_id": ...}, "missing_id", "span_id is absent"),
        ({"span_id": "0" * 16}, "missing_id", "span_id is all zeros"),
        ({"span_id": "t61rcWkgMzE="}, "malformed_id", "span_id looks like base64"),
        ({"span_id": TRACE}, "malformed_id", "span_id has 32 hex digits"),
        ({"parent_span_id": "12"}, "malformed_id", "parent_span_id has 2 hex digits"),
    ],
)
def test_unusable_span_or_parent_id_is_a_fault_of_its_trace(
    fields: dict[str, Any], fault: str, said: str
) -> None:
    batch = decode(native(**fields, scores=[{"scorer": "pii", "value": 0.9}]))
    assert not batch.spans
    assert not batch.orphans
    [found] = batch.faults[TRACE]
    [letter] = batch.dead_letters
    assert found.fault == letter.reason == fault
    assert said in letter.detail
    assert letter.trace_id == TRACE
    assert [score.value for score in found.scores] == [0.9]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "empty_value"),
        (b"not json", "not_json"),
        (b"{", "not_json"),
        (native() + native(), "not_json"),
        (b'\xef\xbb\xbf{"trace_id":""}', "not_json"),
        (native(name="x").replace(b'"x"', b'"\xff"'), "not_utf8"),
        (native(name="x").replace(b'"x"', b'"\\ud800"'), "not_utf8"),
        (b"[]", "wrong_type"),
        (b'"text"', "wrong_type"),
        (native(name=5), "wrong_type"),
        (native(attributes=[1]), "wrong_type"),
        (native(scores={"pii": 0.5}), "wrong_type"),
        (native(start_unix_nano=-1), "wrong_type"),
        (native(start_unix_nano="1722427291000000000"), "wrong_type"),
        (native(end_unix_nano=2**64), "wrong_type"),
        (native(attributes={"a": "x" * 10_000_000}), "too_large"),
        (
            b'{"trace_id":"'
            + TRACE.encode()
            + b'","attributes":{"a":'
            + b"[" * 1000
            + b"]" * 1000
            + b"}}",
            "too_deep",
        ),
        (
            b'{"trace_id":"'
            + TRACE.encode()
            + b'","attributes":{"a":'
            + b"[" * 100
            + b"]" * 100
            + b"}}",
            "too_deep",
        ),
        (b'{"a":' * 1000 + b"1" + b"}" * 1000, "too_deep"),
        (b"[" * 1_000_000, "not_json"),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else value,
)
def test_broken_record_is_a_dead_letter_whole_and_the_rest_goes_through(
    value: bytes, reason: str
) -> None:
    batch = decode(native(), value, native(span_id=OTHER))
    assert [span.span_id for span in batch.spans[TRACE]] == [SPAN, OTHER]
    [letter] = batch.dead_letters
    if value.startswith(b"[" * 1000):  # how deep a reader gets decides which it says
        assert letter.reason in ("too_deep", "not_json")
    else:
        assert letter.reason == reason
    assert letter.value == value
    assert letter.source == Source("agent-spans", 3, 1, 0, 1_700_000_000_000)


def test_tombstone_is_ignored_and_counted() -> None:
    batch = decode(None, native())
    assert only(batch).source.offset == 1
    assert batch.counts["ignored", "tombstone"] == 1


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (b'{"scorer":"pii","value":NaN}', "score_not_finite"),
        (b'{"scorer":"pii","value":-Infinity}', "score_not_finite"),
        (b'{"scorer":"pii","value":1e999}', "score_not_finite"),
        (b'{"scorer":"pii","value":true}', "score_boolean"),
        (b'{"scorer":"pii","value":"0.5"}', "score_string"),
        (b'{"scorer":"pii","value":[0.5]}', "score_wrong_type"),
        (b'{"scorer":"pii","value":null}', "score_label_only"),
        (b'{"scorer":"pii","value":1.0001}', "score_out_of_range"),
        (b'{"scorer":"pii","value":-0.0001}', "score_out_of_range"),
        (b'{"scorer":"pii","value":1' + b"0" * 400 + b"}", "score_not_finite"),
        (b'{"value":0.5}', "score_no_scorer"),
        (b'{"scorer":"","value":0.5}', "score_no_scorer"),
        (b'{"scorer":7,"value":0.5}', "score_no_scorer"),
        (b"0.5", "score_no_scorer"),
    ],
)
def test_bad_score_is_refused_alone(score: bytes, reason: str) -> None:
    value = native(scores="SCORES").replace(
        b'"SCORES"', b'[{"scorer":"tox","value":0.1},' + score + b"]"
    )
    batch = decode(value)
    [span] = spans_of(batch)
    assert span.scores == (Score("tox", "unknown", 0.1),)
    [letter] = batch.dead_letters
    assert letter.reason == reason
    assert letter.scorer == (None if reason == "score_no_scorer" else "pii")
    assert (letter.trace_id, letter.span_id) == (TRACE, SPAN)
    assert isinstance(json.loads(letter.value or b""), dict)


def test_span_with_only_a_bad_score_lives_on_unscored() -> None:
    batch = decode(native(scores=[{"scorer": "pii", "value": 7}]))
    assert spans_of(batch)[0].scores == ()
    assert batch.dead_letters[0].detail == "value of scorer 'pii' is 7.0, outside 0..1"


def test_scorer_table_rescales_and_turns() -> None:
    scorers = {
        "percent": ScorerScale(maximum=100),
        "good": ScorerScale(one_means="safe"),
        "flag": ScorerScale(booleans=True, version="9"),
        "text": ScorerScale(strings=True),
        "label": ScorerScale(labels={"toxic": 0.8}),
    }
    config = IntakeConfig(token_key=CONFIG.token_key, scorers=scorers)
    scores = [
        {"scorer": "percent", "value": 25},
        {"scorer": "good", "value": 0.75},
        {"scorer": "flag", "value": True},
        {"scorer": "text", "value": "0.5"},
    ]
    span = only(decode(native(scores=scores), config=config))
    assert [(s.scorer, s.version, s.value) for s in span.scores] == [
        ("percent", "unknown", 0.25),
        ("good", "unknown", 0.25),
        ("flag", "9", 1.0),
        ("text", "unknown", 0.5),
    ]


def test_scores_past_the_bound_are_refused_one_by_one() -> None:
    config = IntakeConfig(token_key=CONFIG.token_key, bounds=Bounds(scores=2))
    batch = decode(
        native(scores=[{"scorer": f"s{i}", "value": 0.1} for i in range(5)]), config=config
    )
    assert len(spans_of(batch)[0].scores) == 2
    assert refused(batch) == ["too_many_scores"] * 3


def test_the_highest_stay_where_there_are_more_than_the_bound() -> None:
    config = IntakeConfig(token_key=CONFIG.token_key, bounds=Bounds(scores=2))
    values = {"a": 0.0, "b": 0.5, "c": 0.97}
    batch = decode(
        native(scores=[{"scorer": s, "value": v} for s, v in values.items()]), config=config
    )
    assert {s.scorer: s.value for s in spans_of(batch)[0].scores} == {"b": 0.5, "c": 0.97}
    [letter] = batch.dead_letters
    assert (letter.reason, letter.scorer) == ("too_many_scores", "a")
    assert json.loads(letter.value or b"")["value"] == 0.0


@pytest.mark.parametrize("values", [(0.0, 0.97), (0.97, 0.0)])
@pytest.mark.parametrize("scorer", ["judge", "j" * 200])
def test_of_two_scores_by_one_scorer_version_the_highest_counts(
    values: tuple[float, float], scorer: str
) -> None:
    scores = [{"scorer": scorer, "version": "1", "value": value} for value in values]
    span = only(decode(native(scores=scores)))
    assert [score.value for score in span.scores] == [0.97]


def test_unknown_fields_count_as_attributes() -> None:
    inside = only(
        decode(native(attributes={"gen_ai.tool.name": "send_email", "gen_ai.agent.name": "a"}))
    )
    beside = only(decode(native(**{"gen_ai.tool.name": "send_email", "gen_ai.agent.name": "a"})))
    assert inside == beside
    both = only(decode(native(attributes={"gen_ai.agent.name": "a"}, **{"gen_ai.agent.name": "b"})))
    assert both.detail is not None
    assert both.detail.agent == "a"


def test_own_fields_win_over_attributes() -> None:
    attributes = {
        "openinference.span.kind": "LLM",
        "gen_ai.response.model": "other",
        "agent_monitor.score.pii": 0.9,
        "agent_monitor.score.tox": 0.4,
    }
    scores = [{"scorer": "pii", "version": "2", "value": 0.1}]
    span = only(decode(native(model_version="mine", attributes=attributes, scores=scores)))
    assert (span.role, span.model_version) == ("tool_call", "mine")
    assert span.scores == (Score("pii", "2", 0.1), Score("tox", "unknown", 0.4))
    bare = only(decode(native(role="unknown", attributes=attributes)))
    assert (bare.role, bare.model_version) == ("completion", "other")


def test_unknown_role_is_counted_by_its_raw_value_within_a_bound() -> None:
    config = IntakeConfig(token_key=CONFIG.token_key, bounds=Bounds(unknown_roles=2))
    values = [native(role=f"r{i % 4}", span_id=f"{i + 1:016x}") for i in range(8)]
    batch = decode(*values, config=config)
    assert {span.role for span in spans_of(batch)} == {"unknown"}
    counted = {label: n for (what, label), n in batch.counts.items() if what == "unknown_role"}
    assert counted == {"r0": 2, "r1": 2, "other": 4}


def test_evaluator_score_goes_to_its_target_or_nowhere() -> None:
    scores = [{"scorer": "pii", "version": "1", "value": 0.7}]
    target = {"evaluated.trace_id": TRACE, "evaluated.span_id": OTHER}
    batch = decode(
        native(
            role="evaluator", trace_id="ab" * 16, scores=scores, attributes=target, service="judge"
        )
    )
    [span] = batch.spans["ab" * 16]
    assert (span.kind, span.scores) == (EVALUATOR, ())
    [detached] = batch.scores[TRACE]
    assert (detached.span_id, detached.score, detached.service) == (
        OTHER,
        Score("pii", "1", 0.7),
        "judge",
    )
    untied = decode(native(role="evaluator", parent_span_id=OTHER, scores=scores))
    assert not untied.scores
    assert refused(untied) == ["no_span_id"]


# --- content hash ---------------------------------------------------------------------------------------


def hash_of(**fields: Any) -> bytes:
    return only(decode(native(**fields))).content_hash


def test_content_is_neither_arrival_nor_order() -> None:
    full = {"service": "a", "attributes": {"x": 1, "y": {"p": 1, "q": 2}}}
    turned = {"attributes": {"y": {"q": 2, "p": 1}, "x": 1}, "service": "a"}
    assert hash_of(**full) == hash_of(**turned, timestamp=5) == hash_of(**full, parent_span_id="")
    assert only(
        decode(native(**full), config=IntakeConfig(token_key=b"k" * 32))
    ).content_hash != hash_of(**full)


@pytest.mark.parametrize(
    "change",
    [
        {"service": "b"},
        {"name": "n"},
        {"role": "planner"},
        {"model_version": "m"},
        {"parent_span_id": OTHER},
        {"start_unix_nano": 1},
        {"end_unix_nano": 1},
        {"scores": [{"scorer": "s", "value": 0.5}]},
        {"attributes": {"unread": "y"}},
        {"attributes": {"unread": 2**80}},
    ],
)
def test_content_is_all_of_the_span(change: dict[str, Any]) -> None:
    base: dict[str, Any] = {"service": "a", "attributes": {"unread": "x"}}
    assert hash_of(**base) != hash_of(**{**base, **change})


# --- laws -----------------------------------------------------------------------------------------------

ids16 = st.binary(min_size=16, max_size=16).map(bytes.hex)
ids8 = st.binary(min_size=8, max_size=8).map(bytes.hex)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
almost_spans = st.fixed_dictionaries(
    {"trace_id": ids16 | json_values, "span_id": ids8 | json_values},
    optional={
        "parent_span_id": ids8 | json_values,
        "service": st.text(max_size=300) | json_values,
        "name": st.text(max_size=300) | json_values,
        "role": st.sampled_from(["planner", "tool_call", "evaluator", "x"]) | json_values,
        "start_unix_nano": st.integers(0, 2**64) | json_values,
        "scores": st.lists(
            st.fixed_dictionaries(
                {"scorer": st.text(max_size=5) | json_values, "value": st.floats() | json_values}
            )
            | json_values,
            max_size=3,
        )
        | json_values,
        "attributes": st.dictionaries(
            st.sampled_from(
                [
                    "gen_ai.tool.name",
                    "gen_ai.tool.call.arguments",
                    "gen_ai.tool.call.id",
                    "gen_ai.input.messages",
                    "output.value",
                    "gen_ai.evaluation.score.value",
                    "gen_ai.evaluation.name",
                    "eval.x.score",
                    "openinference.span.kind",
                    "evaluated.span_id",
                    "agent_monitor.tags",
                    "x",
                ]
            ),
            json_values,
            max_size=4,
        )
        | json_values,
        "other": json_values,
    },
).map(lambda span: json.dumps(span).encode())


@given(st.lists(st.none() | st.binary(max_size=60) | almost_spans, max_size=6))
def test_every_record_ends_in_exactly_one_place(values: list[bytes | None]) -> None:
    batch = decode(*values)
    items = [
        letter
        for letter in batch.dead_letters
        if not letter.reason.startswith(("score_", "too_many_s", "no_sp"))
    ]
    ignored = sum(n for (what, _), n in batch.counts.items() if what == "ignored")
    spans = spans_of(batch)
    assert len(spans) + len(items) + ignored == len(values)
    offsets = [span.source.offset for span in spans] + [letter.source.offset for letter in items]
    assert len(set(offsets)) == len(offsets)
    assert {letter.reason for letter in batch.dead_letters} <= REASONS.keys()
    for trace_id, payload in batch.encoded_fragments():
        fragment = decode_fold_record(payload)
        assert isinstance(fragment, Fragment)
        assert fragment.trace_id == trace_id


@given(st.lists(almost_spans, max_size=6))
def test_caches_change_no_result(values: list[bytes]) -> None:
    small = IntakeConfig(token_key=CONFIG.token_key, bounds=Bounds(cache=1))
    first, second = decode(*values), decode(*values, config=small)
    assert first.spans == second.spans
    assert first.dead_letters == second.dead_letters


def test_agentdojo_is_taken_whole() -> None:
    with gzip.open(DATA / "agentdojo/spans.jsonl.gz") as file:
        lines = file.read().splitlines()
    batch = decode(*lines)
    assert not batch.dead_letters
    assert len(spans_of(batch)) == len(lines) == 2564
    assert len(batch.spans) == 285
    raw = [json.loads(line) for line in lines]
    spans = {span.source.offset: span for span in spans_of(batch)}
    for number, line in enumerate(raw):
        assert spans[number].role == line["role"]
        assert [s.value for s in spans[number].scores] == [s["value"] for s in line["scores"]]
    assert {s.detail.flags for s in spans.values() if s.detail is not None} == {0}


# --- fragments ------------------------------------------------------------------------------------------


def test_fragments_hold_every_item_in_order_and_fit() -> None:
    arguments = json.dumps([f"user{i}@example-{i}.com" for i in range(64)])
    values = [
        native(
            span_id=f"{i + 1:016x}",
            name="n" * 256,
            attributes={"gen_ai.tool.call.arguments": arguments},
        )
        for i in range(600)
    ]
    batch = decode(*values, native(span_id=None), native(trace_id="ab" * 16))
    pieces = list(batch.fragments())
    assert [trace_id for trace_id, _ in pieces].count("ab" * 16) == 1
    mine = [fragment for trace_id, fragment in pieces if trace_id == TRACE]
    assert len(mine) > 1
    assert [s for fragment in mine for s in fragment.spans] == batch.spans[TRACE]
    assert [f for fragment in mine for f in fragment.faults] == batch.faults[TRACE]
    payloads = [payload for _, payload in batch.encoded_fragments()]
    assert all(len(payload) <= FRAGMENT_LIMIT for payload in payloads)
    assert max(map(len, payloads)) > FRAGMENT_LIMIT * 0.9


def test_a_span_at_every_bound_fits() -> None:
    wide = "\U0001f600"
    value = native(
        service=wide * 500,
        name=wide * 500,
        model_version=wide * 500,
        scores=[
            {"scorer": f"{i:02}" + wide * 500, "version": wide * 500, "value": 0.1}
            for i in range(40)
        ],
        attributes={
            "gen_ai.tool.name": wide * 500,
            "gen_ai.tool.call.id": wide * 500,
            "gen_ai.agent.name": wide * 500,
            "gen_ai.conversation.id": wide * 500,
            "agent_monitor.tags": [f"{i:02}" + wide * 500 for i in range(40)],
            "gen_ai.tool.call.arguments": " ".join(f"a{i}b{i}c" for i in range(1000)),
            "gen_ai.tool.call.result": " ".join(f"r{i}b{i}c" for i in range(1000)),
        },
    )
    batch = decode(value)
    [(_, payload)] = batch.encoded_fragments()
    assert len(payload) <= Bounds().span_bytes <= FRAGMENT_LIMIT


def test_bounds_that_cannot_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="more than a fragment"):
        Bounds(scores=1000)
    with pytest.raises(ValueError, match="nesting is 0"):
        Bounds(nesting=0)


def test_keep_filter() -> None:
    config = IntakeConfig(
        token_key=CONFIG.token_key,
        keep={"service.name": frozenset({"a", "b"}), "env": frozenset({"prod", "true"})},
    )
    values = [
        native(service="a", attributes={"env": "prod"}),
        native(service="b", attributes={"env": True}, span_id=OTHER),
        native(service="a", attributes={"env": "test"}),
        native(service="c", attributes={"env": "prod"}),
        native(service="a", attributes={"env": ["prod"]}),
        native(service="a"),
    ]
    batch = decode(*values, config=config)
    assert [span.service for span in spans_of(batch)] == ["a", "b"]
    assert batch.counts["ignored", "keep"] == 4
