"""Each trace of some files judged once, with all that they have of it: lifetimes, limits, lateness play no part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from monitor.codec import decode_fold_record
from monitor.drift.settings import DriftSettings
from monitor.intake import IntakeConfig
from monitor.model import Fragment
from monitor.replay.lines import Line, read
from monitor.replay.runner import Replay, Summary
from monitor.trace.config import FoldSettings
from monitor.trace.content import Content
from monitor.trace.judge import Judgement, judge
from monitor.trace.rules import Rules


def judged_whole(
    paths: list[Path],
    intake: IntakeConfig,
    settings: FoldSettings,
    summary: Summary | None = None,
    each: Callable[[Line], None] | None = None,
) -> Iterator[Judgement]:
    """One judgement a trace id, in the order of first spans. All files are read before the first one.

    ``summary``: is told what was read; ``each``: every line. Raises UnreadableFile.
    """
    traces: dict[str, list[bytes]] = {}

    def keep(_: int, value: bytes) -> None:
        fragment = decode_fold_record(value)
        if isinstance(fragment, Fragment):
            traces.setdefault(fragment.trace_id, []).append(value)

    # For what it hands to the fold; what the fold makes of it at one moment in time is of no interest.
    run = Replay(intake, FoldSettings(), DriftSettings())
    run.logged = keep
    for line, _ in read(paths):
        if each is not None:
            each(line)
        for _record in run.feed(line, 1):
            pass
    if summary is not None:
        for name in ("lines", "spans", "scores", "faults", "dead_letters", "unknown_roles"):
            setattr(summary, name, getattr(run.summary, name))
    rules = Rules(settings, settings.sha256, settings.canonical())
    for trace_id in list(traces):
        content = Content.of(traces.pop(trace_id))
        here = {span.span_id for span in content.spans}
        alone = [late for _, late in content.scores if late.span_id not in here]
        yield judge(trace_id, content, alone, rules, {}, cut=False)
