"""Names of spans and attributes on the wire: the reference's own, and those of OpenTelemetry's GenAI conventions."""

from __future__ import annotations

SPAN_ANNOTATION = "agentlightning.annotation"
SPAN_MESSAGE = "agentlightning.message"
SPAN_OBJECT = "agentlightning.object"
SPAN_EXCEPTION = "agentlightning.exception"
SPAN_OPERATION = "agentlightning.operation"
SPAN_REWARD = "agentlightning.reward"

ROLLOUT_ID = "agentlightning.rollout_id"
ATTEMPT_ID = "agentlightning.attempt_id"
SEQUENCE_ID = "agentlightning.span_sequence_id"

REWARD = "agentlightning.reward"
LINK = "agentlightning.link"
TAG = "agentlightning.tag"
MESSAGE_BODY = "agentlightning.message.body"
OBJECT_TYPE = "agentlightning.object.type"
OBJECT_LITERAL = "agentlightning.object.literal"
OBJECT_JSON = "agentlightning.object.json"
OPERATION_NAME = "agentlightning.operation.name"
OPERATION_INPUT = "agentlightning.operation.input"
OPERATION_OUTPUT = "agentlightning.operation.output"

CHOICE_INDEX = "agentlightning.choice.index"
CHOICE_COUNT = "agentlightning.choice.count"
CALL_ID = "agentlightning.call_id"

EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"
EXCEPTION_ESCAPED = "exception.escaped"

RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
REQUEST_MODEL = "gen_ai.request.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
GENAI_OPERATION = "gen_ai.operation.name"
TOOL_NAME = "gen_ai.tool.name"
