"""Why something is refused: the reason codes of dead letters, each with what a person should do."""

from __future__ import annotations

from typing import Final

EMPTY: Final = "empty_value"
TOO_LARGE: Final = "too_large"
NOT_UTF8: Final = "not_utf8"
NOT_JSON: Final = "not_json"
NOT_PROTOBUF: Final = "not_protobuf"
TOO_DEEP: Final = "too_deep"
WRONG_TYPE: Final = "wrong_type"
TOO_MANY_SPANS: Final = "too_many_spans"
TOO_MANY_ATTRIBUTES: Final = "too_many_attributes"
MISSING_ID: Final = "missing_id"
MALFORMED_ID: Final = "malformed_id"
SCORE_NO_SCORER: Final = "score_no_scorer"
SCORE_NOT_FINITE: Final = "score_not_finite"
SCORE_BOOLEAN: Final = "score_boolean"
SCORE_STRING: Final = "score_string"
SCORE_WRONG_TYPE: Final = "score_wrong_type"
SCORE_OUT_OF_RANGE: Final = "score_out_of_range"
SCORE_LABEL_ONLY: Final = "score_label_only"
TOO_MANY_SCORES: Final = "too_many_scores"
NO_SPAN_ID: Final = "no_span_id"

REASONS: Final[dict[str, str]] = {
    EMPTY: "the record has no bytes; look at its producer",
    TOO_LARGE: "over the bound message_bytes; send smaller batches or raise the bound",
    NOT_UTF8: "a string is not UTF-8; of OTLP only the span that holds it is refused",
    NOT_JSON: "no JSON object; is MONITOR_INPUTS right about this topic's encoding?",
    NOT_PROTOBUF: "no OTLP protobuf; is MONITOR_INPUTS right about this topic's encoding?",
    TOO_DEEP: "nested deeper than the bound nesting",
    WRONG_TYPE: "a field has another type than the schema says (`monitor schema span`)",
    TOO_MANY_SPANS: "over the bound spans_per_message; send smaller batches or raise the bound",
    TOO_MANY_ATTRIBUTES: "over the bound attributes",
    MISSING_ID: "trace or span id absent, empty or all zeros: the span cannot be joined",
    MALFORMED_ID: "a trace, span or parent id is not hex of its length: the span cannot be joined",
    SCORE_NO_SCORER: "a score does not say who gave it",
    SCORE_NOT_FINITE: "a score is NaN or infinite; the scorer failed",
    SCORE_BOOLEAN: "a score is a boolean; map it in the scorer table",
    SCORE_STRING: "a score is a string; say `strings = true` in the scorer table if it is a number",
    SCORE_WRONG_TYPE: "a score is no number",
    SCORE_OUT_OF_RANGE: "a score lies outside its range; give the scorer its range in the scorer table",
    SCORE_LABEL_ONLY: "an evaluation has a label and no value; map the label in the scorer table",
    TOO_MANY_SCORES: "over the bound scores",
    NO_SPAN_ID: "an evaluation names no span: neither link nor id attributes",
}
