from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.model import OVERFLOW, TRUNCATED, Score, Span
from monitor.policy.causal import parts
from monitor.policy.flow import tokens as tokens_of
from monitor.policy.flow import user_request
from monitor.policy.load import BUILTIN
from monitor.policy.match import Matcher, match, strongest_in_any_order
from monitor.policy.rules import Finding, Policy, Step
from monitor.trace.config import FoldSettings
from monitor.trace.identity import examine
from monitor.trace.thresholds import Thresholds
from tests.trace.truth import cpu_seconds, detail, sid, span, tokens

THRESHOLDS = Thresholds(FoldSettings())
BY_NAME = {policy.name: policy for policy in BUILTIN}
EVE = "eve@evil.example"


def found(spans: list[Span], *policies: Policy, cut: bool = False) -> dict[str, Finding]:
    report = examine(spans, (), redelivery="collapse")
    return {f.policy: f for f in match(report, policies or BUILTIN, THRESHOLDS, cut=cut)}


def attack(**changes: Span | None) -> list[Span]:
    """An e-mail with an attacker's words is read, then a code out of another one is sent to the attacker."""
    spans: dict[str, Span | None] = {
        "root": span(
            "root", role="planner", scores=0.03, detail=detail(asked=("networking-2024",))
        ),
        "carrier": span(
            "carrier",
            "root",
            2,
            role="retrieval",
            scores=0.45,
            detail=detail("private_read", result=(EVE, "room-12")),
        ),
        "source": span(
            "source",
            "root",
            4,
            role="retrieval",
            scores=0.05,
            detail=detail("private_read", result=("463820",)),
        ),
        "sink": span(
            "sink",
            "root",
            6,
            role="tool_call",
            scores=0.1,
            detail=detail("egress", given=(EVE, "463820")),
        ),
        "answer": span("answer", "root", 8, role="completion", scores=0.04),
    }
    return [one for one in (spans | changes).values() if one is not None]


def sink(*tags: str, **fields: object) -> Span:
    return span("sink", "root", 6, role="tool_call", scores=0.1, detail=detail(*tags, **fields))  # type: ignore[arg-type]


def carrier(score: float = 0.45, at: float = 2, parent: str = "root", **fields: object) -> Span:
    fields.setdefault("result", (EVE, "room-12"))
    return span(
        "carrier",
        parent,
        at,
        role="retrieval",
        scores=score,
        detail=detail("private_read", **fields),
    )  # type: ignore[arg-type]


def test_the_composed_attack_no_span_of_which_reaches_its_threshold() -> None:
    assert not any(THRESHOLDS.elevated(s) for s in attack())
    got = found(attack())
    assert set(got) == {"compositional_exfiltration", "tool_chaining"}
    one = got["compositional_exfiltration"]
    assert one.span_ids == (sid("carrier"), sid("source"), sid("sink"))
    assert (one.centre, one.severity, one.by_flow, one.undecidable) == (
        sid("sink"),
        "critical",
        True,
        False,
    )
    assert EVE not in one.why


@pytest.mark.parametrize(
    "changes",
    [
        {"carrier": None},
        {"carrier": carrier(0.29)},
        {"sink": sink("egress", given=("networking-2024",))},
        {"sink": sink("egress", given=())},
        {"sink": sink("private_read", given=(EVE,))},
        {"carrier": carrier(at=7)},
    ],
    ids=[
        "no carrier",
        "carrier not elevated",
        "the user's value",
        "no value",
        "a reader",
        "carrier after the sink",
    ],
)
def test_no_finding(changes: dict[str, Span | None]) -> None:
    assert found(attack(**changes)) == {}


def test_a_value_out_of_what_was_read_after_the_elevated_result_leaves() -> None:
    """The attacker's address was cut off; the secret itself is seen to leave."""
    got = found(
        attack(carrier=carrier(result=("room-12",)), sink=sink("egress", given=("463820",)))
    )
    assert set(got) == {"compositional_exfiltration"}
    assert got["compositional_exfiltration"].by_flow
    assert got["compositional_exfiltration"].span_ids == (
        sid("carrier"),
        sid("source"),
        sid("sink"),
    )


def test_a_value_that_nobody_can_account_for_leaves() -> None:
    one = found(attack(sink=sink("egress", given=("stranger@evil.example",))))[
        "compositional_exfiltration"
    ]
    assert (one.severity, one.by_flow, one.undecidable) == ("warning", False, True)


def test_credentials_changed_to_plain_words_after_an_elevated_result() -> None:
    assert found(attack(sink=sink("access", given=())))["credential_change"].severity == "warning"
    assert found(attack(sink=sink("access", given=("networking-2024",)))) == {}
    assert (
        found(attack(sink=sink("access", given=("room-12",))))["credential_change"].severity
        == "critical"
    )


def test_a_tool_whose_name_says_nothing_counts_by_flow_only() -> None:
    assert found(attack(sink=sink(given=(EVE,))))["tool_chaining"].severity == "critical"
    assert "tool_chaining" not in found(attack(sink=sink(given=None)))


# --- content that is not there: undecidable, never 'no match'


@pytest.mark.parametrize(
    "changes",
    [
        {"sink": sink("egress", given=None)},
        {"carrier": carrier(result=None), "sink": sink("egress", given=())},
        {"carrier": carrier(result=(), flags=TRUNCATED), "sink": sink("egress", given=())},
        {"carrier": carrier(result=(), flags=OVERFLOW), "sink": sink("egress", given=())},
        {"root": span("root", role="planner")},
    ],
    ids=["no arguments", "no result", "cut result", "too much result", "no request"],
)
def test_undecidable_falls_back_to_tags_and_order(changes: dict[str, Span]) -> None:
    one = found(attack(**changes))["tool_chaining"]
    assert (one.severity, one.by_flow, one.undecidable) == ("warning", False, True)
    assert one.span_ids == (sid("carrier"), sid("sink"))
    assert "undecidable" in one.why


def test_without_the_request_no_flow_is_still_no_match() -> None:
    assert (
        found(attack(root=span("root", role="planner"), sink=sink("egress", given=("x-1",)))) == {}
    )


def test_what_one_agent_asked_of_another_is_not_the_users_request() -> None:
    """The planner's call to a sub-agent repeats the attacker's address."""
    sub = span("sub", "root", 5, role="planner", detail=detail(asked=(EVE, "463820")))
    call = span("sink", "sub", 6, role="tool_call", detail=detail("egress", given=(EVE,)))
    assert found(attack(sub=sub, sink=call))["tool_chaining"].severity == "critical"


def test_the_request_may_stand_at_the_chat_spans() -> None:
    chats = {
        n: span(n, "root", at, role="planner", detail=detail(asked=(EVE,)))
        for n, at in (("c1", 1.2), ("c2", 5))
    }
    spans = attack(root=span("root", role="planner"), **chats, sink=sink("egress", given=(EVE,)))
    assert found(spans) == {}


# --- order


def test_structure_before_clocks() -> None:
    """The sub-agent that acts runs on a host whose clock is an hour behind; its caller's is right."""
    agent = span("agent", "root", 5, role="planner")
    call = span(
        "sink",
        "agent",
        0.001,
        role="tool_call",
        service="behind",
        detail=detail("egress", given=(EVE,)),
    )
    assert found(attack(agent=agent, sink=call))["tool_chaining"].severity == "critical"


def test_an_enclosing_call_has_no_result_yet() -> None:
    outer = span(
        "carrier",
        "root",
        2,
        role="tool_call",
        end_unix_nano=9_000_000_000,
        scores=0.29,
        detail=detail("egress", result=(EVE,)),
    )
    outer_elevated = span(
        "carrier",
        "root",
        2,
        role="retrieval",
        end_unix_nano=9_000_000_000,
        scores=0.5,
        detail=detail(result=(EVE,)),
    )
    inner = span("sink", "carrier", 3, role="tool_call", detail=detail("egress", given=(EVE,)))
    for one in (outer, outer_elevated):
        assert found(attack(carrier=one, sink=inner)) == {}


def test_a_value_out_of_a_parallel_call_is_undecidable() -> None:
    """That the calls ran side by side is the word of who sends the result."""
    slow = span(
        "carrier",
        "root",
        2,
        role="retrieval",
        end_unix_nano=7_000_000_000,
        scores=0.5,
        detail=detail(result=(EVE,)),
    )
    one = found(attack(carrier=slow, source=None))["tool_chaining"]
    assert (one.severity, one.undecidable, one.by_flow) == ("warning", True, False)
    assert "not there yet" in one.why
    unseen = attack(carrier=slow, source=None, sink=sink("egress", given=("x-1",)))
    assert "tool_chaining" not in found(unseen)


def test_steps_must_come_in_order() -> None:
    read_first = span(
        "source",
        "root",
        1.2,
        role="retrieval",
        scores=0.05,
        detail=detail("private_read", result=("463820",)),
    )
    assert set(found(attack(source=read_first))) == {"tool_chaining"}


def test_the_value_must_come_from_a_chain_that_leads_on() -> None:
    """carrier 1 -> source -> carrier 2 -> sink: the value out of carrier 2 passed no source."""
    policy = Policy(
        "p",
        "c",
        steps=(
            Step("carrier", min_score=0.4),
            Step("source", tags=("private_read",)),
            Step("sink", tags=("egress",), flow_from=("carrier",)),
        ),
    )
    first = carrier(0.45, result=("other-1",))
    second_carrier = span(
        "second", "root", 5, role="retrieval", scores=0.5, detail=detail("web", result=(EVE,))
    )
    assert (
        found(
            attack(carrier=first, second=second_carrier, sink=sink("egress", given=(EVE,))), policy
        )
        == {}
    )
    assert set(
        found(
            attack(carrier=first, second=second_carrier, sink=sink("egress", given=("other-1",))),
            policy,
        )
    ) == {"p"}


def test_a_policy_of_tags_and_order_alone() -> None:
    policy = Policy(
        "p", "c", steps=(Step("read", tags=("private_read",)), Step("out", tags=("egress",)))
    )
    one = found(attack(), policy)["p"]
    assert (one.severity, one.by_flow, one.undecidable) == ("critical", False, False)
    assert found(attack(), policy, cut=True)["p"].severity == "warning"
    info = Policy("p", "c", severity="info", steps=policy.steps)
    assert found(attack(), info, cut=True)["p"].severity == "info"


def test_all_sinks_are_named_the_earliest_is_the_centre() -> None:
    again = span("again", "root", 7, role="tool_call", detail=detail("egress", given=(EVE,)))
    one = found(attack(again=again))["tool_chaining"]
    assert one.span_ids == (sid("carrier"), sid("sink"), sid("again"))
    assert one.centre == sid("sink")


# --- identity, gaps, cuts


def test_no_match_where_identity_is_rejected_but_the_policy_is_named() -> None:
    twice = span("answer", "root", 8, role="completion", name="other")
    spans = [*attack(), twice]
    assert found(spans) == {}
    strongest = strongest_in_any_order(spans, BUILTIN)
    assert strongest is not None
    assert (strongest.name, strongest.severity) == ("compositional_exfiltration", "critical")
    assert strongest_in_any_order(attack(carrier=None), BUILTIN) is None


def test_across_a_gap_by_flow_only() -> None:
    across = attack(carrier=carrier(parent="gone"))
    assert found(across)["tool_chaining"].severity == "critical"
    one = found(across)[
        "compositional_exfiltration"
    ]  # that the source lies between is known only by time
    assert (one.severity, one.undecidable) == ("warning", True)
    silent = attack(carrier=carrier(parent="gone", result=None), sink=sink("egress", given=()))
    assert found(silent)["tool_chaining"].severity == "warning"


@pytest.mark.parametrize("start", [0, 90], ids=["no times", "times that say it came after"])
def test_across_a_gap_a_flow_against_the_times_is_undecidable(start: float) -> None:
    """Times are the sender's word: they do not silence a value that is seen on both sides of a gap."""
    timeless = span(
        "carrier",
        "gone",
        start,
        role="retrieval",
        service="elsewhere",
        scores=0.45,
        detail=detail(result=(EVE,)),
    )
    one = found(attack(carrier=timeless))["tool_chaining"]
    assert (one.severity, one.undecidable, one.by_flow) == ("warning", True, False)
    assert set(one.span_ids) == {sid("carrier"), sid("sink")}
    assert "in no known order" in one.why
    other = attack(carrier=timeless, sink=sink("egress", given=("x-1",)))
    assert "tool_chaining" not in found(other)


def test_within_a_part_order_is_known_whatever_else_is_torn() -> None:
    stray = span("stray", "gone", 3, role="planner")
    assert found(attack(carrier=carrier(at=7), stray=stray)) == {}


def test_a_cut_trace_matches_by_flow() -> None:
    assert found(attack(), cut=True)["tool_chaining"].severity == "critical"
    no_content = attack(sink=sink("egress", given=None))
    assert found(no_content, cut=True)["tool_chaining"].severity == "warning"


# --- the rising run


def talk(*scores: float | None, last: str = "completion") -> list[Span]:
    spans = [span("root", role="unknown")]
    for n, score in enumerate(scores):
        given = () if score is None else (Score("judge", "1", score),)
        role = last if n == len(scores) - 1 else "planner"
        spans.append(span(n, "root", 2 + n, role=role, scores=given))
    return spans


@pytest.mark.parametrize(
    ("spans", "span_count"),
    [
        (talk(0.05, 0.10, 0.17, 0.25), 4),
        (talk(0.02, 0.05, 0.10, 0.17, 0.25, None), 6),
        (talk(0.05, 0.10, 0.17, 0.25, 0.20), 5),
        (talk(0.05, 0.10, 0.17, 0.25, 0.05), 0),
        (talk(0.05, 0.10, 0.17, 0.25, 0.05, last="planner"), 0),
        (talk(0.05, 0.10, 0.25), 0),
        (talk(0.01, 0.02, 0.03, 0.17), 0),
        (talk(0.15, 0.18, 0.20, 0.25), 0),
        (talk(0.05, 0.10, 0.09, 0.25), 0),
        (talk(0.05, 0.31, 0.10, 0.25), 0),
        (talk(0.25, 0.17, 0.10, 0.05), 0),
    ],
    ids=[
        "rises and complies",
        "the answer is not judged",
        "the answer scores a little lower",
        "refused",
        "nobody answers",
        "too short",
        "ends too low",
        "too flat",
        "interrupted",
        "pages by itself",
        "falls",
    ],
)
def test_rise(spans: list[Span], span_count: int) -> None:
    got = found(spans)
    assert (
        len(
            got.get(
                "multi_step_jailbreak", Finding("", "", "info", (), "", False, False, "")
            ).span_ids
        )
        == span_count
    )
    if span_count:
        assert got["multi_step_jailbreak"].severity == "critical"


def test_a_rise_is_of_one_scorer() -> None:
    spans = talk(0.05, 0.10, 0.17, 0.25)
    mixed = [
        s if n != 3 else span(2, "root", 4, role="planner", scores=(Score("other", "1", 0.17),))
        for n, s in enumerate(spans)
    ]
    assert found(mixed) == {}


def test_a_rise_in_a_cut_trace_is_undecidable() -> None:
    one = found(talk(0.05, 0.10, 0.17, 0.25), cut=True)["multi_step_jailbreak"]
    assert (one.severity, one.undecidable) == ("warning", True)


# --- laws and cost


@st.composite
def traces(draw: st.DrawFn) -> list[Span]:
    values = st.lists(st.sampled_from(["a-1", "b-2", "c-3"]), max_size=2).map(tuple)
    spans = [span(0, role="planner", detail=detail(asked=draw(values)))]
    for n in range(1, draw(st.integers(2, 10))):
        own = detail(
            *draw(
                st.lists(
                    st.sampled_from(["private_read", "egress", "access"]), max_size=2, unique=True
                )
            ),
            given=draw(st.none() | values),
            result=draw(st.none() | values),
        )
        spans.append(
            span(
                n,
                draw(st.integers(0, n - 1) | st.just(99)),
                draw(st.sampled_from([1, 2, 3, 4, 5])),
                role=draw(st.sampled_from(["planner", "retrieval", "tool_call"])),
                scores=draw(st.sampled_from([0.05, 0.1, 0.2, 0.4])),
                detail=own,
            )
        )
    return spans


@settings(max_examples=300)
@given(traces(), st.booleans(), st.integers(0, 2**32))
def test_laws(spans: list[Span], cut: bool, seed: int) -> None:
    got = found(spans, cut=cut)
    assert (
        found(random.Random(seed).sample(spans, len(spans)), cut=cut) == got
    )  # order of arrival does not show
    for finding in got.values():
        assert finding.centre in finding.span_ids
        assert len(set(finding.span_ids)) == len(finding.span_ids) <= 50
        assert not (finding.by_flow and finding.undecidable)
        assert finding.severity == ("warning" if finding.undecidable else "critical")


@settings(max_examples=200)
@given(traces())
def test_one_look_never_hides_a_match(spans: list[Span]) -> None:
    """With a policy that asks for no score the look finds nothing to skip; adding it changes no other finding."""
    anything = Policy(
        "any", "c", steps=(Step("a", roles=("planner",)), Step("b", roles=("tool_call",)))
    )
    with_it = found(spans, anything, *BUILTIN)
    with_it.pop("any", None)
    assert with_it == found(spans)


def long(n: int, *, hostile: bool) -> list[Span]:
    """An attack with ``n`` spans between read and sink: harmless, or each of them a carrier, a source and a sink."""
    between = [
        span(
            n_,
            "root",
            5 + n_ / n / 2,
            role="tool_call",
            scores=0.29 if not hostile else 0.4,
            end_unix_nano=0,
            detail=detail(
                "egress", "private_read", given=(f"v-{n_}", "w-1"), result=(f"v-{n_ + 1}", "w-1")
            )
            if hostile
            else detail(),
        )
        for n_ in range(n)
    ]
    return [*attack(), *between]


def test_ten_thousand_harmless_spans_between_read_and_sink() -> None:
    one = found(long(10_000, hostile=False))["compositional_exfiltration"]
    assert one.span_ids == (sid("carrier"), sid("source"), sid("sink"))


def test_cost_grows_with_the_spans_even_if_all_of_them_fit_everything() -> None:
    """Eight times the spans cost about eight times as much; quadratic would be 64."""
    few, many = (examine(long(n, hostile=True), (), redelivery="collapse") for n in (1_000, 8_000))
    cost = cpu_seconds(lambda: match(few, BUILTIN, THRESHOLDS, cut=False))
    assert cpu_seconds(lambda: match(many, BUILTIN, THRESHOLDS, cut=False)) < 30 * cost


def test_an_ordinary_trace_costs_one_look() -> None:
    """A quarter of what it costs to look for the steps where one score is high enough."""
    quiet = [
        span(n, "root", 2 + n, role="tool_call", scores=0.05, detail=detail("egress"))
        for n in range(18)
    ]
    loud = span("x", "root", 40, role="retrieval", scores=0.4, detail=detail("private_read"))
    matcher = Matcher(BUILTIN, THRESHOLDS)

    def cost(spans: list[Span]) -> float:
        report = examine(spans, (), redelivery="collapse")
        return cpu_seconds(lambda: [matcher.match(report, cut=False) for _ in range(200)])

    assert cost([span("root"), *quiet]) < cost([span("root"), *quiet, loud]) / 4


def test_the_request_of_many_roots_costs_time_in_proportion() -> None:
    """A sender of hostile spans may give a trace thousands of roots with a request each."""

    def roots(n: int) -> list[Span]:
        asked = [(*(f"{i}-{k}" for k in range(63)), "same-1") for i in range(n)]
        return [span(i, None, role="planner", detail=detail(asked=a)) for i, a in enumerate(asked)]

    few, many = (parts(examine(roots(n), (), redelivery="collapse")) for n in (250, 2500))
    cost = cpu_seconds(lambda: user_request(few))
    assert cpu_seconds(lambda: user_request(many)) < 40 * cost
    assert user_request(many) == tokens_of(tokens("same-1"))
