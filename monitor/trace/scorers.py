"""How many scorers one trace may name. What a trace costs (reductions, pages, drift groups) grows with spans
times scorers, and both come from whoever writes the spans."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

import msgspec

from monitor.model import OTHER, Score, Span

# Scorer versions of one trace, first come. A fleet has a handful; a verdict with 33 reductions of five roles
# stays under 100 kB, and 10,000 spans are still judged in about a second.
SCORER_LIMIT: Final = 32


def bounded(spans: Sequence[Span], declared: Container[str]) -> Sequence[Span]:
    """The spans, naming at most SCORER_LIMIT scorer versions beside those that were ``declared``.

    spans     in order of arrival: who comes first keeps its name
    declared  scorers of the settings: they keep their name, past the limit with version ``other``

    All others become scorer ``other``, version ``other``. Of several such scores of one span the highest stays:
    it pages as before, under that name.
    """
    if len(spans) <= SCORER_LIMIT and all(len(span.scores) <= 1 for span in spans):
        return spans
    named = {(score.scorer, score.version) for span in spans for score in span.scores}
    if len(named) <= SCORER_LIMIT:
        return spans
    names: dict[tuple[str, str], tuple[str, str]] = {}
    for span in spans:
        for score in span.scores:
            own = (score.scorer, score.version)
            if own not in names:
                if len(names) < SCORER_LIMIT:
                    names[own] = own
                else:
                    names[own] = (own[0] if own[0] in declared else OTHER, OTHER)
    return [_renamed(span, names) for span in spans]


def _renamed(span: Span, names: dict[tuple[str, str], tuple[str, str]]) -> Span:
    kept: dict[tuple[str, str, str], Score] = {}
    for score in span.scores:
        scorer, version = names[score.scorer, score.version]
        key = (scorer, version, score.judged)
        known = kept.get(key)
        if known is None or score.value > known.value:
            kept[key] = msgspec.structs.replace(score, scorer=scorer, version=version)
    scores = tuple(kept.values())
    return span if scores == span.scores else msgspec.structs.replace(span, scores=scores)
