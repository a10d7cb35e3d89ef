"""The one table of attribute conventions: which attribute says what, for every instrumentation we know.

A row: attribute, field, the convention that uses it. Rows of one field are in order of precedence; an
operator's rows (`MONITOR_CONVENTIONS`) come before all of them. In an attribute name ``#`` stands for a
number, ``*`` for one or more characters. What no row names is never read. ``SOURCES`` says where each convention
is written down; `docs/reference/conventions.md` is generated from here.

Precedence for what a span *is* (field ``unit``): our own attributes, then the instrumentation's own span
kind (LangSmith labels a retriever `embeddings` in gen_ai), then gen_ai.operation.name. A value that a row's
``units`` does not hold says nothing, and the next row speaks; ``*`` is any value. Only where no row of ``unit``
was there at all does a ``sign`` count: an attribute that only one kind of span carries.
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
    "sign",  # of a unit, where nothing says what the span is
    "own_model",  # the agent's model version, on whatever span
    "model",  # model version that answered
    "model_alias",  # model that was asked for
    "agent",
    "entity",  # name of the tool of a tool span, of the agent of an agent span
    "session",
    "tool_name",
    "tool_type",
    "tool_call_id",
    "call_id",  # id of a tool call that the model asked for, many attributes
    "tags",
    "arguments",  # of a tool
    "result",  # of a tool or retrieval
    "records",  # result of a retrieval, arguments of a tool that writes them
    "input",  # whatever the span was given: arguments of a tool, messages of a model or agent
    "output",
    "input_part",  # flattened input messages, many attributes
    "result_part",  # flattened documents, many attributes
    "tool_request",  # the model asked for a tool if present
    "finish",  # finish reasons
    "score",  # value; the scorer is what * stands for, else the attribute's name
    "score_label",  # label of the same, where it has no value
    "annotation",  # name, score, label of feedback on the span, flattened: many attributes
    "wider_score",  # of a trace or session: never spread over its spans
    "evaluation_name",
    "evaluation_value",
    "evaluation_label",
    "evaluation_version",  # of the scorer
    "risk_name",  # what a guardrail looked for
    "risk_value",
    "judge_score",  # of an evaluator or guardrail span; the scorer is the span's name
    "judged",  # input or output: which unit of the span was judged
    "judged_part",  # of which kind of call that unit is
    "target_trace",  # an evaluation span's target
    "target_span",
    "target_role",
    "genai",  # presence marks a span as GenAI
]
MANY: Final[frozenset[Field]] = frozenset(
    {
        "input_part", "result_part", "tool_request", "call_id",
        "score", "score_label", "annotation", "wider_score",
    }
)  # fmt: skip

UNIT_FIELDS: Final[frozenset[Field]] = frozenset({"unit", "sign"})  # their rows have ``units``

OWN: Final = "own"
SEMCONV: Final = "OTel GenAI"
SEMCONV_OLD: Final = "OTel GenAI (deprecated)"
GUARDRAIL: Final = "OTel GenAI guardrails (draft)"
MCP: Final = "OTel MCP"
OPENINFERENCE: Final = "OpenInference"
TRACELOOP: Final = "OpenLLMetry"
LANGFUSE: Final = "Langfuse"
LANGSMITH: Final = "LangSmith"
MLFLOW: Final = "MLflow"
VERCEL: Final = "Vercel AI SDK"
PYDANTIC: Final = "pydantic-ai"
ADK: Final = "google-adk"
SEMANTIC_KERNEL: Final = "Semantic Kernel"
STRANDS: Final = "Strands Agents"
AZURE: Final = "Azure AI Agents"
SPRING: Final = "Spring AI"
GENKIT: Final = "Genkit"
MASTRA: Final = "Mastra"
LAMINAR: Final = "Laminar"
LOOSE: Final = "seen in use"

# Where a convention is written down: its document, else the code of the instrumentation.
SOURCES: Final[dict[str, str]] = {
    OWN: "this page",
    SEMCONV: "open-telemetry/semantic-conventions-genai: model/gen-ai/registry.yaml, docs/gen-ai/gen-ai-spans.md",
    SEMCONV_OLD: "open-telemetry/semantic-conventions before 1.37: docs/gen-ai",
    GUARDRAIL: "open-telemetry/semantic-conventions-genai: docs/gen-ai/gen-ai-security.md, and its earlier drafts",
    MCP: "open-telemetry/semantic-conventions-genai: docs/gen-ai/mcp.md",
    OPENINFERENCE: "Arize-ai/openinference: spec/semantic_conventions.md, spec/annotations.md, "
    "openinference.semconv.trace",
    TRACELOOP: "traceloop/openllmetry: opentelemetry.semconv_ai, instrumentation of LangChain and CrewAI",
    LANGFUSE: "langfuse/langfuse-python: langfuse/_client/attributes.py; langfuse/langfuse: ObservationTypeMapper.ts",
    LANGSMITH: "langchain-ai/langsmith-sdk: python/langsmith/_internal/otel/_otel_exporter.py",
    MLFLOW: "mlflow/mlflow: mlflow/tracing/constant.py, mlflow/entities/span.py",
    VERCEL: "vercel/ai: packages/otel/src (ai-sdk.dev/docs/ai-sdk-core/telemetry)",
    PYDANTIC: "pydantic/pydantic-ai: models/instrumented.py; pydantic_evals/_otel_emit.py",
    ADK: "google/adk-python: src/google/adk/telemetry/tracing.py",
    SEMANTIC_KERNEL: "microsoft/semantic-kernel: python/semantic_kernel/utils/telemetry",
    STRANDS: "strands-agents/sdk-python: src/strands/telemetry/tracer.py",
    AZURE: "Azure/azure-sdk-for-python: sdk/ai/azure-ai-agents telemetry",
    SPRING: "spring-projects/spring-ai: observability reference",
    GENKIT: "firebase/genkit: telemetry attributes of core tracing",
    MASTRA: "mastra-ai/mastra: observability/otel-exporter",
    LAMINAR: "mlflow/mlflow: mlflow/tracing/otel/translation/laminar.py",
    LOOSE: "real telemetry",
}


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    attribute: str
    field: Field
    source: str = "operator"
    units: dict[str, Unit] = {}


# Values that say that the sender does not know either: another attribute may.
NO_ANSWER: Final = frozenset({"", "unknown", "UNKNOWN"})

# Operations of our own reading are marked with their framework; the others are OTel's.
_CALLS: Final[dict[str, Unit]] = {
    **dict.fromkeys(("chat", "generate_content", "text_completion"), "llm"),
    **dict.fromkeys(("completion", "generate", "response", "responses"), "llm"),  # earlier drafts
    **dict.fromkeys(
        (
            "chat.completions", "chat.streaming_completions",
            "text.completions", "text.streaming_completions",
        ),
        "llm",
    ),  # Semantic Kernel
    **dict.fromkeys(("retrieval", "search_memory"), "retrieval"),
    **dict.fromkeys(("vector_db_retrieve", "rerank"), "retrieval"),  # OpenLLMetry
    **dict.fromkeys(
        (
            "execute_tool", "create_memory", "update_memory", "upsert_memory", "delete_memory",
            "create_memory_store", "delete_memory_store",
        ),
        "tool",
    ),
    "embeddings": "embedding",
    **dict.fromkeys(("run_guardrail", "apply_guardrail"), "guardrail"),
    **dict.fromkeys(("evaluation", "evaluate"), "evaluator"),
}  # fmt: skip
OPERATIONS: Final[dict[str, Unit]] = {
    **_CALLS,
    **dict.fromkeys(("invoke_agent", "create_agent", "invoke_workflow", "plan"), "planner"),
    **dict.fromkeys(("invoke_swarm", "invoke_graph"), "planner"),  # Strands
    **dict.fromkeys(("start_thread_run", "process_thread_run"), "planner"),  # Azure AI Agents
    **dict.fromkeys(
        (
            "create_thread", "create_message", "list_messages", "list_run_steps", "submit_tool_outputs",
            "get_thread_run", "create_conversation",
        ),
        "plain",
    ),  # Azure AI Agents
    **dict.fromkeys(("execute_task", "task"), "wrapper"),  # OpenLLMetry
    "chain": "wrapper",  # LangSmith
    "agent_step": "wrapper",  # Vercel AI SDK
    "execute_event_loop_cycle": "wrapper",  # Strands
    "framework": "wrapper",  # Spring AI
}  # fmt: skip
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
        (
            "ai.generateText.doGenerate", "ai.streamText.doStream",
            "ai.generateObject.doGenerate", "ai.streamObject.doStream",
        ),
        "llm",
    ),
    **dict.fromkeys(
        ("ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject"), "wrapper"
    ),
    "ai.toolCall": "tool",
    **dict.fromkeys(
        ("ai.embed", "ai.embed.doEmbed", "ai.embedMany", "ai.embedMany.doEmbed"), "embedding"
    ),
    "ai.rerank": "wrapper",
    "ai.rerank.doRerank": "retrieval",
}  # fmt: skip
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
SPRING_KINDS: Final[dict[str, Unit]] = {
    **dict.fromkeys(("chat_client", "advisor"), "wrapper"),
    "tool_call": "tool",
    "vector_store": "retrieval",
}
GENKIT_SUBTYPES: Final[dict[str, Unit]] = {
    "model": "llm",
    **dict.fromkeys(("tool", "tool.v2"), "tool"),
    "agent": "planner",
    **dict.fromkeys(("retriever", "reranker"), "retrieval"),
    "embedder": "embedding",
    "evaluator": "evaluator",
    **dict.fromkeys(("flow", "flowStep", "prompt", "executable-prompt", "util"), "wrapper"),
}
MASTRA_TYPES: Final[dict[str, Unit]] = {
    "agent_run": "planner",
    "model_generation": "llm",
    **dict.fromkeys(("tool_call", "mcp_tool_call"), "tool"),
    **dict.fromkeys(("model_step", "model_inference", "model_chunk"), "wrapper"),
    **dict.fromkeys(("workflow_run", "workflow_step", "generic"), "wrapper"),
}
LAMINAR_TYPES: Final[dict[str, Unit]] = {
    **dict.fromkeys(("LLM", "CACHED"), "llm"),
    "TOOL": "tool",
    "EXECUTOR": "planner",
    **dict.fromkeys(("EVALUATOR", "HUMAN_EVALUATOR", "EVALUATION"), "evaluator"),
    **dict.fromkeys(("DEFAULT", "PIPELINE"), "wrapper"),
}
MCP_METHODS: Final[dict[str, Unit]] = {"tools/call": "tool", "resources/read": "retrieval"}

# What a guardrail judged, by the word of either draft: unit of the span, and the role of that unit if known.
JUDGED: Final[dict[str, tuple[str, str]]] = {
    "input": ("input", ""),
    "output": ("output", ""),
    "llm_input": ("input", ""),
    "llm_output": ("output", ""),
    "tool_call": ("input", "tool_call"),
    "tool_output": ("output", "retrieval"),
    "knowledge_query": ("input", "tool_call"),
    "knowledge_result": ("output", "retrieval"),
    "memory_store": ("input", "tool_call"),
    "memory_retrieve": ("output", "retrieval"),
}
# Kinds of call whose arguments and results are units of their own.
JUDGED_CALLS: Final = frozenset({"tool_call", "retrieval", "memory"})

ROWS: Final[tuple[Row, ...]] = (
    # What the span is.
    Row("agent_monitor.role", "role", OWN),
    Row("openinference.span.kind", "unit", OPENINFERENCE, OPENINFERENCE_KINDS),
    Row("langfuse.observation.type", "unit", LANGFUSE, LANGFUSE_TYPES),
    Row("langsmith.span.kind", "unit", LANGSMITH, LANGSMITH_KINDS),
    Row("mlflow.spanType", "unit", MLFLOW, MLFLOW_TYPES),
    Row("ai.operationId", "unit", VERCEL, VERCEL_OPERATIONS),
    Row("lmnr.span.type", "unit", LAMINAR, LAMINAR_TYPES),
    Row("genkit:metadata:subtype", "unit", GENKIT, GENKIT_SUBTYPES),
    Row("mastra.span.type", "unit", MASTRA, MASTRA_TYPES),
    Row("spring.ai.kind", "unit", SPRING, SPRING_KINDS),
    Row("traceloop.span.kind", "unit", TRACELOOP, TRACELOOP_KINDS),
    # OpenLLMetry calls a retrieval a task, and the tasks of a crew agents: an operation that is a call tells more
    # than `task`, and `task` more than the other operations.
    Row("gen_ai.operation.name", "unit", SEMCONV, _CALLS),
    Row("traceloop.span.kind", "unit", TRACELOOP, {"task": "wrapper"}),
    Row("gen_ai.operation.name", "unit", SEMCONV, OPERATIONS),
    Row("llm.request.type", "unit", TRACELOOP, LLM_REQUEST_TYPES),
    Row("db.vector.query.top_k", "unit", TRACELOOP, {"*": "retrieval"}),
    Row("mcp.method.name", "sign", MCP, MCP_METHODS),
    Row("gen_ai.tool.name", "sign", SEMCONV, {"*": "tool"}),
    Row("db.chroma.query.n_results", "sign", TRACELOOP, {"*": "retrieval"}),
    Row("db.milvus.search.limit", "sign", TRACELOOP, {"*": "retrieval"}),
    Row("pinecone.query.top_k", "sign", TRACELOOP, {"*": "retrieval"}),
    Row("qdrant.search.collection_name", "sign", TRACELOOP, {"*": "retrieval"}),
    Row("db.marqo.search.query", "sign", TRACELOOP, {"*": "retrieval"}),
    Row("agent_name", "sign", PYDANTIC, {"*": "planner"}),
    Row("gen_ai.response.model", "sign", SEMCONV, {"*": "llm"}),
    Row("gen_ai.request.model", "sign", SEMCONV, {"*": "llm"}),
    Row("gen_ai.system", "genai", SEMCONV_OLD),
    Row("gen_ai.provider.name", "genai", SEMCONV),
    Row("llm.system", "genai", OPENINFERENCE),
    # Model version.
    Row("agent_monitor.model_version", "own_model", OWN),
    Row("gen_ai.response.model", "model", SEMCONV),
    Row("ai.response.model", "model", VERCEL),
    Row("llm.response.model", "model", SEMCONV_OLD),
    Row("llm.response.model_name", "model", OPENINFERENCE),
    Row("llm.model_name", "model", OPENINFERENCE),
    Row("langfuse.observation.model.name", "model", LANGFUSE),
    Row("mlflow.llm.model", "model", MLFLOW),
    Row("gen_ai.request.model", "model_alias", SEMCONV),
    Row("llm.request.model", "model_alias", SEMCONV_OLD),
    Row("llm.request.model_name", "model_alias", OPENINFERENCE),
    Row("ai.model.id", "model_alias", VERCEL),
    Row("model_name", "model_alias", PYDANTIC),
    # Agent and session.
    Row("gen_ai.agent.name", "agent", SEMCONV),
    Row("agent.name", "agent", OPENINFERENCE),
    Row("agent_name", "agent", PYDANTIC),
    Row("traceloop.association.properties.lc_agent_name", "agent", TRACELOOP),
    Row("langsmith.metadata.lc_agent_name", "agent", LANGSMITH),
    Row("crewai.agent.role", "agent", TRACELOOP),
    Row("ai.telemetry.functionId", "agent", VERCEL),
    Row("graph.node.id", "agent", OPENINFERENCE),
    Row("gen_ai.conversation.id", "session", SEMCONV),
    Row("session.id", "session", OPENINFERENCE),
    Row("langfuse.session.id", "session", LANGFUSE),
    Row("traceloop.association.properties.session_id", "session", TRACELOOP),
    Row("traceloop.association.properties.thread_id", "session", TRACELOOP),
    Row("langsmith.metadata.session_id", "session", LANGSMITH),
    Row("langsmith.metadata.conversation_id", "session", LANGSMITH),
    Row("langsmith.metadata.thread_id", "session", LANGSMITH),
    Row("ai.telemetry.metadata.sessionId", "session", VERCEL),
    Row("gcp.vertex.agent.session_id", "session", ADK),
    Row("mlflow.trace.session", "session", MLFLOW),
    # Tools.
    Row("agent_monitor.tags", "tags", OWN),
    Row("gen_ai.tool.name", "tool_name", SEMCONV),
    Row("tool.name", "tool_name", OPENINFERENCE),
    Row("ai.toolCall.name", "tool_name", VERCEL),
    Row("spring.ai.tool.definition.name", "tool_name", SPRING),
    Row("traceloop.entity.name", "entity", TRACELOOP),
    Row("genkit:name", "entity", GENKIT),
    Row("gen_ai.tool.type", "tool_type", SEMCONV),
    Row("gen_ai.tool.call.id", "tool_call_id", SEMCONV),
    Row("tool_call.id", "tool_call_id", OPENINFERENCE),
    Row("tool.id", "tool_call_id", OPENINFERENCE),
    Row("ai.toolCall.id", "tool_call_id", VERCEL),
    Row("gen_ai.tool.call.arguments", "arguments", SEMCONV),
    Row("ai.toolCall.args", "arguments", VERCEL),
    Row("gcp.vertex.agent.tool_call_args", "arguments", ADK),
    Row("tool_arguments", "arguments", PYDANTIC),
    Row("spring.ai.tool.call.arguments", "arguments", SPRING),
    Row("mcp.request.argument", "arguments", TRACELOOP),
    Row("tool.arguments", "arguments", LOOSE),
    Row("gen_ai.tool.call.result", "result", SEMCONV),
    Row("ai.toolCall.result", "result", VERCEL),
    Row("gcp.vertex.agent.tool_response", "result", ADK),
    Row("tool_response", "result", PYDANTIC),
    Row("spring.ai.tool.call.result", "result", SPRING),
    Row("mcp.response.value", "result", TRACELOOP),
    Row("gen_ai.retrieval.documents", "result", SEMCONV),
    Row("gen_ai.memory.records", "records", SEMCONV),
    Row("retrieval.documents.#.document.content", "result_part", OPENINFERENCE),
    Row("reranker.output_documents.#.document.content", "result_part", OPENINFERENCE),
    # What a span was given and gave; OpenInference's tool.parameters is the schema and is not read.
    Row("gen_ai.input.messages", "input", SEMCONV),
    Row("gen_ai.retrieval.query.text", "input", SEMCONV),
    Row("gen_ai.memory.query.text", "input", SEMCONV),
    Row("input.value", "input", OPENINFERENCE),
    Row("langfuse.observation.input", "input", LANGFUSE),
    Row("mlflow.spanInputs", "input", MLFLOW),
    Row("ai.prompt.messages", "input", VERCEL),
    Row("ai.prompt", "input", VERCEL),
    Row("traceloop.entity.input", "input", TRACELOOP),
    Row("gen_ai.task.input", "input", TRACELOOP),
    Row("pydantic_ai.all_messages", "input", PYDANTIC),
    Row("gcp.vertex.agent.llm_request", "input", ADK),
    Row("genkit:input", "input", GENKIT),
    Row("lmnr.span.input", "input", LAMINAR),
    Row("gen_ai.prompt", "input", LANGSMITH),
    Row("gen_ai.output.messages", "output", SEMCONV),
    Row("output.value", "output", OPENINFERENCE),
    Row("langfuse.observation.output", "output", LANGFUSE),
    Row("mlflow.spanOutputs", "output", MLFLOW),
    Row("traceloop.entity.output", "output", TRACELOOP),
    Row("gen_ai.task.output", "output", TRACELOOP),
    Row("gcp.vertex.agent.llm_response", "output", ADK),
    Row("genkit:output", "output", GENKIT),
    Row("lmnr.span.output", "output", LAMINAR),
    Row("gen_ai.completion", "output", LANGSMITH),
    Row("llm.input_messages.#.message.role", "input_part", OPENINFERENCE),
    Row("llm.input_messages.#.message.content", "input_part", OPENINFERENCE),
    Row(
        "llm.input_messages.#.message.contents.#.message_content.text", "input_part", OPENINFERENCE
    ),
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
    Row("llm.output_messages.#.message.tool_calls.#.tool_call.id", "call_id", OPENINFERENCE),
    Row("gen_ai.completion.#.tool_calls.#.id", "call_id", TRACELOOP),
    Row("gen_ai.response.finish_reasons", "finish", SEMCONV),
    Row("gen_ai.response.finish_reason", "finish", SEMANTIC_KERNEL),
    Row("llm.finish_reason", "finish", OPENINFERENCE),
    Row("llm.response.finish_reason", "finish", TRACELOOP),
    Row("gen_ai.completion.#.finish_reason", "finish", TRACELOOP),
    Row("ai.response.finishReason", "finish", VERCEL),
    # Scores: which scorer's 1 means danger is the scorer table's to say.
    Row("agent_monitor.score.*", "score", OWN),
    Row("agent_monitor.scorer_version", "evaluation_version", OWN),
    Row("agent_monitor.judged", "judged", OWN),
    Row("gen_ai.evaluation.name", "evaluation_name", SEMCONV),
    Row("gen_ai.evaluation.score.value", "evaluation_value", SEMCONV),
    Row("gen_ai.evaluation.score.label", "evaluation_label", SEMCONV),
    Row("gen_ai.evaluation.evaluator.version", "evaluation_version", PYDANTIC),
    Row("gen_ai.guardrail.security.risk.score", "risk_value", GUARDRAIL),
    Row("gen_ai.security.risk.score", "risk_value", GUARDRAIL),
    Row("gen_ai.guardrail.security.risk.category", "risk_name", GUARDRAIL),
    Row("gen_ai.security.risk.category", "risk_name", GUARDRAIL),
    Row("gen_ai.guardrail.component.name", "risk_name", GUARDRAIL),
    Row("gen_ai.guardian.name", "risk_name", GUARDRAIL),
    Row("gen_ai.guardrail.target.type", "judged", GUARDRAIL),
    Row("gen_ai.security.target.type", "judged", GUARDRAIL),
    Row("gen_ai.guardrail.target.subtype", "judged_part", GUARDRAIL),
    Row("gen_ai.security.target.subtype", "judged_part", GUARDRAIL),
    *(
        Row(f"{kind}s.#.{kind}.{part}", "annotation", OPENINFERENCE)
        for kind in ("annotation", "evaluation")
        for part in ("name", "score", "label", "identifier")
    ),
    *(
        Row(f"{scope}.{kind}s.#.{kind}.{part}", "wider_score", OPENINFERENCE)
        for scope in ("trace", "session")
        for kind in ("annotation", "evaluation")
        for part in ("name", "score", "label")
    ),
    Row("trace_eval.*.score", "wider_score", OPENINFERENCE),
    Row("session_eval.*.score", "wider_score", OPENINFERENCE),
    Row("eval.*.score", "score", OPENINFERENCE),
    Row("eval.*.label", "score_label", OPENINFERENCE),
    Row("langfuse.observation.metadata.score", "judge_score", LANGFUSE),
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
# Events whose attributes are scores: the evaluation, and what a guardrail found (both drafts).
SCORE_EVENTS: Final = frozenset(
    {EVALUATION_EVENT, "gen_ai.guardrail.security.finding", "gen_ai.security.finding"}
)
SERVICE_NAME: Final = "service.name"
TOOL_SPAN_NAME_PREFIXES: Final = ("execute_tool ", "running tool: ", "tool ")
AGENT_SPAN_NAME_PREFIXES: Final = ("invoke_agent ", "create_agent ")
DATASTORE: Final = "datastore"  # gen_ai.tool.type of a tool that only looks things up
