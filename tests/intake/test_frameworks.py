"""Frameworks that no capture shows: what their spans carry, written by hand from the code that sets it.

Each source is named by repository and file; names and shapes of the attributes are theirs, the values made up.
A trace is a list of spans: (name, attributes, what it must be: a role, or what a span that is no member is).
"""

from __future__ import annotations

from typing import Any

import pytest

from monitor.intake import Batch
from monitor.intake.found import Found
from monitor.intake.meaning import KIND_NAMES, Interpreter, Meaning
from monitor.model import ALIAS_MODEL, MEMBER, MODEL_CALL, UNKNOWN

from .common import CONFIG

INTERPRETER = Interpreter(CONFIG)
ASKS = '[{"role":"assistant","parts":[{"type":"tool_call","id":"call_1","name":"send_email","arguments":{}}]}]'
Trace = list[tuple[str, dict[str, Any], str]]


def meaning(name: str, attributes: dict[str, Any], batch: Batch | None = None) -> Meaning:
    hits = ((INTERPRETER.lookup.hit(key), value) for key, value in attributes.items())
    found = Found.of((hit, value) for hit, value in hits if hit is not None)
    return INTERPRETER.derive(found, name, Batch() if batch is None else batch)


def langsmith(kind: str, operation: str, **more: Any) -> dict[str, Any]:
    """langchain-ai/langsmith-sdk: python/langsmith/_internal/otel/_otel_exporter.py."""
    return {
        "langsmith.span.id": "01", "langsmith.trace.id": "02", "langsmith.span.kind": kind,
        "langsmith.trace.session_name": "project", "gen_ai.operation.name": operation,
        "gen_ai.system": "openai", "langsmith.metadata.session_id": "s-1", **more,
    }  # fmt: skip


def mlflow(kind: str, **more: Any) -> dict[str, Any]:
    """mlflow/mlflow: mlflow/entities/span.py; each value is JSON, so a string has its quotes."""
    return {
        "mlflow.traceRequestId": '"tr-1"',
        "mlflow.spanType": f'"{kind}"',
        **{key.replace("__", "."): value for key, value in more.items()},
    }


def openinference(kind: str, **more: Any) -> dict[str, Any]:
    return {"openinference.span.kind": kind, **more}


def semconv(operation: str, **more: Any) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": operation,
        **{"gen_ai." + key.replace("__", "."): value for key, value in more.items()},
    }


TRACES: dict[str, Trace] = {
    "LangSmith": [
        ("LangGraph", langsmith("chain", "chain"), "wrapper"),
        ("agent", langsmith("chain", "chain"), "wrapper"),
        ("ChatPromptTemplate", langsmith("prompt", "chat"), "wrapper"),
        (
            "ChatOpenAI",
            langsmith(
                "llm", "chat",
                **{
                    "gen_ai.request.model": "gpt-4.1-mini",
                    "gen_ai.completion": '{"generations":[[{"text":"","generation_info":{"finish_reason":"tool_calls"',
                },
            ),
            "planner",
        ),
        ("send_email", langsmith("tool", "execute_tool", **{"gen_ai.tool.name": "send_email"}), "tool_call"),
        ("VectorStoreRetriever", langsmith("retriever", "embeddings"), "retrieval"),
        (
            "ChatOpenAI",
            langsmith("llm", "chat", **{"gen_ai.request.model": "gpt-4.1-mini", "gen_ai.completion": '{"generations":[[{"text":"hi"}]]}'}),
            "completion",
        ),
    ],
    "MLflow": [
        ("AgentExecutor", mlflow("AGENT"), "planner"),
        ("RunnableSequence", mlflow("CHAIN"), "wrapper"),
        (
            "ChatOpenAI_1",
            mlflow(
                "CHAT_MODEL",
                mlflow__llm__model='"gpt-4o-mini"',
                mlflow__spanOutputs='{"choices":[{"message":{"tool_calls":[{"id":"call_1","function":{"name":"pay"}}]}}]}',
            ),
            "planner",
        ),
        ("pay_invoice", mlflow("TOOL", mlflow__spanInputs='{"iban":"DE89370400440532013000"}'), "tool_call"),
        ("lookup_order", mlflow("TOOL"), "retrieval"),
        ("VectorIndex", mlflow("RETRIEVER"), "retrieval"),
        ("format_answer", mlflow("UNKNOWN"), "plain"),
        ("ChatOpenAI_2", mlflow("CHAT_MODEL", mlflow__spanOutputs='{"choices":[{"message":{"tool_calls":null}}]}'), "completion"),
    ],
    # vercel/ai: packages/otel/src/legacy-open-telemetry.ts
    "Vercel AI SDK": [
        ("ai.generateText", {"ai.operationId": "ai.generateText", "ai.model.id": "gpt-4.1", "ai.response.finishReason": "stop"}, "wrapper"),
        (
            "ai.generateText.doGenerate",
            {
                "ai.operationId": "ai.generateText.doGenerate", "gen_ai.system": "openai",
                "gen_ai.request.model": "gpt-4.1", "gen_ai.response.model": "gpt-4.1-2025-04-14",
                "gen_ai.response.finish_reasons": ["tool-calls"],
                "ai.response.toolCalls": '[{"toolCallId":"call_1","toolName":"sendEmail","input":"{}"}]',
            },
            "planner",
        ),
        ("ai.toolCall", {"ai.operationId": "ai.toolCall", "ai.toolCall.name": "sendEmail", "ai.toolCall.id": "call_1", "ai.toolCall.args": '{"to":"a@b.org"}'}, "tool_call"),
        ("ai.streamObject.doStream", {"ai.operationId": "ai.streamObject.doStream", "ai.response.finishReason": "stop", "ai.response.toolCalls": "[]"}, "completion"),
        ("ai.embed", {"ai.operationId": "ai.embed", "ai.model.id": "text-embedding-3-small"}, "plain"),
        ("ai.embed.doEmbed", {"ai.operationId": "ai.embed.doEmbed", "ai.model.id": "text-embedding-3-small"}, "plain"),
        ("ai.rerank.doRerank", {"ai.operationId": "ai.rerank.doRerank"}, "retrieval"),
    ],
    # vercel/ai: packages/otel/src/open-telemetry.ts
    "Vercel AI SDK, OTel GenAI": [
        ("invoke_agent gpt-4.1", semconv("invoke_agent", agent__name="helper", request__model="gpt-4.1"), "planner"),
        ("step 1", semconv("agent_step"), "wrapper"),
        ("chat gpt-4.1", semconv("chat", request__model="gpt-4.1", output__messages=ASKS), "planner"),
        ("execute_tool sendEmail", semconv("execute_tool", tool__name="sendEmail", tool__type="function"), "tool_call"),
    ],
    # traceloop/openllmetry: opentelemetry.instrumentation.crewai
    "CrewAI, OpenLLMetry": [
        ("crewai.workflow", semconv("invoke_agent", provider__name="crewai"), "planner"),
        ("find facts.task", {"traceloop.span.kind": "task", **semconv("invoke_agent", provider__name="crewai")}, "wrapper"),
        ("Researcher.agent", {"traceloop.span.kind": "agent", **semconv("invoke_agent", agent__name="Researcher")}, "planner"),
        ("gpt-4o.llm", semconv("chat", request__model="gpt-4o", output__messages='[{"parts":[{"type":"text"}]}]'), "completion"),
    ],
    # Arize-ai/openinference: openinference-instrumentation-crewai
    "CrewAI, OpenInference": [
        ("Crew.kickoff", openinference("CHAIN"), "wrapper"),
        ("Researcher._execute_core", openinference("AGENT", **{"graph.node.id": "Researcher"}), "planner"),
        ("ToolUsage._use", openinference("TOOL", **{"tool.name": "Send Email", "tool.parameters": "{}"}), "tool_call"),
        ("completion", openinference("LLM", **{"llm.model_name": "gpt-4o", "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "x"}), "planner"),
        ("Router", openinference("CHAIN"), "wrapper"),
    ],
    # microsoft/autogen: autogen-core/src/autogen_core/_telemetry/_genai.py
    "AutoGen": [
        ("create_agent coder", semconv("create_agent", system="autogen", agent__name="coder"), "planner"),
        ("invoke_agent coder", semconv("invoke_agent", system="autogen", agent__name="coder"), "planner"),
        ("execute_tool run_code", semconv("execute_tool", system="autogen", tool__name="run_code"), "tool_call"),
        ("autogen send coder", {"messaging.operation": "publish", "messaging.destination": "coder"}, "plain"),
    ],
    # microsoft/semantic-kernel: python/semantic_kernel/utils/telemetry
    "Semantic Kernel": [
        ("chat.completions gpt-4o", semconv("chat.completions", system="openai", response__finish_reason="FinishReason.TOOL_CALLS"), "planner"),
        ("execute_tool mail-send_email", semconv("execute_tool", tool__name="mail-send_email", tool__call__id="call_1"), "tool_call"),
        ("chat.streaming_completions gpt-4o", semconv("chat.streaming_completions", response__finish_reason="FinishReason.STOP"), "completion"),
        ("AutoFunctionInvocationLoop", {"sk.available_functions": "mail-send_email"}, "plain"),
    ],
    # strands-agents/sdk-python: src/strands/telemetry/tracer.py
    "Strands Agents": [
        ("invoke_agent helper", semconv("invoke_agent", system="strands-agents", agent__name="helper"), "planner"),
        ("execute_event_loop_cycle", {"event_loop.cycle_id": "1"}, "plain"),
        ("execute_event_loop_cycle", semconv("execute_event_loop_cycle"), "wrapper"),
        ("chat", semconv("chat", system="strands-agents", request__model="m"), "completion"),
        ("execute_tool run_shell", semconv("execute_tool", tool__name="run_shell", tool__status="success"), "tool_call"),
    ],
    # Arize-ai/openinference: openinference-instrumentation-llama-index
    "LlamaIndex": [
        ("AgentWorkflow.run", openinference("AGENT"), "planner"),
        ("FunctionTool.acall", openinference("TOOL", **{"tool.name": "transfer_money"}), "tool_call"),
        ("OpenAI.achat", openinference("LLM", **{"llm.model_name": "gpt-4o-mini"}), "completion"),
        ("SentenceSplitter", openinference("CHAIN"), "wrapper"),
        ("OpenAIEmbedding.get_query_embedding", openinference("EMBEDDING", **{"embedding.model_name": "e"}), "plain"),
        ("VectorIndexRetriever.retrieve", openinference("RETRIEVER"), "retrieval"),
        ("SentenceTransformerRerank", openinference("RERANKER"), "retrieval"),
    ],
    # spring-projects/spring-ai: observability reference
    "Spring AI": [
        ("spring_ai chat_client", {**semconv("framework", system="spring_ai"), "spring.ai.kind": "chat_client"}, "wrapper"),
        ("call", {**semconv("framework", system="spring_ai"), "spring.ai.kind": "advisor"}, "wrapper"),
        ("chat gpt-4o", semconv("chat", system="openai", request__model="gpt-4o", response__finish_reasons='["TOOL_CALLS"]'), "planner"),
        ("tool_call sendMail", {**semconv("framework", system="spring_ai"), "spring.ai.kind": "tool_call", "spring.ai.tool.definition.name": "sendMail"}, "tool_call"),
        ("pg_vector query", {"db.system": "pg_vector", "db.operation.name": "query", "spring.ai.kind": "vector_store", "db.vector.query.top_k": 4}, "retrieval"),
    ],
    # firebase/genkit: js/core/src/tracing/instrumentation.ts
    "Genkit": [
        ("chatFlow", {"genkit:type": "action", "genkit:metadata:subtype": "flow"}, "wrapper"),
        ("googleai/gemini-2.5-flash", {"genkit:metadata:subtype": "model", "genkit:output": '{"message":{"content":[{"toolRequest":{"name":"pay"}}]},"finishReason":"stop"}'}, "planner"),
        ("sendEmail", {"genkit:metadata:subtype": "tool", "genkit:name": "sendEmail"}, "tool_call"),
    ],
    # google/adk-python before gen_ai.operation.name: src/google/adk/telemetry.py
    "google-adk, early": [
        ("invocation", {}, "plain"),
        ("agent_run [helper]", {}, "plain"),
        ("call_llm", {"gen_ai.system": "gcp.vertex.agent", "gen_ai.request.model": "gemini-2.0-flash", "gcp.vertex.agent.llm_response": '{"content":{"parts":[{"function_call":{"id":"adk-1","args":{},"name":"pay"}}]}}'}, "planner"),
        ("execute_tool pay", {"gen_ai.system": "gcp.vertex.agent", "gen_ai.tool.name": "pay", "gcp.vertex.agent.tool_call_args": "{}"}, "tool_call"),
    ],
    # pydantic/pydantic-ai before gen_ai.operation.name on all spans: models/instrumented.py, _tool_manager.py
    "pydantic-ai, early": [
        ("agent run", {"agent_name": "helper", "model_name": "gpt-4o"}, "planner"),
        ("chat gpt-4o", semconv("chat", system="openai", request__model="gpt-4o"), "completion"),
        ("running 1 tool", {"tools": ["send_email"]}, "plain"),
        ("running tool: send_email", {"gen_ai.tool.name": "send_email", "gen_ai.tool.call.id": "call_1", "tool_arguments": "{}"}, "tool_call"),
    ],
    # open-telemetry/semantic-conventions-genai: docs/gen-ai/mcp.md; traceloop/openllmetry: semconv_ai
    "MCP": [
        ("tools/call send_email", {"mcp.method.name": "tools/call", **semconv("execute_tool", tool__name="send_email")}, "tool_call"),
        ("tools/call", {"mcp.method.name": "tools/call", "mcp.request.argument": "{}"}, "tool_call"),
        ("resources/read", {"mcp.method.name": "resources/read"}, "retrieval"),
        ("initialize", {"mcp.method.name": "initialize"}, "plain"),
    ],
    # open-telemetry/semantic-conventions-genai: registry.yaml, gen-ai-security.md and its earlier draft
    "OTel GenAI, all operations": [
        ("plan", semconv("plan"), "planner"),
        ("invoke_workflow crew", semconv("invoke_workflow"), "planner"),
        ("search_memory", semconv("search_memory"), "retrieval"),
        ("upsert_memory", semconv("upsert_memory"), "tool_call"),
        ("execute_tool catalogue", semconv("execute_tool", tool__name="catalogue", tool__type="Datastore"), "retrieval"),
        ("text_completion", semconv("text_completion"), "completion"),
        ("run_guardrail Armor", semconv("run_guardrail", guardrail__target__type="input"), "guardrail"),
        ("apply_guardrail PII", semconv("apply_guardrail", security__target__type="llm_output"), "guardrail"),
        ("evaluate", semconv("evaluation"), "evaluator"),
    ],
    # traceloop/openllmetry: opentelemetry.instrumentation.openai (flat prompts, no operation), chromadb, qdrant
    "OpenLLMetry, no operation": [
        ("openai.chat", {"llm.request.type": "chat", "gen_ai.system": "OpenAI", "gen_ai.completion.0.tool_calls.0.name": "pay", "gen_ai.completion.0.finish_reason": "tool_calls"}, "planner"),
        ("openai.embeddings", {"llm.request.type": "embedding", "gen_ai.system": "OpenAI"}, "plain"),
        ("chroma.query", {"db.system": "chroma", "db.operation": "query", "db.chroma.query.n_results": 3}, "retrieval"),
        ("qdrant.search", {"db.system": "qdrant", "qdrant.search.collection_name": "kb"}, "retrieval"),
        ("SELECT orders", {"db.system": "postgresql", "db.operation": "SELECT"}, "plain"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("framework", TRACES)
def test_each_span_is_what_its_framework_means(framework: str) -> None:
    members = unknown = 0
    for name, attributes, expected in TRACES[framework]:
        found = meaning(name, attributes)
        said = found.role if found.kind == MEMBER else KIND_NAMES[found.kind]
        assert said == expected, (name, attributes)
        members += found.kind == MEMBER
        unknown += found.kind == MEMBER and found.role == UNKNOWN
    assert unknown < members / 4


@pytest.mark.parametrize(
    ("attributes", "model", "alias"),
    [
        (semconv("chat", request__model="latest", response__model="m-1"), "m-1", False),
        (semconv("chat", request__model="latest"), "latest", True),
        (openinference("LLM", **{"llm.request.model_name": "latest", "llm.response.model_name": "m-1"}), "m-1", False),
        (openinference("LLM", **{"llm.request.model_name": "latest"}), "latest", True),
        ({"agent_name": "helper", "model_name": "latest"}, "latest", True),
        ({"ai.operationId": "ai.generateText.doGenerate", "ai.model.id": "latest"}, "latest", True),
        (mlflow("LLM", mlflow__llm__model='"m-1"'), "m-1", False),
        ({"langfuse.observation.type": "generation", "langfuse.observation.model.name": "m-1"}, "m-1", False),
        # Whose model it is not.
        (semconv("embeddings", request__model="e", response__model="e-1"), UNKNOWN, False),
        (semconv("retrieval", request__model="e"), UNKNOWN, False),
        (openinference("EMBEDDING", **{"llm.model_name": "e"}), UNKNOWN, False),
        ({"ai.operationId": "ai.embed", "ai.model.id": "e"}, UNKNOWN, False),
        ({"agent_monitor.model_version": "m-2", **semconv("retrieval", request__model="e")}, "m-2", False),
        (semconv("execute_tool", tool__name="pay"), UNKNOWN, False),
    ],
)  # fmt: skip
def test_model_version(attributes: dict[str, Any], model: str, alias: bool) -> None:
    found = meaning("x", attributes)
    assert found.model_version == model
    assert bool(found.detail and found.detail.flags & ALIAS_MODEL) is alias


@pytest.mark.parametrize(
    ("name", "attributes", "tool"),
    [
        ("execute_tool send_email", semconv("execute_tool"), "send_email"),
        ("send_email.tool", {"traceloop.span.kind": "tool", "traceloop.entity.name": "send_email"}, "send_email"),
        ("send_email", mlflow("TOOL"), "send_email"),
        ("send_email", {"langfuse.observation.type": "tool"}, "send_email"),
        ("tool", openinference("TOOL", **{"tool.name": "send_email"}), "send_email"),
        ("x", {"spring.ai.kind": "tool_call", "spring.ai.tool.definition.name": "send_email"}, "send_email"),
        ("x", {"genkit:metadata:subtype": "tool.v2", "genkit:name": "send_email"}, "send_email"),
        ("find_facts.task", {"traceloop.span.kind": "task", "traceloop.entity.name": "find_facts"}, None),
    ],
)  # fmt: skip
def test_tool_name(name: str, attributes: dict[str, Any], tool: str | None) -> None:
    found = meaning(name, attributes)
    assert (found.detail.tool_name if found.detail else None) == tool


@pytest.mark.parametrize(
    ("name", "attributes", "agent"),
    [
        ("invoke_agent helper", semconv("invoke_agent"), "helper"),
        ("helper", openinference("AGENT"), "helper"),
        ("faq-run", {"langfuse.observation.type": "agent"}, "faq-run"),
        ("x.agent", {"traceloop.span.kind": "agent", "traceloop.entity.name": "helper"}, "helper"),
        ("chat", semconv("chat", agent__name="helper"), "helper"),
        ("chat", semconv("chat"), None),
        ("ai.toolCall", {"ai.operationId": "ai.toolCall", "ai.telemetry.functionId": "helper"}, "helper"),
    ],
)  # fmt: skip
def test_agent(name: str, attributes: dict[str, Any], agent: str | None) -> None:
    found = meaning(name, attributes)
    assert (found.detail.agent if found.detail else None) == agent


@pytest.mark.parametrize(
    "key",
    [
        "gen_ai.conversation.id", "session.id", "langfuse.session.id", "ai.telemetry.metadata.sessionId",
        "traceloop.association.properties.session_id", "langsmith.metadata.session_id", "gcp.vertex.agent.session_id",
    ],
)  # fmt: skip
def test_session(key: str) -> None:
    found = meaning("chat", {key: "s-1", "langsmith.trace.session_name": "project"})
    assert found.detail is not None
    assert found.detail.session_id == "s-1"


@pytest.mark.parametrize(
    "attributes",
    [
        semconv("chat", output__messages=ASKS),
        openinference("LLM", **{"llm.output_messages.0.message.tool_calls.0.tool_call.id": "call_1", "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "pay"}),
        {"llm.request.type": "chat", "gen_ai.completion.0.tool_calls.0.id": "call_1", "gen_ai.completion.0.tool_calls.0.name": "pay"},
        {"ai.operationId": "ai.generateText.doGenerate", "ai.response.toolCalls": '[{"toolCallId":"call_1","toolName":"pay"}]'},
        mlflow("LLM", mlflow__spanOutputs='{"choices":[{"message":{"tool_calls":[{"id":"call_1","type":"function"'),
        openinference("LLM", **{"output.value": '{"output":[{"type":"function_call","call_id":"call_1","id":"fc_1"}]}'}),
    ],
)  # fmt: skip
def test_ids_of_requested_calls(attributes: dict[str, Any]) -> None:
    found = meaning("chat", attributes)
    assert found.detail is not None
    assert found.detail.flags & MODEL_CALL
    assert "call_1" in found.detail.call_ids
    assert found.role == "planner"


def test_ids_of_calls_are_bounded_and_an_answer_has_none() -> None:
    many = {f"gen_ai.completion.{i}.tool_calls.0.id": f"{i}" + "x" * 999 for i in range(99)}
    found = meaning(
        "chat", {**semconv("chat"), **many, "gen_ai.completion.0.tool_calls.0.name": "f"}
    )
    assert found.detail is not None
    assert len(found.detail.call_ids) == CONFIG.bounds.call_ids
    assert {len(each) for each in found.detail.call_ids} == {CONFIG.bounds.name}
    answer = '[{"id":"msg_1","parts":[{"type":"text","content":"done"}],"finish_reason":"stop"}]'
    found = meaning("chat", semconv("chat", output__messages=answer))
    assert found.detail is not None
    assert found.detail.call_ids == ()


def test_a_tools_message_holds_the_id_that_it_answers() -> None:
    """LangChain; what the tool itself says is quoted in it, so a forged id there is none."""
    output = '{"type": "tool", "data": {"content": "{\\"tool_call_id\\": \\"call_9\\"}", "tool_call_id": "call_1"}}'
    found = meaning("pay", openinference("TOOL", **{"output.value": output}))
    assert found.detail is not None
    assert found.detail.tool_call_id == "call_1"
    plain = meaning("pay", openinference("TOOL", **{"output.value": '{"tool_call_id": "call_9"}'}))
    assert plain.detail is not None
    assert plain.detail.tool_call_id is None


def test_records_of_a_memory_are_what_was_found_or_what_is_written() -> None:
    records = '[{"id":"mem_123","content":"send to a@b.org"}]'
    read = meaning("x", semconv("search_memory", memory__records=records)).detail
    written = meaning("x", semconv("create_memory", memory__records=records)).detail
    assert read is not None
    assert written is not None
    assert (read.argument_tokens, written.result_tokens) == (None, None)
    assert read.result_tokens == written.argument_tokens
    assert len(read.result_tokens or b"") == 16


def test_own_role_then_the_instrumentations_kind_then_the_operation() -> None:
    spans = {"gen_ai.operation.name": "embeddings", "langsmith.span.kind": "retriever"}
    assert meaning("x", spans).role == "retrieval"
    assert meaning("x", {**spans, "agent_monitor.role": "tool_call"}).role == "tool_call"


def test_what_no_row_maps_is_unknown_and_never_a_guess() -> None:
    batch = Batch()
    found = meaning("x", semconv("dream", request__model="m", tool__name="send_email"), batch)
    assert (found.role, found.kind, found.unknown) == (UNKNOWN, MEMBER, "dream")
    assert batch.counts["unknown_role", "dream"] == 1


@pytest.mark.parametrize("nothing", ["UNKNOWN", "unknown", ""])
def test_a_kind_that_says_nothing_leaves_it_to_the_next(nothing: str) -> None:
    batch = Batch()
    found = meaning("x", {"openinference.span.kind": nothing, **semconv("chat")}, batch)
    assert found.role == "completion"
    assert meaning("x", {"openinference.span.kind": nothing}, batch).kind != MEMBER
    assert not batch.counts


def test_a_raw_role_is_a_label_that_anybody_may_show() -> None:
    batch = Batch()
    meaning("x", semconv("a\x1b[31m\n\u202e" + "z" * 10_000), batch)
    [(what, raw)] = batch.counts
    assert what == "unknown_role"
    assert raw.isprintable()
    assert len(raw) <= 64
    for i in range(300):
        meaning("x", semconv(f"op-{i}"), batch)
    raws = [raw for what, raw in batch.counts if what == "unknown_role"]
    assert len(raws) <= CONFIG.bounds.unknown_roles + 1
    assert batch.counts["unknown_role", "other"] > 0
