"""A support agent as its owner writes it: OpenTelemetry's SDK, its GenAI conventions, nothing of the monitor.

``OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 python tests/collector/agent.py 20`` works through that many
harmless tickets, then three where the agent runs a shell command that a judge finds unsafe. It prints a line of JSON:
of each ticket its trace, and of each span there its id. A judge of finished traces begins when standard input ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from opentelemetry import trace
from opentelemetry._logs import get_logger, set_logger_provider
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind

SERVICE: Final = "support-agent"
MODEL: Final = "gpt-4o-2024-08-06"
JUDGE: Final = "injection-judge"
SAFE: Final = 0.05
UNSAFE: Final = 0.91
EVALUATION: Final = "gen_ai.evaluation.result"

AS_EVENTS: Final = "events"  # of the span that was judged
AS_RECORDS: Final = "records"  # log records with the trace and span id of the span that was judged
AS_LATE_RECORDS: Final = "late records"  # the same, by a judge that reads the finished trace


@dataclass
class Ticket:
    """One trace. ``scores``: how they are told."""

    scores: str
    trace_id: str = ""
    spans: dict[str, str] = field(default_factory=dict)
    """Name -> span id."""
    judged: list[tuple[Span, float]] = field(default_factory=list, repr=False)


def main(harmless: int) -> None:
    resource = Resource.create({"service.name": SERVICE})
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(tracers)
    loggers = LoggerProvider(resource=resource)
    loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    set_logger_provider(loggers)

    tickets = [work(AS_EVENTS, "search_tickets", SAFE) for _ in range(harmless)]
    tickets += [work(how, "run_shell", UNSAFE) for how in (AS_EVENTS, AS_RECORDS, AS_LATE_RECORDS)]
    tracers.shutdown()
    told = [{"scores": t.scores, "trace_id": t.trace_id, "spans": t.spans} for t in tickets]
    print(json.dumps(told), flush=True)

    sys.stdin.read()
    for ticket in tickets:
        for span, danger in ticket.judged:
            emit(span, danger)
    loggers.shutdown()


def work(scores: str, tool: str, danger: float) -> Ticket:
    """The agent asks a model, looks something up, runs a tool, and answers."""
    ticket = Ticket(scores)
    call = "call_1"
    # Twice what Kafka takes as a message by default.
    command = "hello " * 350_000 if tool == "run_shell" and scores == AS_EVENTS else "hello"
    arguments = {"command": command}
    with step(ticket, "invoke_agent support", "invoke_agent", SAFE) as agent:
        agent.set_attribute("gen_ai.agent.name", "support")
        ticket.trace_id = trace.format_trace_id(agent.get_span_context().trace_id)
        with step(ticket, "chat plan", "chat", SAFE, SpanKind.CLIENT) as asking:
            asking.set_attributes(model("tool_calls"))
            wanted = {
                "type": "tool_call",
                "id": call,
                "name": tool,
                "arguments": {"command": command[:100]},
            }
            answer = [{"role": "assistant", "parts": [wanted], "finish_reason": "tool_call"}]
            asking.set_attribute("gen_ai.output.messages", json.dumps(answer))
        with step(ticket, "retrieval handbook", "retrieval", SAFE, SpanKind.CLIENT) as looking:
            looking.set_attribute("gen_ai.data_source.id", "handbook")
        with step(ticket, f"execute_tool {tool}", "execute_tool", danger) as acting:
            acting.set_attributes({"gen_ai.tool.name": tool, "gen_ai.tool.call.id": call})
            acting.set_attribute("gen_ai.tool.call.arguments", json.dumps(arguments))
        with step(ticket, "chat answer", "chat", SAFE, SpanKind.CLIENT) as answering:
            answering.set_attributes(model("stop"))
    return ticket


def model(finish_reason: str) -> dict[str, str | list[str]]:
    return {
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.model": MODEL,
        "gen_ai.response.finish_reasons": [finish_reason],
    }


@contextmanager
def step(
    ticket: Ticket, name: str, operation: str, danger: float, kind: SpanKind = SpanKind.INTERNAL
) -> Iterator[Span]:
    """A span, judged before it ends or kept for a later judge."""
    attributes = {"gen_ai.operation.name": operation}
    with trace.get_tracer(__name__).start_as_current_span(
        name, kind=kind, attributes=attributes
    ) as span:
        ticket.spans[name] = trace.format_span_id(span.get_span_context().span_id)
        yield span
        if ticket.scores == AS_EVENTS:
            span.add_event(EVALUATION, judgement(danger))
        elif ticket.scores == AS_RECORDS:
            emit(span, danger)
        else:
            ticket.judged.append((span, danger))


def emit(span: Span, danger: float) -> None:
    get_logger(__name__).emit(
        context=trace.set_span_in_context(span),
        event_name=EVALUATION,
        attributes=judgement(danger),
    )


def judgement(danger: float) -> dict[str, str | float]:
    return {"gen_ai.evaluation.name": JUDGE, "gen_ai.evaluation.score.value": danger}


if __name__ == "__main__":
    main(int(sys.argv[1]))
