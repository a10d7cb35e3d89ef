"""What a sender of spans and scores could do to silence a policy or to make it slow."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from monitor.model import MEMBER, PLAIN, Score, Span, SpanFault
from monitor.policy.causal import parts
from monitor.policy.flow import user_request
from monitor.policy.load import BUILTIN
from monitor.policy.match import Matcher, match, strongest_in_any_order
from monitor.policy.rules import Finding, Policy, Rise
from monitor.policy.scene import NO_HIGHER, Highest
from monitor.trace.config import FoldSettings
from monitor.trace.identity import examine
from monitor.trace.thresholds import Thresholds
from tests.policy.test_match import BY_NAME, EVE, attack, carrier, sink, talk
from tests.trace.truth import cpu_seconds, detail, sid, span

THRESHOLDS = Thresholds(FoldSettings())
EVIL = "evil-tools"  # a service of the attacker's that may send spans and scores of any trace
RISE = BY_NAME["multi_step_jailbreak"]


def found(
    spans: list[Span], *policies: Policy, cut: bool = False, highest: Highest = NO_HIGHER
) -> dict[str, Finding]:
    report = examine(spans, (), redelivery="collapse")
    findings = match(report, policies or BUILTIN, THRESHOLDS, cut=cut, highest=highest)
    return {f.policy: f for f in findings}


def judge(value: float) -> tuple[Score, ...]:
    return (Score("judge", "1", value),)


# --- a later, lower score


def test_a_lower_score_does_not_hide_an_elevated_carrier() -> None:
    lowered = attack(carrier=carrier(0.0))
    assert found(lowered) == {}
    assert found(lowered, highest={sid("carrier"): judge(0.45)}) == found(attack())


def test_a_lower_score_does_not_interrupt_a_rise() -> None:
    rising = talk(0.05, 0.10, 0.0, 0.25)
    assert found(rising) == {}
    whole = found(rising, highest={rising[3].span_id: judge(0.17)})
    assert whole == found(talk(0.05, 0.10, 0.17, 0.25))
    top = talk(0.05, 0.10, 0.15, 0.0)  # nothing in force is high enough for a first look
    assert set(found(top, highest={top[4].span_id: judge(0.25)})) == {RISE.name}


def test_a_higher_score_that_was_given_before_hides_no_rise() -> None:
    rising = talk(0.05, 0.10, 0.17, 0.25)
    assert found(rising, highest={rising[2].span_id: judge(0.29)}) == found(rising)


def test_a_lower_score_does_not_hide_a_policy_where_identity_is_broken() -> None:
    lowered = attack(carrier=carrier(0.0))
    assert strongest_in_any_order(lowered, BUILTIN) is None
    highest = {sid("carrier"): judge(0.45)}
    assert strongest_in_any_order(lowered, BUILTIN, highest=highest) == BUILTIN[0]


# --- whose request it is


def evil_root(*asked: str, at: float = 0.5) -> Span:
    return span("evil", None, at, role="planner", service=EVIL, detail=detail(asked=asked))


def test_a_second_root_lets_no_value_pass() -> None:
    plain = found(attack())
    both = found([*attack(), evil_root(EVE, "463820")])
    for name, finding in plain.items():
        assert both[name].severity == finding.severity == "critical", name


def test_a_second_root_without_a_request_takes_nothing_from_the_proof() -> None:
    other = span("evil", None, 0.5, role="planner", service=EVIL)
    assert found([*attack(), other])["tool_chaining"].severity == "critical"


def test_what_acts_below_a_second_root_that_names_the_value_is_undecidable() -> None:
    """The attacker's service calls an agent of ours: it hangs below a root of the attacker's."""
    call = span("sink", "evil", 6, role="tool_call", detail=detail("egress", given=(EVE,)))
    one = found([*attack(sink=call), evil_root(EVE)])["tool_chaining"]
    assert (one.severity, one.undecidable) == ("warning", True)
    assert "may not be the user's" in one.why
    proof = found([*attack(sink=call), evil_root("something")])["tool_chaining"]
    assert proof.severity == "critical"


def test_the_users_value_with_two_roots_is_undecidable_not_silent() -> None:
    given = attack(
        carrier=carrier(result=("networking-2024",)),
        sink=sink("egress", given=("networking-2024",)),
    )
    assert found(given) == {}
    assert found([*given, evil_root("x-1")])["tool_chaining"].severity == "warning"
    assert found([*given, evil_root("networking-2024")]) == {}  # both say it


def test_what_acts_below_a_missing_parent_is_let_pass_by_nobody() -> None:
    call = span("sink", "gone", 6, role="tool_call", detail=detail("egress", given=(EVE,)))
    spans = [s for s in attack(sink=call) if s.span_id != sid("root")]
    orphans = [span("top", "gone", 1, role="planner"), *spans, evil_root(EVE)]
    assert found(orphans)["tool_chaining"].severity == "warning"


@pytest.mark.parametrize("asked_at", [None, "chat"], ids=["nowhere else", "deeper"])
def test_another_services_span_does_not_speak_for_the_user(asked_at: str | None) -> None:
    """The root's request was not captured; the attacker's span is the nearest to it that holds one."""
    root = span("root", role="planner")
    evil = span("evil", "root", 1.1, role="planner", service=EVIL, detail=detail(asked=(EVE,)))
    agent = span("agent", "root", 1.2, role="planner")
    own = detail(asked=("networking-2024",)) if asked_at else None
    chat = span("chat", "agent", 1.3, role="planner", detail=own)
    one = found(attack(root=root, evil=evil, agent=agent, chat=chat))["tool_chaining"]
    assert one.severity == ("critical" if asked_at else "warning")


def test_a_service_below_a_gateway_may_hold_the_request_but_not_for_sure() -> None:
    root = span("root", role="unknown", service="gateway")
    top = span("agent", "root", 1.1, role="planner", detail=detail(asked=(EVE,)))
    assert found(attack(root=root, agent=top))["tool_chaining"].severity == "warning"
    asked = span("agent", "root", 1.1, role="planner", detail=detail(asked=("x-1",)))
    assert found(attack(root=root, agent=asked))["tool_chaining"].severity == "critical"


@pytest.mark.parametrize("parent", ["root", "agent"], ids=["nearest", "beside"])
@pytest.mark.parametrize("kind", [MEMBER, PLAIN])
def test_who_gives_the_roots_service_name_does_not_speak_for_the_user(
    parent: str, kind: int
) -> None:
    """The root's request was not captured, a chat span's below it was; the attacker's hangs higher or as high."""
    honest = {
        "root": span("root", role="planner"),
        "agent": span("agent", "root", 1.1, role="planner"),
        "chat": span("chat", "agent", 1.2, role="planner", detail=detail(asked=("room-1",))),
    }
    words = detail(asked=(EVE, "463820"))
    evil = span("evil", parent, 1.3, role="planner", kind=kind, detail=words)
    for name, finding in found(attack(**honest)).items():
        assert finding.severity == "critical", name
        one = found(attack(**honest, evil=evil))[name]
        assert (one.severity, one.undecidable) == ("warning", True), name
        assert "may not be the user's" in one.why


def test_what_only_some_chat_spans_name_is_a_warning_not_silence() -> None:
    chats = {
        n: span(n, "root", at, role="planner", detail=detail(asked=words))
        for n, at, words in (("c1", 1.2, (EVE,)), ("c2", 5, (EVE, "463820")))
    }
    root = span("root", role="planner")
    named = attack(root=root, **chats, sink=sink("egress", given=(EVE,)))
    assert found(named) == {}
    got = found(attack(root=root, **chats, sink=sink("egress", given=("463820",))))
    assert got["compositional_exfiltration"].severity == "warning"


def test_the_request_is_what_every_root_says() -> None:
    roots = [evil_root("a-1", "b-2"), span("r", None, detail=detail(asked=("b-2", "c-3")))]
    trees = parts(examine(roots, (), redelivery="collapse"))
    only = parts(examine([evil_root("b-2")], (), redelivery="collapse"))
    assert user_request(trees) == user_request(only)


# --- broken ids


def rejected(spans: list[Span]) -> list[Span]:
    broken = [*spans, span("twin", "root", 90), span("twin", "root", 91)]
    assert examine(broken, (), redelivery="collapse").status == "rejected"
    assert found(broken) == {}
    return broken


def test_a_rise_counts_in_any_order_where_identity_is_broken() -> None:
    spans = rejected(talk(0.05, 0.10, 0.17, 0.25))
    for order in (spans, spans[::-1]):
        matcher = Matcher([RISE], THRESHOLDS)
        assert matcher.strongest_in_any_order(order) == RISE
        assert strongest_in_any_order(order, BUILTIN) == RISE


@pytest.mark.parametrize(
    "spans",
    [
        talk(0.05, 0.10, 0.25),
        talk(0.05, 0.05, 0.10, 0.25),
        talk(0.01, 0.02, 0.03, 0.17),
        talk(0.15, 0.18, 0.20, 0.25),
        talk(0.05, 0.10, 0.17, 0.25, last="planner"),
        talk(0.05, 0.10, 0.15, 0.35, last="planner"),
    ],
    ids=["too short", "two alike", "ends too low", "too flat", "nobody answers", "pages by itself"],
)
def test_what_cannot_rise_in_any_order(spans: list[Span]) -> None:
    assert Matcher([RISE], THRESHOLDS).strongest_in_any_order(spans) is None


def test_a_refusal_is_no_compliance_in_any_order() -> None:
    judged = [Score("judge", "1", v) for v in (0.05, 0.10, 0.17, 0.25)]
    turns = [span(n, "root", n, role="planner", scores=(s,)) for n, s in enumerate(judged)]
    matcher = Matcher([RISE], THRESHOLDS)
    for value, complies in ((0.02, False), (0.2, True)):
        answer = span("end", "root", 9, role="completion", scores=value)
        assert (matcher.strongest_in_any_order([*turns, answer]) == RISE) is complies


def test_a_step_without_an_id_may_be_any_of_its_role() -> None:
    """The call that acts is sent without a usable id: its tags are not known, it is not forgotten."""
    spans = attack(sink=None, source=None)
    call = SpanFault("missing_id", role="tool_call")
    assert strongest_in_any_order(spans, BUILTIN) is None
    assert strongest_in_any_order(spans, [BY_NAME["tool_chaining"]], faults=[call]) is not None
    assert strongest_in_any_order(spans, BUILTIN, faults=[SpanFault("missing_id")]) is not None
    planner = SpanFault("missing_id", role="planner")
    assert strongest_in_any_order(spans, BUILTIN, faults=[planner]) is None
    none = [span("root", role="planner")]
    alone = SpanFault("missing_id", role="unknown", scores=judge(0.45))
    assert strongest_in_any_order(none, BUILTIN, faults=[alone]) is None  # one span is not two
    assert strongest_in_any_order(none, BUILTIN, faults=[alone, call]) == BY_NAME["tool_chaining"]


def test_a_turn_without_an_id_counts_for_a_rise() -> None:
    spans = talk(0.05, 0.10, 0.17, 0.25)
    (lost,) = (SpanFault("missing_id", role=s.role, scores=s.scores) for s in spans[2:3])
    here = [*spans[:2], *spans[3:]]
    matcher = Matcher([RISE], THRESHOLDS)
    assert matcher.strongest_in_any_order(here) is None
    assert matcher.strongest_in_any_order(here, [lost]) == RISE


# --- spans thrown in


def test_another_services_turn_does_not_interrupt_a_rise() -> None:
    spans = talk(0.05, 0.10, 0.17, 0.25)
    noise = span("noise", "root", 3.5, role="planner", service=EVIL, scores=0.01)
    assert found([*spans, noise]) == found(spans)


def test_a_rise_across_a_gap_is_undecidable_not_silent() -> None:
    spans = talk(0.05, 0.10, 0.17, 0.25)
    torn = [
        *spans[:2],
        *(
            span(n, "gone", 2 + n, role=s.role, scores=s.scores)
            for n, s in enumerate(spans[1:])
            if n
        ),
    ]
    one = found(torn)[RISE.name]
    assert (one.severity, one.undecidable) == ("warning", True)


def test_a_handful_of_results_that_cannot_have_flowed_hides_none_that_has() -> None:
    """Spans of the attacker's that begin before all others and say that they end after all others."""
    decoys = [
        span(
            f"d{n}",
            f"gone{n}",
            0.1,
            role="retrieval",
            service=EVIL,
            scores=0.5,
            end_unix_nano=99_000_000_000,
            detail=detail("private_read", result=(EVE,)),
        )
        for n in range(20)
    ]
    torn = attack(carrier=carrier(parent="gone"))
    assert found([*torn, *decoys])["tool_chaining"].severity == "critical"


FAR = 2**63  # an end that no clock shows


@pytest.mark.parametrize("end", [FAR, 6_000_000_001], ids=["far future", "just after the call"])
@pytest.mark.parametrize("parent", ["root", "gone"])
def test_an_end_after_the_call_silences_no_flow(parent: str, end: int) -> None:
    """Who sends the results gives them the sink's service name, and ends that the sink cannot have waited for."""
    late = [
        msgspec.structs.replace(
            one,
            end_unix_nano=end,
            parent_span_id=sid(parent) if parent != "root" else one.parent_span_id,
        )
        if one.role == "retrieval"
        else one
        for one in attack()
    ]
    got = found(late)
    assert got.keys() == found(attack()).keys()
    for one in got.values():
        assert (one.severity, one.undecidable, one.by_flow) == ("warning", True, False)
    alone = found([s for s in late if s.span_id != sid("source")])
    assert alone["tool_chaining"].severity == "warning"


def test_results_that_say_they_came_too_late_take_nothing_from_a_proof() -> None:
    decoys = [
        span(
            f"d{n}",
            "root",
            3,
            role="retrieval",
            scores=0.5,
            end_unix_nano=FAR,
            detail=detail("private_read", result=(EVE, "463820")),
        )
        for n in range(3)
    ]
    assert found([*attack(), *decoys])["tool_chaining"].severity == "critical"


# --- cost


def turns(n: int, scorers: Callable[[int], tuple[Score, ...]], **fields: object) -> list[Span]:
    many = [
        span(i, "root", 2 + i, role=("planner", "completion")[i % 2], scores=scorers(i), **fields)
        for i in range(n)
    ]
    return [span("root", role="unknown"), *many]


def own_scorer(i: int) -> tuple[Score, ...]:
    return tuple(Score(f"{i}-{k}", "1", 0.2) for k in range(4))


def test_a_rise_costs_steps_in_proportion_to_the_scores() -> None:
    """Counted, not timed: how often a threshold is asked for. Each of ``n`` scorers sees a rise over four turns,
    then come ``n`` turns at which nobody complies."""

    class Counted(Thresholds):
        asked = 0

        def value(self, service: str, scorer: str, role: str) -> float:
            Counted.asked += 1
            return super().value(service, scorer, role)

    def cost(n: int) -> int:
        Counted.asked = 0
        rising = [tuple(Score(f"{k}", "1", v) for k in range(n)) for v in (0.05, 0.1, 0.17, 0.25)]
        scores = [*rising, *([()] * n)]
        spans = [span(i, "root", 2 + i, role="planner", scores=s) for i, s in enumerate(scores)]
        report = examine([span("root", role="unknown"), *spans], (), redelivery="collapse")
        assert match(report, [RISE], Counted(FoldSettings()), cut=False) == ()
        return Counted.asked

    few, many = cost(100), cost(1_000)
    assert 0 < many <= 11 * few


def wide(n: int) -> list[Span]:
    """All spans elevated, fitting every step, with tokens that are the same everywhere."""
    same = tuple(f"t-{k}" for k in range(16))
    tags = ("egress", "private_read", "access")
    return [span("root", detail=detail(asked=("x-1",)))] + [
        span(
            i,
            "root",
            2 + i,
            role="tool_call",
            scores=0.5,
            detail=detail(*tags, given=same, result=same),
        )
        for i in range(n)
    ]


def deep(n: int) -> list[Span]:
    return [
        span(
            i,
            i - 1 if i else None,
            1 + i,
            role="tool_call",
            scores=0.5,
            detail=detail(
                "egress", "private_read", given=("v-1",), result=("v-1",), asked=(f"{i}",)
            ),
        )
        for i in range(n)
    ]


def roots(n: int) -> list[Span]:
    return [
        span(
            i,
            None,
            1 + i,
            role="tool_call",
            service=f"s{i}",
            scores=0.5,
            detail=detail(
                "egress",
                "private_read",
                given=("v-1", f"{i}"),
                result=("v-1",),
                asked=("x-1", f"{i}"),
            ),
        )
        for i in range(n)
    ]


def claimed(n: int) -> list[Span]:
    """A root without a request, and below it spans of its service's name that each give one, and end too late."""
    return [span("root")] + [
        span(
            i,
            "root" if i % 2 else i - 1 if i else "root",
            1 + i,
            role="tool_call",
            scores=0.5,
            end_unix_nano=FAR,
            detail=detail(
                "egress",
                "private_read",
                given=("v-1", f"{i}"),
                result=("v-1",),
                asked=("x-1", f"{i}"),
            ),
        )
        for i in range(n)
    ]


def orphans(n: int) -> list[Span]:
    return [
        span(
            i,
            f"gone{i}",
            1 + i,
            role="planner" if i % 3 else "tool_call",
            service=f"s{i}",
            scores=own_scorer(i),
            detail=detail("egress", "private_read", given=("v-1",), result=("v-1",)),
        )
        for i in range(n)
    ]


@pytest.mark.parametrize(
    "shape",
    [wide, deep, roots, claimed, orphans, lambda n: turns(n, own_scorer)],
    ids=["wide", "deep", "roots", "claimed", "orphans", "scorers"],
)
def test_cost_grows_with_the_spans(shape: Callable[[int], list[Span]]) -> None:
    """Eight times the spans cost about eight times as much; quadratic would be 64."""
    few, many = (examine(shape(n), (), redelivery="collapse") for n in (250, 2_000))
    matcher = Matcher(BUILTIN, THRESHOLDS)

    def work(report: object) -> object:
        trace: dict[str, Highest] = {"highest": {sid(i): judge(0.29) for i in range(0, 250, 2)}}
        matcher.strongest_in_any_order(report.spans, **trace)  # type: ignore[attr-defined]
        return matcher.match(report, cut=False, **trace)  # type: ignore[arg-type]

    cost = cpu_seconds(lambda: work(few))
    assert cpu_seconds(lambda: work(many)) < 24 * cost


def test_the_first_run_that_is_complete_wins_whatever_its_scorers_name() -> None:
    rise = Rise(("planner",), ("completion",), length=2, height=0.1)
    policy = Policy("p", "c", rise=rise)
    spans = [span("root", role="unknown")]
    for n, (late, early) in enumerate(((0.01, 0.05), (0.02, 0.2), (0.25, 0.2))):
        scores = (Score("a-late", "1", late), Score("z-early", "1", early))
        spans.append(span(n, "root", 2 + 2 * n, role="planner", scores=scores))
        spans.append(span(f"c{n}", "root", 3 + 2 * n, role="completion"))
    assert found(spans, policy)["p"].why.startswith("scores of z-early rise over 3 spans")


@pytest.mark.parametrize("proof_at", [1, 300])
def test_a_proof_among_many_doubts_is_found_wherever_it_stands(proof_at: int) -> None:
    """Hundreds of calls whose arguments were not captured do not hide the one that carries the value out."""
    calls = [
        span(
            f"s{n}",
            "root",
            6 + n,
            role="tool_call",
            detail=detail("egress", given=(EVE,) if n == proof_at else None),
        )
        for n in range(400)
    ]
    one = found([*attack(sink=None), *calls])["tool_chaining"]
    assert (one.severity, one.centre) == ("critical", sid(f"s{proof_at}"))
    assert one.span_ids == (sid("carrier"), sid(f"s{proof_at}"))


def test_a_finding_of_very_many_sinks_names_as_many_as_it_can() -> None:
    calls = [
        span(f"s{n}", "root", 6 + n, role="tool_call", detail=detail("egress", given=(EVE,)))
        for n in range(400)
    ]
    one = found([*attack(sink=None), *calls])["tool_chaining"]
    assert one.span_ids == (sid("carrier"), *(sid(f"s{n}") for n in range(49)))
