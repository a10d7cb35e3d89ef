"""Compare two model versions without Kafka: ``python examples/compare_versions.py``. Columns may be a DataFrame's."""

import random
import sys

from monitor.drift.table import compare


def spans(traces: int, moved: float, seed: int) -> dict[str, list]:
    """Six tool calls a trace, about as harmless as their trace; ``moved`` is added to each score."""
    rng = random.Random(seed)
    table: dict[str, list] = {"trace_id": [], "role": [], "score": [], "hour": []}
    for i in range(traces):
        about = rng.uniform(0.1, 0.4)
        for _ in range(6):
            table["trace_id"].append(i)
            table["role"].append("tool_call")
            table["score"].append(about + rng.uniform(-0.1, 0.1) + moved)
            table["hour"].append(i // 50)
    return table


before = spans(2000, 0.0, seed=1)
for name, after in (("the same", spans(4000, 0.0, seed=2)), ("moved", spans(500, 0.1, seed=3))):
    for found in compare(before, after, window="hour"):
        figures = f"D = {found.d:.3f}, log E = {found.log_e:.1f}"
        sys.stdout.write(f"{name}: {found.role} {found.decision}, {figures}\n")
