"""What a policy lacked: exactly the one thing that was taken from an attack that matches."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.model import Span
from monitor.policy.match import match
from monitor.policy.nearly import Near, nearly
from monitor.policy.rules import Policy, Step
from monitor.trace.identity import examine
from tests.policy.test_match import BY_NAME, EVE, THRESHOLDS, attack, carrier, sink
from tests.trace.truth import detail, sid, span

EXFILTRATION = BY_NAME["compositional_exfiltration"]
JAILBREAK = BY_NAME["multi_step_jailbreak"]


def near(spans: list[Span], policy: Policy = EXFILTRATION) -> dict[str, Near]:
    report = examine(spans, (), redelivery="collapse")
    assert not match(report, [policy], THRESHOLDS, cut=False)
    return {f"{n.step} {n.want}".strip(): n for n in nearly(report, policy, THRESHOLDS, cut=False)}


def source(**fields: object) -> Span:
    fields.setdefault("role", "retrieval")
    return span("source", "root", 4, scores=0.05, **fields)


def test_a_score_that_is_too_low_is_named_with_what_it_is() -> None:
    got = near(attack(carrier=carrier(0.21)))
    assert got.keys() == {"carrier score"}
    one = got["carrier score"]
    assert (one.span_id, one.has, one.needed) == (sid("carrier"), 0.21, 0.30)
    assert one.shortfall == pytest.approx(0.3)
    assert "0.21" in one.why


def test_of_several_scores_the_highest_that_would_do_counts() -> None:
    """A higher one from which nothing flows, and after which nothing private is read, would not help."""
    late = span("late", "root", 9, role="retrieval", scores=0.29, detail=detail("untrusted_read"))
    low = span("low", "root", 1.5, role="retrieval", scores=0.02, detail=detail("private_read"))
    got = near([*attack(carrier=carrier(0.21)), late, low])
    assert (got["carrier score"].span_id, got["carrier score"].has) == (sid("carrier"), 0.21)


def test_a_span_without_a_score_is_not_a_span_that_scores_0() -> None:
    unscored = msgspec.structs.replace(carrier(), scores=())
    one = near(
        attack(
            root=span("root", role="planner", detail=detail(asked=("networking-2024",))),
            carrier=unscored,
            source=msgspec.structs.replace(source(detail=detail("private_read", result=("463820",))), scores=()),
            sink=msgspec.structs.replace(sink("egress", given=(EVE,)), scores=()),
        )
    )["carrier score"]  # fmt: skip
    assert (one.span_id, one.has) == (None, None)
    assert one.shortfall == 1.0


def test_a_tag_that_is_missing() -> None:
    got = near(attack(source=source(detail=detail("read", result=("463820",)))))
    assert got.keys() == {"source tag"}
    assert got["source tag"].span_id == sid("source")
    assert "has read; step 'source' needs one of private_read" in got["source tag"].why


def test_a_role_that_is_another() -> None:
    planner = msgspec.structs.replace(carrier(), role="planner")
    assert near(attack(carrier=planner)).keys() == {"carrier role"}


def test_a_tag_that_must_not_be_there() -> None:
    step = Step("source", tags=("private_read",), not_tags=("read",))
    steps = (EXFILTRATION.steps[0], step, EXFILTRATION.steps[2])
    policy = msgspec.structs.replace(EXFILTRATION, steps=steps)
    got = near(attack(source=source(detail=detail("private_read", "read"))), policy)
    assert got.keys() == {"source not_tag"}


@pytest.mark.parametrize(
    ("given_values", "said"),
    [
        (("networking-2024",), "no value in the arguments"),
        ((), "hold no value that could be followed"),
    ],
)
def test_flow_that_is_not_there(given_values: tuple[str, ...], said: str) -> None:
    got = near(attack(sink=sink("egress", given=given_values)))
    assert got.keys() == {"sink flow"}
    assert got["sink flow"].span_id == sid("sink")
    assert said in got["sink flow"].why


def test_flow_of_what_the_user_named_himself() -> None:
    root = span("root", role="planner", scores=0.03, detail=detail(asked=(EVE,)))
    got = near(attack(root=root, sink=sink("egress", given=(EVE,))))
    assert "is in the user's request" in got["sink flow"].why


def test_order_that_is_another() -> None:
    got = near(attack(carrier=carrier(at=7)))
    assert got.keys() == {"sink order"}


def test_what_lacks_two_things_is_not_near() -> None:
    assert not near(attack(carrier=carrier(0.1), source=None))
    assert not near([span("root", role="planner", scores=0.03)])


def test_nothing_is_said_of_a_rejected_identity() -> None:
    assert not near([*attack(carrier=carrier(0.1)), span("sink", "root", 9)])


def turns(*scores: float, role: str = "completion") -> list[Span]:
    root = span("root", role="unknown")
    return [root, *(span(n, "root", 2 + n, role=role, scores=s) for n, s in enumerate(scores))]


@pytest.mark.parametrize(
    ("scores", "want"),
    [
        ((0.02, 0.12, 0.22), "length"),
        ((0.18, 0.19, 0.20, 0.21), "height"),
        ((0.01, 0.06, 0.11, 0.17), "reach"),
    ],
)
def test_of_a_rise_what_it_lacks(scores: tuple[float, ...], want: str) -> None:
    got = near(turns(*scores), JAILBREAK)
    assert got.keys() == {want}


def test_a_rise_that_was_refused() -> None:
    rising = turns(0.02, 0.09, 0.16, 0.24, role="planner")
    refused = span("refused", "root", 20, role="completion", scores=0.01)
    assert near([*rising, refused], JAILBREAK).keys() == {"compliance"}


@given(st.floats(0.0, 0.299), st.floats(0.0, 0.299))
def test_the_score_named_is_the_most_that_min_score_may_ask(one: float, other: float) -> None:
    """At that score the policy matches, above it it does not."""
    twin = span(
        "twin", "root", 2.5, role="retrieval", scores=other, detail=detail("private_read", result=(EVE,))
    )  # fmt: skip
    spans = [*attack(carrier=carrier(one)), twin]
    has = near(spans)["carrier score"].has
    assert has is not None
    report = examine(spans, (), redelivery="collapse")
    for asked, matches in ((has, True), (has + 1e-6, False)):
        first = msgspec.structs.replace(EXFILTRATION.steps[0], min_score=asked)
        policy = msgspec.structs.replace(EXFILTRATION, steps=(first, *EXFILTRATION.steps[1:]))
        assert bool(match(report, [policy], THRESHOLDS, cut=False)) == matches
