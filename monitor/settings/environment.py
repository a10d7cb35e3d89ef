"""Which variables of the environment are ours, and what is wrong with those that are not known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

PREFIX: Final = "MONITOR_"

# Kubernetes injects these for every Service of the namespace; one named `monitor` or `monitor-web`
# gives names with our prefix. See "Environment variables" in the Kubernetes documentation on Services.
_SERVICE_NAME: Final = re.compile(
    r".+_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://.+")

# Of the letters of both names, in order, in common: two wrong of eight, as slips of the pen are.
_NEAR: Final = 0.75


def injected_by_kubernetes(name: str, value: str) -> bool:
    """True for ``X_SERVICE_HOST``, ``X_SERVICE_PORT[_NAME]``, ``X_PORT_n_TCP…`` and ``X_PORT=tcp://…``."""
    if _SERVICE_NAME.fullmatch(name):
        return True
    return name.endswith("_PORT") and _SERVICE_URL.fullmatch(value) is not None


def ours(environ: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """The variables that are meant for us; a known name is ours whatever it looks like."""
    names = frozenset(known)
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(PREFIX)
        and not (
            injected_by_kubernetes(name, value)
            and (name not in names or _SERVICE_URL.fullmatch(value))
        )
    }


def unknown_names(environ: Mapping[str, str], known: Iterable[str]) -> list[str]:
    """One line of complaint for every name that no setting has, with the nearest that one has."""
    # Without the prefix: it is in every name, and would make all of them look alike.
    names = {name.removeprefix(PREFIX): name for name in sorted(known)}
    faults = []
    for name in sorted(set(environ) - set(names.values())):
        near = difflib.get_close_matches(name.removeprefix(PREFIX), names, n=1, cutoff=_NEAR)
        hint = f"did you mean {names[near[0]]}?" if near else "`monitor config` lists all names"
        faults.append(f"{name}: no such setting; {hint}")
    return faults
