"""What an operator may set about drift, and the constants of the method. Probabilities are in (0, 1)."""

from __future__ import annotations

import msgspec


class DriftSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults are the method's; each has its reason. Same log and same settings give the same reports."""

    # Length of the windows that the fold cuts: an hour's mood is what phi must see; shorter only in a demo.
    # The engine counts windows by number; this turns a number into a date in reports.
    window_ms: int = 3_600_000

    # Sizes, in traces: the evidence is valid asymptotically and was checked from here on.
    min_reference: int = 200
    min_current: int = 50
    min_stratum: int = 20  # on both sides, before a stratum takes part in the counts comparison

    d0_page: float = 0.05  # shifts of F up to this never page
    d0_ticket: float = 0.02
    d_equivalent: float = 0.10  # "equivalent" promises no shift of this size anywhere
    tau: float = 0.05  # sd of the mixture over shifts: the size one wants found soonest

    # False decisions in the lifetime of a (service, scorer): the first three sum to .01.
    alpha_behaviour: float = 0.006
    alpha_tail: float = 0.002
    alpha_mix: float = 0.002
    alpha_equivalent: float = 0.01
    fdr_q: float = 0.1  # share of false ones among open tickets

    look_every: int = 20  # deltas of a key; the first delta of a higher window is looked at anyway

    phi_windows: int = 336  # first windows that phi is learnt from: two weeks of hours
    phi_min: int = 8  # a variance of fewer windows says nothing
    phi_firm: int = 48  # with fewer, phi is marked provisional

    dormant_windows: int = (
        24  # without traces for so long a version is no longer current; latches open
    )
    recent_windows: int = 24  # recent past of a lone version
    past_windows: int = 8  # least first windows that it is held against

    # Bounds
    max_keys: int = (
        1000  # (service, scorer) a partition: 200 services under 3 scorers have 600 in all
    )
    max_pairs: int = 64  # version pairs open a role; the one longest without traces closes
    max_versions: int = (
        64  # (scorer version, model version) a key; a new one takes the place of a dormant one only
    )
    max_rows: int = (
        1024  # strata a window: two versions have 500; new ones past it are counted and left out
    )
    max_fences: int = (
        1024  # folded windows a version remembers one by one; older ones share its fence
    )
