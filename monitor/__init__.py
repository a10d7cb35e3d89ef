"""Streaming drift and incident monitor for AI-agent traces on Kafka.

What most programs need of it as a library is the guard. A safety score grows with danger: 0 is safe, 1
violates the policy.

>>> from monitor import Span, reduce_trace
>>> trace = [Span("a1", "retrieval", 0.02), Span("b2", "tool_call", 0.91), Span("c3", "completion", 0.04)]
>>> reduce_trace(trace, "compositional_exfiltration", allow_scalar=False)
TraceVerdict(max_score=0.91, argmax_span_id='b2', span_count=3, policy_class='compositional_exfiltration')

A class that is about the trace as a whole must not become one number, nor a class nobody knows:

>>> reduce_trace(trace, "compositional_exfiltration", allow_scalar=True)
Traceback (most recent call last):
    ...
monitor.errors.NonAggregableTraceError: policy class 'compositional_exfiltration' is relational or unknown: ...
"""

from __future__ import annotations

from monitor.errors import MonitorError, NonAggregableTraceError
from monitor.model import RELATIONAL_POLICY_CLASSES
from monitor.trace.guard import Span, TraceVerdict, reduce_trace

__all__ = [
    "RELATIONAL_POLICY_CLASSES",
    "MonitorError",
    "NonAggregableTraceError",
    "Span",
    "TraceVerdict",
    "reduce_trace",
]
