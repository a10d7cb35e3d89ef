from __future__ import annotations

import msgspec
import pytest

from monitor.errors import InvalidSettings
from monitor.model import RELATIONAL_POLICY_CLASSES
from monitor.policy.load import BUILTIN, MAX_POLICIES, load_policies
from monitor.policy.rules import Policy, Rise, Step

GOOD = """
[[policy]]
name = "leak_by_ticket"
policy_class = "tool_chaining"
severity = "warning"
  [[policy.step]]
  name = "read"
  tags = ["private_read"]
  min_score = 0.2
  [[policy.step]]
  name = "ticket"
  tags = ["write", "untagged"]
  roles = ["tool_call"]
  flow_from = ["read"]
"""
STEP = """
  [[policy.step]]
  name = "a"
  tags = ["x"]
"""
HEAD = '[[policy]]\nname = "p"\npolicy_class = "c"\n'
TWO = HEAD + STEP + '  [[policy.step]]\n  name = "b"\n  tags = ["y"]\n'


def test_reads_steps() -> None:
    assert load_policies(GOOD) == (
        Policy(
            "leak_by_ticket",
            "tool_chaining",
            severity="warning",
            steps=(
                Step("read", tags=("private_read",), min_score=0.2),
                Step(
                    "ticket", tags=("write", "untagged"), roles=("tool_call",), flow_from=("read",)
                ),
            ),
        ),
    )


def test_reads_a_rise() -> None:
    (policy,) = load_policies(
        HEAD + '[policy.rise]\nroles = ["planner"]\nthen_roles = ["completion"]\nlength = 5\n'
    )
    assert policy.rise == Rise(("planner",), ("completion",), length=5)


def test_no_policy_is_no_fault() -> None:
    assert load_policies("") == ()


def test_builtin_policies_are_the_three_relational_classes() -> None:
    assert {policy.policy_class for policy in BUILTIN} == RELATIONAL_POLICY_CLASSES
    assert all(policy.description for policy in BUILTIN)


def test_survives_the_settings_record() -> None:
    """Policies travel in the log as JSON."""
    assert msgspec.json.decode(msgspec.json.encode(BUILTIN), type=tuple[Policy, ...]) == BUILTIN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy = [", "not valid TOML"),
        ('[[rule]]\nname = "x"', "unknown key 'rule'"),
        ('[policy]\nname = "x"', "two brackets"),
        (HEAD, "has 0 steps"),
        (HEAD + STEP, "has 1 steps"),
        (HEAD + STEP + STEP, "step 'a': an earlier step has this name"),
        (TWO.replace('"p"', '""', 1), "name is empty"),
        (TWO.replace('"c"', '"per_unit:pii"', 1), "looks at one unit"),
        (TWO + TWO, "policy 'p' is there 2 times"),
        (TWO + "  color = 1\n", "policy 'p': .*color"),
        (TWO + '  severity = "bad"\n', "policy 'p': .*severity"),
        (TWO.replace("policy_class", 'severity = "bad"\npolicy_class'), "policy 'p': .*'bad'"),
        (TWO + '  roles = ["tool"]\n', "step 'b': roles has 'tool'; roles are planner, retrieval"),
        (TWO + "  min_score = 1.5\n", "step 'b': min_score is 1.5"),
        (TWO + "  min_score = nan\n", "step 'b': min_score is nan"),
        (
            TWO + '  flow_from = ["c"]\n',
            "step 'b': flow_from names 'c', which is no earlier step .*'a'",
        ),
        (TWO + '  flow_from = ["b"]\n', "step 'b': flow_from names 'b'"),
        (
            TWO + '  flow_from = ["a"]\n' + STEP.replace('"a"', '"z"'),
            "step 'b': flow_from is for the last step",
        ),
        (TWO + "  unexplained = true\n", "unexplained .*name flow_from too"),
        (TWO + "  plain_words = true\n", "plain_words .*name flow_from too"),
        (HEAD + STEP + '  [[policy.step]]\n  name = "any"\n', "step 'any': every span fits it"),
        (TWO + '[policy.rise]\nroles = ["planner"]\nthen_roles = ["planner"]', "steps and a rise"),
        (HEAD + '[policy.rise]\nroles = []\nthen_roles = ["planner"]', "must name a role"),
        (HEAD + '[policy.rise]\nroles = ["x"]\nthen_roles = ["planner"]', "roles has 'x'"),
        (
            HEAD + '[policy.rise]\nroles = ["planner"]\nthen_roles = ["planner"]\nlength = 1',
            "at least 2",
        ),
        (
            HEAD + '[policy.rise]\nroles = ["planner"]\nthen_roles = ["planner"]\nreach = 1.2',
            "reach is 1.2",
        ),
        (HEAD.replace('name = "p"\n', ""), "policy number 1"),
        (HEAD + "".join(STEP.replace('"a"', f'"{n}"') for n in range(9)), "at most 8"),
    ],
)
def test_says_what_is_wrong_and_where(text: str, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message) as caught:
        load_policies(text, source="rules.toml")
    assert all(line.startswith("rules.toml: ") for line in str(caught.value).splitlines())


def test_says_everything_at_once() -> None:
    text = TWO + "  min_score = 2\n" + HEAD.replace('"p"', '"q"')
    with pytest.raises(InvalidSettings) as caught:
        load_policies(text)
    assert len(str(caught.value).splitlines()) == 2


def test_too_many_policies() -> None:
    text = "".join(TWO.replace('"p"', f'"p{n}"') for n in range(MAX_POLICIES + 1))
    with pytest.raises(InvalidSettings, match="101 policies, at most 100"):
        load_policies(text)
