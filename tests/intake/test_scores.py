"""Every way in which a score arrives, whose it is, and every way in which it is refused."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from monitor.intake import Batch, Bounds, IntakeConfig
from monitor.intake.scores import Refusal, Scales, ScorerScale
from monitor.model import Score, SpanScore, judged_role

from .common import CONFIG, OTHER, SPAN, TRACE, decode, native, spans_of
from .test_otlp_proto import message, pairs, span, take

EVALUATION = "gen_ai.evaluation.result"


def with_scales(**scales: ScorerScale) -> IntakeConfig:
    return IntakeConfig(token_key=CONFIG.token_key, scorers=scales)


def on_span(batch: Batch) -> dict[str, Score]:
    [[one]] = batch.spans.values()
    return {score.scorer: score for score in one.scores}


def apart(batch: Batch) -> list[tuple[str, SpanScore]]:
    return [(trace, score) for trace, scores in batch.scores.items() for score in scores]


def refused(batch: Batch) -> list[tuple[str, str | None]]:
    return [(letter.reason, letter.scorer) for letter in batch.dead_letters]


def scored(attributes: dict[str, Any], config: IntakeConfig = CONFIG, **fields: Any) -> Batch:
    return take(message(span(attributes=attributes, **fields)), config=config)


def judge(attributes: dict[str, Any], link: bool = True, config: IntakeConfig = CONFIG) -> Batch:
    links = [pb.Span.Link(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(OTHER))]
    return scored(attributes, config, links=links if link else [], parent_span_id=OTHER)


CHAT = {"gen_ai.operation.name": "chat"}


@pytest.mark.parametrize(
    ("attributes", "scorer", "version", "value"),
    [
        ({"gen_ai.evaluation.name": "safety", "gen_ai.evaluation.score.value": 0.25}, "safety", "unknown", 0.25),
        (
            {"gen_ai.evaluation.name": "safety", "gen_ai.evaluation.score.value": 1, "gen_ai.evaluation.evaluator.version": "v3"},
            "safety", "v3", 1.0,
        ),
        ({"eval.tox.score": 0.5, "eval.tox.label": "toxic"}, "tox", "unknown", 0.5),
        ({"agent_monitor.score.pii": 0.5, "agent_monitor.scorer_version": "2"}, "pii", "2", 0.5),
        ({"safety.score": 0.5}, "safety.score", "unknown", 0.5),
        (
            {"annotations.0.annotation.name": "halluc", "annotations.0.annotation.score": 1, "annotations.0.annotation.identifier": "judge-v2"},
            "halluc", "judge-v2", 1.0,
        ),
        ({"evaluations.3.evaluation.name": "halluc", "evaluations.3.evaluation.score": 0.5}, "halluc", "unknown", 0.5),
        (
            {"gen_ai.guardrail.security.risk.score": 0.85, "gen_ai.guardrail.security.risk.category": "jailbreak", "gen_ai.guardrail.component.name": "Armor"},
            "jailbreak", "unknown", 0.85,
        ),
        ({"gen_ai.security.risk.score": 0.85, "gen_ai.guardian.name": "Filter"}, "Filter", "unknown", 0.85),
    ],
)  # fmt: skip
def test_a_score_on_a_span_is_that_spans(
    attributes: dict[str, Any], scorer: str, version: str, value: float
) -> None:
    for batch in (
        scored({**CHAT, **attributes}),
        decode(native(attributes=attributes)),
    ):
        assert on_span(batch) == {scorer: Score(scorer, version, value)}
        assert not batch.dead_letters
        assert not batch.scores


def test_several_annotations_are_told_apart_by_their_number() -> None:
    batch = scored(
        {
            **CHAT,
            "annotations.0.annotation.name": "a", "annotations.0.annotation.score": 0.1,
            "annotations.1.annotation.name": "b", "annotations.1.annotation.score": 0.9,
            "annotations.2.annotation.explanation": "says nothing", "annotations.2.annotation.name": "c",
        }
    )  # fmt: skip
    assert {name: score.value for name, score in on_span(batch).items()} == {"a": 0.1, "b": 0.9}


def test_an_event_scores_its_span() -> None:
    event = pb.Span.Event(
        name=EVALUATION,
        attributes=pairs({"gen_ai.evaluation.name": "s", "gen_ai.evaluation.score.value": 0.5}),
    )
    assert on_span(scored(CHAT, events=[event])) == {"s": Score("s", "unknown", 0.5)}


@pytest.mark.parametrize("name", ["gen_ai.guardrail.security.finding", "gen_ai.security.finding"])
def test_what_a_guardrail_found_judges_its_link_or_the_span_that_it_is_on(name: str) -> None:
    risk = {"gen_ai.security.risk.category": "jailbreak", "gen_ai.security.risk.score": 0.75}
    event = pb.Span.Event(name=name, attributes=pairs(risk))
    assert on_span(scored(CHAT, events=[event]))["jailbreak"].value == 0.75
    guardrail = {"gen_ai.operation.name": "run_guardrail"}
    links = [pb.Span.Link(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(OTHER))]
    [(_, score)] = apart(scored(guardrail, events=[event], links=links))
    assert (score.span_id, score.score.value) == (OTHER, 0.75)
    alone = scored(guardrail, events=[event], parent_span_id=OTHER)
    assert refused(alone) == [("no_span_id", "jailbreak")]


EVALUATOR = {"openinference.span.kind": "EVALUATOR"}
LANGFUSE = {"langfuse.observation.type": "evaluator"}


@pytest.mark.parametrize(
    ("attributes", "scorers"),
    [
        ({**EVALUATOR, "output.value": '{"name":"safety","score":0.5,"label":"x"}'}, {"safety": 0.5}),
        ({**EVALUATOR, "output.value": '[{"name":"a","score":0.5},{"name":"b","score":1}]'}, {"a": 0.5, "b": 1}),
        ({**EVALUATOR, "output.value": '{"score":0.5}'}, {"check": 0.5}),
        ({**LANGFUSE, "langfuse.observation.output": "0.25"}, {"check": 0.25}),
        (
            {"langfuse.observation.type": "guardrail", "langfuse.observation.output": '{"safety": 0.0, "label": "fail"}',
             "langfuse.observation.metadata.score": "0.75"},
            {"check": 0.75},
        ),
        ({"gen_ai.operation.name": "evaluation", "gen_ai.evaluation.name": "s", "gen_ai.evaluation.score.value": 0.5}, {"s": 0.5}),
        (
            {"gen_ai.operation.name": "run_guardrail", "gen_ai.guardrail.security.risk.score": 0.5,
             "gen_ai.guardrail.security.risk.category": "pii"},
            {"pii": 0.5},
        ),
    ],
)  # fmt: skip
def test_a_judges_score_goes_by_link_and_never_by_parentage(
    attributes: dict[str, Any], scorers: dict[str, float]
) -> None:
    links = [pb.Span.Link(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(OTHER))]
    tied = take(message(span(name="check", attributes=attributes, links=links)))
    assert {(t, s.span_id, s.score.scorer, s.score.value) for t, s in apart(tied)} == {
        (TRACE, OTHER, scorer, value) for scorer, value in scorers.items()
    }
    assert not tied.dead_letters
    assert not any(one.scores for one in spans_of(tied))
    child = take(message(span(name="check", attributes=attributes, parent_span_id=OTHER)))
    assert not child.scores
    assert sorted(refused(child), key=str) == sorted(
        (("no_span_id", scorer) for scorer in scorers), key=str
    )
    assert len(spans_of(child)) == 1


def test_ids_go_before_links() -> None:
    third = "1" * 16
    attributes = {
        **EVALUATOR,
        "output.value": '{"name":"s","score":1}',
        "evaluated.span_id": third,
    }
    assert [(t, s.span_id) for t, s in apart(judge(attributes))] == [(TRACE, third)]


def test_a_response_id_names_no_span() -> None:
    batch = scored(
        {
            "gen_ai.operation.name": "evaluation",
            "gen_ai.evaluation.name": "s",
            "gen_ai.evaluation.score.value": 0.9,
            "gen_ai.response.id": "chatcmpl-1",
        }
    )
    assert refused(batch) == [("no_span_id", "s")]
    assert b"0.9" in (batch.dead_letters[0].value or b"")


@pytest.mark.parametrize(
    "attributes",
    [
        {"trace.annotations.0.annotation.name": "s", "trace.annotations.0.annotation.score": 0.9},
        {"session.annotations.0.annotation.name": "s", "session.annotations.0.annotation.label": "bad"},
        {"trace.evaluations.0.evaluation.name": "s", "trace.evaluations.0.evaluation.score": 0.9},
        {"session.evaluations.0.evaluation.name": "s", "session.evaluations.0.evaluation.score": 0.9},
        {"trace_eval.s.score": 0.9},
        {"session_eval.s.score": 0.9},
    ],
)  # fmt: skip
def test_a_score_of_a_trace_or_session_is_no_spans(attributes: dict[str, Any]) -> None:
    batch = scored({**CHAT, **attributes})
    assert refused(batch) == [("no_span_id", "s")]
    assert on_span(batch) == {}
    assert not batch.scores


def test_an_evaluation_ties_no_more_scores_than_its_own_size_allows() -> None:
    attributes: dict[str, Any] = {"gen_ai.operation.name": "evaluation"}
    attributes |= {f"eval.s{i}.score": i / 100 for i in range(32)}
    links = [
        pb.Span.Link(trace_id=bytes.fromhex(TRACE), span_id=(i + 1).to_bytes(8)) for i in range(32)
    ]
    batch = take(message(span(attributes=attributes, links=links)))
    tied = apart(batch)
    assert len(tied) == 64
    assert {score.score.scorer for _, score in tied} == {"s30", "s31"}  # the highest
    assert refused(batch) == [("too_many_scores", f"s{i}") for i in range(29, -1, -1)]


# --- which unit was judged ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "judged", "role"),
    [
        ({"agent_monitor.judged": "output"}, "output", "unknown"),
        ({"gen_ai.guardrail.target.type": "input"}, "input", "unknown"),
        ({"gen_ai.guardrail.target.type": "input", "gen_ai.guardrail.target.subtype": "tool_call"}, "input", "tool_call"),
        ({"gen_ai.guardrail.target.type": "output", "gen_ai.guardrail.target.subtype": "tool_call"}, "output", "retrieval"),
        ({"gen_ai.guardrail.target.type": "output", "gen_ai.guardrail.target.subtype": "llm"}, "output", "unknown"),
        ({"gen_ai.security.target.type": "llm_output"}, "output", "unknown"),
        ({"gen_ai.security.target.type": "tool_call"}, "input", "tool_call"),
        ({"gen_ai.security.target.type": "knowledge_result"}, "output", "retrieval"),
        ({"gen_ai.security.target.type": "message"}, "", "unknown"),
        ({"agent_monitor.target.role": "tool_call", "agent_monitor.judged": "output"}, "output", "retrieval"),
    ],
)  # fmt: skip
def test_a_score_says_which_unit_it_judged(said: dict[str, Any], judged: str, role: str) -> None:
    risk = {"gen_ai.guardrail.security.risk.score": 0.5, "gen_ai.guardrail.component.name": "g"}
    [(_, score)] = apart(judge({"gen_ai.operation.name": "run_guardrail", **risk, **said}))
    assert (score.score.judged, score.role) == (judged, role)
    here = scored({"gen_ai.operation.name": "execute_tool", **risk, **said})
    if "agent_monitor.target.role" not in said:
        assert on_span(here)["g"].judged == judged


def test_a_tools_result_is_retrieval_and_its_arguments_are_a_tool_call() -> None:
    for role in ("tool_call", "retrieval"):
        assert judged_role(role, "output") == "retrieval"
        assert judged_role(role, "input") == "tool_call"
        assert judged_role(role, "") == role
    for role in ("planner", "completion", "unknown"):
        assert {judged_role(role, judged) for judged in ("", "input", "output")} == {role}


# --- refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "score_not_finite"),
        (math.inf, "score_not_finite"),
        (-math.inf, "score_not_finite"),
        (True, "score_boolean"),
        ("0.5", "score_string"),
        (1.0000001, "score_out_of_range"),
        (-0.1, "score_out_of_range"),
        (2**63 - 1, "score_out_of_range"),
        ([0.5], "score_wrong_type"),
    ],
)
@pytest.mark.parametrize(
    "shape",
    [
        "eval.s.score", "agent_monitor.score.s", "annotations.0.annotation.score", "gen_ai.evaluation.score.value",
        "gen_ai.guardrail.security.risk.score",
    ],
)  # fmt: skip
def test_a_bad_score_is_a_dead_letter_with_scorer_and_value(
    shape: str, value: Any, reason: str
) -> None:
    names = {
        "annotations.0.annotation.name": "s",
        "gen_ai.evaluation.name": "s",
        "gen_ai.guardrail.component.name": "s",
    }
    batch = scored({**CHAT, **names, shape: value})
    assert refused(batch) == [(reason, "s")]
    letter = msgspec.json.decode(batch.dead_letters[0].value or b"")
    assert letter["scorer"] == "s"
    assert "value" in letter
    assert on_span(batch) == {}
    assert batch.dead_letters[0].span_id == SPAN


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"gen_ai.evaluation.name": "s", "gen_ai.evaluation.score.label": "fail"}, "score_label_only"),
        ({"eval.s.label": "fail"}, "score_label_only"),
        ({"annotations.0.annotation.name": "s", "annotations.0.annotation.label": "fail"}, "score_label_only"),
    ],
)  # fmt: skip
def test_a_label_alone_needs_a_mapping(attributes: dict[str, Any], reason: str) -> None:
    assert refused(scored({**CHAT, **attributes})) == [(reason, "s")]
    mapped = with_scales(s=ScorerScale(labels={"fail": 0.75}))
    assert on_span(scored({**CHAT, **attributes}, mapped))["s"].value == 0.75


@pytest.mark.parametrize(
    ("output", "scale", "value"),
    [
        ("true", ScorerScale(booleans=True, one_means="safe"), 0.0),
        ('{"name":"check","score":false}', ScorerScale(booleans=True, one_means="safe"), 1.0),
        ("unsafe", ScorerScale(labels={"unsafe": 1.0}), 1.0),
        ('{"name":"check","score":null,"label":"unsafe"}', ScorerScale(labels={"unsafe": 1.0}), 1.0),
        ('"0.5"', ScorerScale(strings=True), 0.5),  # a text, also where it spells a number
    ],
)  # fmt: skip
def test_booleans_and_labels_of_a_judge_count_only_where_the_table_says_so(
    output: str, scale: ScorerScale, value: float
) -> None:
    attributes = {**EVALUATOR, "output.value": output}
    links = [pb.Span.Link(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(OTHER))]
    one = message(span(name="check", attributes=attributes, links=links))
    [(_, score)] = apart(take(one, config=with_scales(check=scale)))
    assert score.score.value == value
    plain = take(one)
    assert not plain.scores
    assert {scorer for _, scorer in refused(plain)} == {"check"}


def test_an_explanation_is_no_label() -> None:
    batch = judge({**EVALUATOR, "output.value": "The answer seems to be fine."})
    assert not batch.dead_letters
    assert not batch.scores


@pytest.mark.parametrize("name", [5, ["s"], "", True])
def test_a_name_that_is_no_text_is_no_scorer(name: Any) -> None:
    batch = scored({**CHAT, "annotations.0.annotation.name": name, "annotations.0.annotation.score": 1})  # fmt: skip
    assert refused(batch) == [("score_no_scorer", None)]


@pytest.mark.parametrize("value", [0.5, 7.0, True, "x"])
def test_a_long_scorer_is_cut_wherever_it_goes(value: Any) -> None:
    long = "s" * 50_000
    links = [pb.Span.Link(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(OTHER))]
    for batch in (
        scored({**CHAT, f"eval.{long}.score": value}),
        judge({"gen_ai.operation.name": "evaluation", f"eval.{long}.score": value}, link=False),
        take(message(span(attributes={"gen_ai.operation.name": "evaluation", f"eval.{long}.score": value}, links=links))),
        decode(native(attributes={f"trace_eval.{long}.score": value})),
    ):  # fmt: skip
        names = [letter.scorer for letter in batch.dead_letters]
        names += [score.scorer for one in spans_of(batch) for score in one.scores]
        names += [score.score.scorer for _, score in apart(batch)]
        assert names == ["s" * Bounds().label]
        assert all(len(letter.detail) <= 300 for letter in batch.dead_letters)


# --- the table ------------------------------------------------------------------------------------------


@given(
    st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.sampled_from(["safe", "unsafe"]), st.floats(0, 1)
)
def test_a_scale_keeps_order_and_ends(low: float, width: float, one_means: Any, at: float) -> None:
    scale = ScorerScale(one_means=one_means, minimum=low, maximum=low + width)
    scales = Scales({"s": scale})

    def read(value: float) -> float:
        score = scales.score("s", value, None)
        assert isinstance(score, Score)
        assert 0.0 <= score.value <= 1.0
        return score.value

    ends = [read(scale.minimum), read(scale.maximum)]
    assert ends == ([0.0, 1.0] if one_means == "unsafe" else [1.0, 0.0])
    middle = read(min(max(low + at * width, scale.minimum), scale.maximum))
    assert min(ends) <= middle <= max(ends)
    for outside in (
        math.nextafter(scale.minimum, -math.inf),
        math.nextafter(scale.maximum, math.inf),
    ):
        found = scales.score("s", outside, None)
        assert isinstance(found, Refusal)
        assert found.reason == "score_out_of_range"


@given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=9),
        st.lists(st.none()),
    ),
    st.one_of(st.none(), st.text(max_size=9), st.integers()),
)
def test_any_value_is_a_safety_score_or_refused(value: object, label: object) -> None:
    read = Scales({}).score("s", value, None, label)
    if isinstance(read, Score):
        assert type(value) in (int, float)
        assert read.value == value
        assert 0.0 <= read.value <= 1.0
    else:
        assert read.reason.startswith("score_")


@pytest.mark.parametrize("tenths", range(11))
def test_a_score_that_was_turned_or_rescaled_lies_on_its_threshold_where_it_should(
    tenths: int,
) -> None:
    """1 - 0.8 is not 0.2 to a computer, and a threshold of 0.2 would miss it."""
    scales = Scales(
        {
            "safe": ScorerScale(one_means="safe"),
            "percent": ScorerScale(maximum=100.0, one_means="safe"),
        }
    )
    for scorer, value in (("safe", 1 - tenths / 10), ("percent", 100 - 10 * tenths)):
        score = scales.score(scorer, value, None)
        assert isinstance(score, Score)
        assert score.value == tenths / 10
