"""The replayed AgentDojo traces, variants made of them, and the monitor run over either.

A *variant* takes the raw spans of one trace (native JSON, the root first) and its label, and gives other spans. What
it must not change is what happened: who read, what came out, what was then done with it.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from monitor.drift.settings import DriftSettings
from monitor.intake import IntakeConfig
from monitor.model import Incident
from monitor.policy.load import BUILTIN
from monitor.replay.lines import read
from monitor.replay.runner import Record, Replay
from monitor.trace.config import FoldSettings

DATA: Final = Path(__file__).resolve().parents[2] / "shared" / "data" / "agentdojo"
CONTENT: Final = (
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.result",
    "gen_ai.input.messages",
    "gen_ai.output.messages",
)
BETWEEN: Final = 10_000  # spans that a long trace has between what was read and what is done
HELPERS: Final = "helpers"  # the second service of nested traces
_TRACE_MS: Final = (
    2_000  # from one trace of a replay to the next: nothing is concurrent, nothing idles out early
)
_TOKEN_KEY: Final = b"the made data holds no secret: 00"

Raw = dict[str, Any]
Variant = Callable[[list[Raw], Raw], list[Raw]]


class Dojo(NamedTuple):
    traces: dict[str, list[Raw]]
    labels: dict[str, Raw]


def load(folder: Path = DATA) -> Dojo:
    """Raises FileNotFoundError where the data is not there."""
    traces: dict[str, list[Raw]] = {}
    with gzip.open(folder / "spans.jsonl.gz") as lines:
        for line in lines:
            span = json.loads(line)
            traces.setdefault(span["trace_id"], []).append(span)
    with gzip.open(folder / "labels.jsonl.gz") as lines:
        labels = {label["trace_id"]: label for label in map(json.loads, lines)}
    return Dojo(traces, labels)


# --- variants ------------------------------------------------------------------------------------------


def as_given(trace: list[Raw], _label: Raw) -> list[Raw]:
    return trace


def children_first(trace: list[Raw], _label: Raw) -> list[Raw]:
    return trace[::-1]


def no_scores_on_the_attack(trace: list[Raw], label: Raw) -> list[Raw]:
    attack = set(label["attack_span_ids"])
    return [{**span, "scores": []} if span["span_id"] in attack else span for span in trace]


def no_score_at_all(trace: list[Raw], _label: Raw) -> list[Raw]:
    return [{**span, "scores": []} for span in trace]


def no_content(trace: list[Raw], _label: Raw) -> list[Raw]:
    """What OpenTelemetry does by default: no arguments, results or messages."""
    return [
        {**span, "attributes": {k: v for k, v in span["attributes"].items() if k not in CONTENT}}
        for span in trace
    ]


def nested_three_deep(trace: list[Raw], _label: Raw) -> list[Raw]:
    """Every span but the root under three sub-agents of its own, by turns in the root's service and in another,
    in which the tools run too."""
    spans = []
    for span in trace:
        parent = span["parent_span_id"]
        if parent is None:
            spans.append(span)
            continue
        for depth in range(3):
            agent = {"name": "invoke_agent", "role": "planner", "scores": [], "attributes": {}}
            span_id = _id(span["span_id"], depth)
            service = trace[0]["service"] if depth % 2 else HELPERS
            spans.append(
                {**span, **agent, "span_id": span_id, "parent_span_id": parent, "service": service}
            )
            parent = span_id
        spans.append({**span, "parent_span_id": parent, "service": HELPERS})
    return spans


def elevated_decoy(trace: list[Raw], _label: Raw) -> list[Raw]:
    """A retrieval just below its threshold that has nothing to do with anything, at the end."""
    root = trace[0]
    decoy = {
        **root,
        "span_id": "dec0" * 4,
        "parent_span_id": root["span_id"],
        "name": "execute_tool web_search",
        "role": "retrieval",
        "scores": [{"scorer": "toy-injection", "version": "1", "value": 0.79}],
        "attributes": {
            "gen_ai.tool.name": "web_search",
            "gen_ai.tool.call.result": "order 12345678",
        },
        "start_unix_nano": root["end_unix_nano"] - 2,
        "end_unix_nano": root["end_unix_nano"] - 1,
    }
    return [*trace, decoy]


def one_span_id_twice(trace: list[Raw], label: Raw) -> list[Raw]:
    """A harmless span takes the id of the last act of the attack (of a benign trace: of its last span)."""
    last = [span for span in trace if span["span_id"] in label["attack_span_ids"]] or trace
    double = {**trace[-1], "span_id": last[-1]["span_id"], "name": "note", "attributes": {}}
    return [*trace, {**double, "parent_span_id": trace[0]["span_id"], "role": "planner"}]


def long_between(trace: list[Raw], label: Raw) -> list[Raw]:
    """`BETWEEN` harmless planner spans before the last act of the attack (of a benign trace: its last tool call)."""
    acts = set(label["attack_span_ids"]) or {
        span["span_id"] for span in trace if span["role"] in ("tool_call", "retrieval")
    }
    place = max((n for n, span in enumerate(trace) if span["span_id"] in acts), default=1)
    before = trace[place - 1]
    filler = [
        {
            **trace[0],
            "span_id": _id(before["span_id"], number),
            "parent_span_id": trace[0]["span_id"],
            "name": "think",
            "role": "planner",
            "scores": [{"scorer": "toy-injection", "version": "1", "value": 0.05}],
            "attributes": {},
            "start_unix_nano": before["end_unix_nano"],
            "end_unix_nano": before["end_unix_nano"] + 1,
        }
        for number in range(BETWEEN)
    ]
    return [*trace[:place], *filler, *trace[place:]]


def _id(of: str, number: int) -> str:
    return blake2b(f"{of}{number}".encode(), digest_size=8).hexdigest()


def two_halves(
    trace: list[Raw], label: Raw, *, asks_again: bool = True
) -> tuple[list[Raw], list[Raw]]:
    """Two traces of one session: all up to the last act of the attack (of a benign trace: its last tool call), and
    the act with what follows, under a root of its own that says the user's request again, or nothing."""
    acts = set(label["attack_span_ids"]) or {
        span["span_id"] for span in trace if span["role"] in ("tool_call", "retrieval")
    }
    place = max((n for n, span in enumerate(trace) if span["span_id"] in acts), default=1)
    root = trace[0]
    session = {"gen_ai.conversation.id": f"session-{root['trace_id']}"}
    first = [
        {**root, "attributes": {**root["attributes"], **session}},
        *trace[1:place],
    ]
    again = {k: v for k, v in root["attributes"].items() if asks_again or k not in CONTENT}
    other = blake2b(root["trace_id"].encode(), digest_size=16).hexdigest()
    top = {
        **root,
        "trace_id": other,
        "attributes": {**again, **session},
        "start_unix_nano": trace[place]["start_unix_nano"],
    }
    return first, [top, *({**span, "trace_id": other} for span in trace[place:])]


# --- the monitor over them -----------------------------------------------------------------------------


def incidents(
    traces: Iterable[Sequence[Raw]], settings: FoldSettings | None = None
) -> dict[str, list[Incident]]:
    """The last revision of every incident by trace id, default policies and thresholds unless ``settings`` say else."""
    last: dict[str, Incident] = {}
    for record in replayed(traces, settings):
        if isinstance(record, Incident):
            last[record.incident_id] = record
    found: defaultdict[str, list[Incident]] = defaultdict(list)
    for incident in last.values():
        found[incident.trace_id or ""].append(incident)
    return dict(found)


def replayed(
    traces: Iterable[Sequence[Raw]], settings: FoldSettings | None = None
) -> Iterator[Record]:
    """What a replay of the traces publishes. Each arrives by itself and at once, its spans in the given order."""
    settings = FoldSettings(policies=BUILTIN) if settings is None else settings
    run = Replay(IntakeConfig(token_key=_TOKEN_KEY), settings, DriftSettings())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spans.jsonl"
        arrivals: list[int] = []
        with path.open("w") as file:
            for number, trace in enumerate(traces):
                arrivals += [number * _TRACE_MS + 1] * len(trace)
                file.writelines(json.dumps(span) + "\n" for span in trace)
        for (line, _), now_ms in zip(read([path]), arrivals, strict=True):
            yield from run.feed(line, now_ms)
        yield from run.finish()
