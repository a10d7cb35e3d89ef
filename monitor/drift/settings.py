"""What an operator may set about drift, and the constants of the method. Probabilities are in (0, 1)."""

from __future__ import annotations

import msgspec


class DriftSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults are the method's; each has its reason. Same log and same settings give the same reports."""

    window_ms: int = 3_600_000  # an hour's mood is what phi must see; shorter only in a demo
    min_reference: int = 200  # traces; the evidence is valid asymptotically, checked from here on
    min_current: int = 50
    min_stratum: int = (
        20  # traces on both sides before a stratum takes part in the counts comparison
    )
    d0_page: float = 0.05  # shifts of F up to this never page
    d0_ticket: float = 0.02
    d_equivalent: float = 0.10  # "equivalent" promises no shift of this size anywhere
    tau: float = 0.05  # sd of the mixture over shifts: the size one wants found soonest
    # False decisions in a lifetime of one (service, scorer): these sum to .01 (the incident rate decides nothing).
    alpha_behaviour: float = 0.006
    alpha_tail: float = 0.002
    alpha_mix: float = 0.002
    alpha_equivalent: float = 0.01
    fdr_q: float = 0.1  # tickets: share of false ones among those open
    look_every: int = 20  # deltas of a key; a first delta of a higher window is looked at anyway
    phi_windows: int = 336  # first windows of a version that phi is learnt from: two weeks of hours
    phi_min: int = 8  # windows; a variance of fewer blocks says nothing
    phi_firm: int = 48  # fewer are marked provisional
    dormant_windows: int = (
        24  # a version without traces for so long is no longer current; latches open
    )
    recent_windows: int = 24  # a lone version's recent past, held against its first windows
    max_pairs: int = 64  # open version pairs a role; the one longest without traces closes
    max_versions: int = (
        64  # (scorer version, model version) a key; the one longest without traces is forgotten
    )
    max_rows: int = (
        4096  # strata a window; further ones are counted and left out (hostile version labels)
    )
    max_fences: int = (
        1024  # folded windows a version remembers one by one; older ones share the version's fence
    )
    past_traces: int = (
        2000  # reference of a version against its own past: its first windows until both hold
    )
    past_windows: int = 8
    detector_alarm: float = (
        10_000.0  # windows on average until a version's own past raises a false alarm
    )
