"""Read policies from TOML, and say everything that is wrong with a file at once.

    [[policy]]
    name = "leak_by_ticket"                # unique
    policy_class = "tool_chaining"         # any name but a per-unit one
    description = "What it is about."
    severity = "critical"                  # critical | warning | info

      [[policy.step]]                      # two or more, in causal order (or one [policy.rise])
      name = "read"
      tags = ["private_read"]
      [[policy.step]]
      name = "ticket"
      tags = ["write", "untagged"]         # "untagged": a tool whose name says nothing
      roles = ["tool_call"]
      flow_from = ["read"]                 # last step only

The fields are those of `monitor.policy.rules`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final

import msgspec

from monitor.errors import InvalidSettings
from monitor.model import ROLES, is_per_unit
from monitor.policy.rules import Policy, Rise, Step

MAX_POLICIES: Final = 100  # they are in every settings record, which is 256 kB at most
MAX_STEPS: Final = 8


def load_policies(toml_text: str, *, source: str = "policies") -> tuple[Policy, ...]:
    """Policies of a TOML text, in its order. ``source`` names the file in messages.

    Raises `InvalidSettings`; its message has a line for each fault, with the policy's and the step's name.
    """
    try:
        document = tomllib.loads(toml_text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"{source}: not valid TOML: {error}") from error
    faults = [
        f"unknown key {key!r}; only [[policy]] is allowed" for key in document if key != "policy"
    ]
    raw = document.get("policy", [])
    if not isinstance(raw, list):
        faults.append("write [[policy]] with two brackets: it is a list")
        raw = []
    if len(raw) > MAX_POLICIES:
        faults.append(f"{len(raw)} policies, at most {MAX_POLICIES} are allowed")
        raw = []
    policies: list[Policy] = []
    for number, item in enumerate(raw, 1):
        name = item.get("name") if isinstance(item, dict) else None
        label = f"policy {name!r}" if isinstance(name, str) else f"policy number {number}"
        try:
            policy = msgspec.convert(_singular(item), Policy)
        except msgspec.ValidationError as error:
            faults.append(f"{label}: {error}")
            continue
        policies.append(policy)
        faults.extend(f"{label}: {fault}" for fault in _faults(policy))
    names = [policy.name for policy in policies]
    faults.extend(
        f"policy {name!r} is there {names.count(name)} times"
        for name in sorted(set(names))
        if names.count(name) > 1
    )
    if faults:
        raise InvalidSettings("\n".join(f"{source}: {fault}" for fault in faults))
    return tuple(policies)


def _singular(item: Any) -> Any:
    """TOML's repeated ``[[policy.step]]`` reads best in the singular; the struct has ``steps``."""
    if isinstance(item, dict) and "step" in item:
        if "steps" in item:
            raise msgspec.ValidationError("has both `step` and `steps`; write [[policy.step]]")
        return {
            **{key: value for key, value in item.items() if key != "step"},
            "steps": item["step"],
        }
    return item


def _faults(policy: Policy) -> Iterator[str]:
    if not policy.name:
        yield "name is empty"
    if is_per_unit(policy.policy_class):
        yield f"policy_class {policy.policy_class!r} looks at one unit; a composition policy is relational"
    if policy.rise is None and len(policy.steps) < 2:
        yield f"has {len(policy.steps)} steps; two or more are needed (one span alone is a threshold's work), or [policy.rise]"
    if policy.rise is not None:
        if policy.steps:
            yield "has steps and a rise; make two policies of it"
        yield from _rise_faults(policy.rise)
    if len(policy.steps) > MAX_STEPS:
        yield f"has {len(policy.steps)} steps, at most {MAX_STEPS} are allowed"
    seen: list[str] = []
    for step in policy.steps:
        last = step is policy.steps[-1]
        yield from (f"step {step.name!r}: {fault}" for fault in _step_faults(step, seen, last=last))
        seen.append(step.name)


def _step_faults(step: Step, earlier: list[str], *, last: bool) -> Iterator[str]:
    if not step.name:
        yield "name is empty"
    if step.name in earlier:
        yield "an earlier step has this name"
    yield from _role_faults("roles", step.roles)
    if not 0.0 <= step.min_score <= 1.0:
        yield f"min_score is {step.min_score}, allowed is 0 to 1"
    if not (step.tags or step.roles or step.min_score > 0.0):
        yield "every span fits it; name tags, roles or a min_score"
    for name in step.flow_from:
        if name not in earlier:
            known = ", ".join(map(repr, earlier)) or "none"
            yield f"flow_from names {name!r}, which is no earlier step (earlier: {known})"
    if step.flow_from and not last:
        yield "flow_from is for the last step; the steps between need tags"
    for name in ("unexplained", "plain_words"):
        if getattr(step, name) and not step.flow_from:
            yield f"{name} stands in for a flow; name flow_from too"


def _rise_faults(rise: Rise) -> Iterator[str]:
    yield from (f"rise: {fault}" for fault in _role_faults("roles", rise.roles))
    yield from (f"rise: {fault}" for fault in _role_faults("then_roles", rise.then_roles))
    if not rise.roles or not rise.then_roles:
        yield "rise: roles and then_roles must name a role"
    if rise.length < 2:
        yield f"rise: length is {rise.length}, at least 2 scores make a rise"
    for name in ("height", "reach", "then_share"):
        value = getattr(rise, name)
        if not 0.0 < value <= 1.0:
            yield f"rise: {name} is {value}, allowed is above 0, up to 1"


def _role_faults(field: str, roles: tuple[str, ...]) -> Iterator[str]:
    for role in roles:
        if role not in ROLES:
            yield f"{field} has {role!r}; roles are {', '.join(ROLES)}"


BUILTIN: Final[tuple[Policy, ...]] = load_policies(
    files("monitor.policy").joinpath("builtin.toml").read_text("utf-8"), source="builtin.toml"
)
