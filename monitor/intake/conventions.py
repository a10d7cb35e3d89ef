"""The one table of attribute conventions: which attribute says what, for every instrumentation we know.

A row: attribute, field, the conventions that use it. Rows of one field are in order of precedence; an
operator's rows (`MONITOR_CONVENTIONS`) come before all of them. In an attribute name ``#`` stands for a
number, ``*`` for one or more characters. What no row names is never read.

Precedence for what a span *is* (field ``unit``): our own attributes, then the instrumentation's own span
kind (LangSmith labels a retriever `embeddings` in gen_ai), then gen_ai.operation.name, then weaker signs.
A value that a row's ``units`` does not hold says nothing, and the next row speaks; ``*`` is any value.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Unit = Literal[
    "llm",  # a model call: planner if it requests tools, else completion
    "planner",
    "retrieval",
    "tool",  # tool_call, or retrieval where the tool only reads
    "embedding",  # no member unless scored; its model is not the agent's
    "evaluator",
    "guardrail",
    "wrapper",  # doubles another span
    "plain",  # a marker: no call of its own
]
Field = Literal[
    "role",  # own: one of the roles, or evaluator, guardrail
    "unit",
    "model",  # model version that answered
    "model_alias",  # model that was asked for
    "agent",
    "session",
    "tool_name",
    "tool_type",
    "tool_call_id",
    "tags",
    "arguments",  # of a tool
    "result",  # of a tool or retrieval
    "input",  # whatever the span was given: arguments of a tool, messages of a model or agent
    "output",
    "input_part",  # flattened input messages, many attributes
    "result_part",  # flattened documents, many attributes
    "tool_request",  # the model asked for a tool if present
    "finish",  # finish reasons
    "score",  # value; the scorer is what * stands for, else the attribute's name
    "evaluation_name",
    "evaluation_value",
    "evaluation_label",
    "target_trace",  # an evaluation span's target
    "target_span",
    "target_role",
    "genai",  # presence marks a span as GenAI
]
MANY: Final[frozenset[Field]] = frozenset({"input_part", "result_part", "tool_request", "score"})

OWN: Final = "own"
SEMCONV: Final = "OTel GenAI"
SEMCONV_OLD: Final = "OTel GenAI (deprecated)"
OPENINFERENCE: Final = "OpenInference"
TRACELOOP: Final = "OpenLLMetry"
LANGFUSE: Final = "Langfuse"
LANGSMITH: Final = "LangSmith"
MLFLOW: Final = "MLflow"
VERCEL: Final = "Vercel AI SDK"
PYDANTIC: Final = "pydantic-ai"
ADK: Final = "google-adk"
LOOSE: Final = "seen in use"


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    attribute: str
    field: Field
    source: str = "operator"
    units: dict[str, Unit] = {}


OPERATIONS: Final[dict[str, Unit]] = {
    **dict.fromkeys(("chat", "generate_content", "text_completion", "completion"), "llm"),
    **dict.fromkeys(("invoke_agent", "create_agent", "invoke_workflow", "plan"), "planner"),
    **dict.fromkeys(("retrieval", "search_memory", "vector_db_retrieve", "rerank"), "retrieval"),
    **dict.fromkeys(
        ("execute_tool", "create_memory", "update_memory", "upsert_memory", "delete_memory"), "tool"
    ),
    **dict.fromkeys(("execute_task", "chain", "task"), "wrapper"),
    "embeddings": "embedding",
    "evaluation": "evaluator",
}
OPENINFERENCE_KINDS: Final[dict[str, Unit]] = {
    "LLM": "llm",
    "AGENT": "planner",
    "TOOL": "tool",
    "RETRIEVER": "retrieval",
    "RERANKER": "retrieval",
    "EMBEDDING": "embedding",
    "EVALUATOR": "evaluator",
    "GUARDRAIL": "guardrail",
    "CHAIN": "wrapper",
    "PROMPT": "wrapper",
}
LANGFUSE_TYPES: Final[dict[str, Unit]] = {
    "generation": "llm",
    "agent": "planner",
    "tool": "tool",
    "retriever": "retrieval",
    "embedding": "embedding",
    "evaluator": "evaluator",
    "guardrail": "guardrail",
    "chain": "wrapper",
    "span": "wrapper",
    "event": "plain",
}
LANGSMITH_KINDS: Final[dict[str, Unit]] = {
    "llm": "llm",
    "tool": "tool",
    "retriever": "retrieval",
    "embedding": "embedding",
    "chain": "wrapper",
    "prompt": "wrapper",
    "parser": "wrapper",
}
MLFLOW_TYPES: Final[dict[str, Unit]] = {
    **dict.fromkeys(("LLM", "CHAT_MODEL"), "llm"),
    **dict.fromkeys(("RETRIEVER", "RERANKER", "MEMORY"), "retrieval"),
    **dict.fromkeys(("CHAIN", "WORKFLOW", "TASK", "PARSER"), "wrapper"),
    "AGENT": "planner",
    "TOOL": "tool",
    "EMBEDDING": "embedding",
    "EVALUATOR": "evaluator",
    "GUARDRAIL": "guardrail",
}
VERCEL_OPERATIONS: Final[dict[str, Unit]] = {
    **dict.fromkeys(
        tuple(
            f"ai.{verb}{inner}"
            for verb, inner in (
                ("generateText", ".doGenerate"),
                ("streamText", ".doStream"),
                ("generateObject", ".doGenerate"),
                ("streamObject", ".doStream"),
            )
        ),
        "llm",
    ),
    **dict.fromkeys(
        ("ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject"), "wrapper"
    ),
    "ai.toolCall": "tool",
    **dict.fromkeys(("ai.embed", "ai.embedMany"), "wrapper"),
    **dict.fromkeys(("ai.embed.doEmbed", "ai.embedMany.doEmbed"), "embedding"),
}
TRACELOOP_KINDS: Final[dict[str, Unit]] = {
    "agent": "planner",
    "tool": "tool",
    "workflow": "wrapper",
}
LLM_REQUEST_TYPES: Final[dict[str, Unit]] = {
    "chat": "llm",
    "completion": "llm",
    "embedding": "embedding",
    "rerank": "retrieval",
}

ROWS: Final[tuple[Row, ...]] = (
    # What the span is.
    Row("agent_monitor.role", "role", OWN),
    Row("openinference.span.kind", "unit", OPENINFERENCE, OPENINFERENCE_KINDS),
    Row("langfuse.observation.type", "unit", LANGFUSE, LANGFUSE_TYPES),
    Row("langsmith.span.kind", "unit", LANGSMITH, LANGSMITH_KINDS),
    Row("mlflow.spanType", "unit", MLFLOW, MLFLOW_TYPES),
    Row("ai.operationId", "unit", VERCEL, VERCEL_OPERATIONS),
    Row("traceloop.span.kind", "unit", TRACELOOP, TRACELOOP_KINDS),
    Row("gen_ai.operation.name", "unit", SEMCONV, OPERATIONS),
    Row("llm.request.type", "unit", TRACELOOP, LLM_REQUEST_TYPES),
    Row("db.vector.query.top_k", "unit", TRACELOOP, {"*": "retrieval"}),
    # Task, workflow: only where nothing more telling is there.
    Row("traceloop.span.kind", "unit", TRACELOOP, {"task": "wrapper"}),
    Row("gen_ai.system", "genai", SEMCONV_OLD),
    Row("gen_ai.provider.name", "genai", SEMCONV),
    Row("llm.system", "genai", OPENINFERENCE),
    # Model version.
    Row("agent_monitor.model_version", "model", OWN),
    Row("gen_ai.response.model", "model", SEMCONV),
    Row("ai.response.model", "model", VERCEL),
    Row("llm.response.model", "model", SEMCONV_OLD),
    Row("llm.model_name", "model", OPENINFERENCE),
    Row("langfuse.observation.model.name", "model", LANGFUSE),
    Row("mlflow.llm.model", "model", MLFLOW),
    Row("model_name", "model", PYDANTIC),
    Row("gen_ai.request.model", "model_alias", SEMCONV),
    Row("llm.request.model", "model_alias", SEMCONV_OLD),
    Row("ai.model.id", "model_alias", VERCEL),
    # Agent and session.
    Row("gen_ai.agent.name", "agent", SEMCONV),
    Row("agent.name", "agent", OPENINFERENCE),
    Row("agent_name", "agent", PYDANTIC),
    Row("traceloop.association.properties.lc_agent_name", "agent", TRACELOOP),
    Row("langsmith.metadata.lc_agent_name", "agent", LANGSMITH),
    Row("ai.telemetry.functionId", "agent", VERCEL),
    Row("graph.node.id", "agent", OPENINFERENCE),
    Row("gen_ai.conversation.id", "session", SEMCONV),
    Row("session.id", "session", OPENINFERENCE),
    Row("langfuse.session.id", "session", LANGFUSE),
    Row("traceloop.association.properties.session_id", "session", TRACELOOP),
    Row("langsmith.metadata.session_id", "session", LANGSMITH),
    Row("ai.telemetry.metadata.sessionId", "session", VERCEL),
    Row("mlflow.trace.session", "session", MLFLOW),
    # Tools.
    Row("agent_monitor.tags", "tags", OWN),
    Row("gen_ai.tool.name", "tool_name", SEMCONV),
    Row("tool.name", "tool_name", OPENINFERENCE),
    Row("ai.toolCall.name", "tool_name", VERCEL),
    Row("gen_ai.tool.type", "tool_type", SEMCONV),
    Row("gen_ai.tool.call.id", "tool_call_id", SEMCONV),
    Row("tool_call.id", "tool_call_id", OPENINFERENCE),
    Row("ai.toolCall.id", "tool_call_id", VERCEL),
    Row("gen_ai.tool.call.arguments", "arguments", SEMCONV),
    Row("ai.toolCall.args", "arguments", VERCEL),
    Row("gcp.vertex.agent.tool_call_args", "arguments", ADK),
    Row("tool_arguments", "arguments", PYDANTIC),
    Row("tool.arguments", "arguments", LOOSE),
    Row("gen_ai.tool.call.result", "result", SEMCONV),
    Row("ai.toolCall.result", "result", VERCEL),
    Row("gcp.vertex.agent.tool_response", "result", ADK),
    Row("tool_response", "result", PYDANTIC),
    Row("gen_ai.retrieval.documents", "result", SEMCONV),
    Row("retrieval.documents.#.document.content", "result_part", OPENINFERENCE),
    # What a span was given and gave; OpenInference's tool.parameters is the schema and is not read.
    Row("gen_ai.input.messages", "input", SEMCONV),
    Row("gen_ai.retrieval.query.text", "input", SEMCONV),
    Row("input.value", "input", OPENINFERENCE),
    Row("langfuse.observation.input", "input", LANGFUSE),
    Row("mlflow.spanInputs", "input", MLFLOW),
    Row("ai.prompt.messages", "input", VERCEL),
    Row("ai.prompt", "input", VERCEL),
    Row("traceloop.entity.input", "input", TRACELOOP),
    Row("gen_ai.task.input", "input", TRACELOOP),
    Row("pydantic_ai.all_messages", "input", PYDANTIC),
    Row("gcp.vertex.agent.llm_request", "input", ADK),
    Row("gen_ai.prompt", "input", LANGSMITH),
    Row("gen_ai.output.messages", "output", SEMCONV),
    Row("output.value", "output", OPENINFERENCE),
    Row("langfuse.observation.output", "output", LANGFUSE),
    Row("mlflow.spanOutputs", "output", MLFLOW),
    Row("traceloop.entity.output", "output", TRACELOOP),
    Row("gen_ai.task.output", "output", TRACELOOP),
    Row("gen_ai.completion", "output", LANGSMITH),
    Row("llm.input_messages.#.message.role", "input_part", OPENINFERENCE),
    Row("llm.input_messages.#.message.content", "input_part", OPENINFERENCE),
    Row("gen_ai.prompt.#.role", "input_part", TRACELOOP),
    Row("gen_ai.prompt.#.content", "input_part", TRACELOOP),
    # Signs that a model call asked for a tool.
    Row(
        "llm.output_messages.#.message.tool_calls.#.tool_call.function.name",
        "tool_request",
        OPENINFERENCE,
    ),
    Row("gen_ai.completion.#.tool_calls.#.name", "tool_request", TRACELOOP),
    Row("ai.response.toolCalls", "tool_request", VERCEL),
    Row("gen_ai.response.finish_reasons", "finish", SEMCONV),
    Row("llm.finish_reason", "finish", OPENINFERENCE),
    Row("gen_ai.completion.#.finish_reason", "finish", TRACELOOP),
    Row("ai.response.finishReason", "finish", VERCEL),
    # Scores: which scorer's 1 means danger is the scorer table's to say.
    Row("agent_monitor.score.*", "score", OWN),
    Row("gen_ai.evaluation.name", "evaluation_name", SEMCONV),
    Row("gen_ai.evaluation.score.value", "evaluation_value", SEMCONV),
    Row("gen_ai.evaluation.score.label", "evaluation_label", SEMCONV),
    Row("eval.*.score", "score", LOOSE),
    Row("safety.score", "score", LOOSE),
    Row("safety_score", "score", LOOSE),
    Row("toxicity_score", "score", LOOSE),
    Row("agent_monitor.target.trace_id", "target_trace", OWN),
    Row("agent_monitor.target.span_id", "target_span", OWN),
    Row("agent_monitor.target.role", "target_role", OWN),
    Row("gen_ai.evaluation.target.trace_id", "target_trace", LOOSE),
    Row("gen_ai.evaluation.target.span_id", "target_span", LOOSE),
    Row("evaluated.trace_id", "target_trace", LOOSE),
    Row("evaluated.span_id", "target_span", LOOSE),
)

EVALUATION_EVENT: Final = "gen_ai.evaluation.result"  # a span event, or a log record's event name
SERVICE_NAME: Final = "service.name"
TOOL_SPAN_NAME_PREFIXES: Final = ("execute_tool ", "running tool: ", "tool ")
DATASTORE: Final = "datastore"  # gen_ai.tool.type of a tool that only looks things up
