"""The answers of the `/v1` routes as typed dictionaries: OpenAI's fields, and ours."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from common.wire import WireDict
from inference_api.request import FinishReason


class PromptTokensDetails(WireDict):
    cached_tokens: int


Switch = TypedDict(  # in this form, because `from` is a keyword
    "Switch",
    {"wait_s": float, "evict_s": float, "load_s": float, "initiator": bool, "from": str | None},
)


class Routed(WireDict):
    """The member that answers a request to `auto`, and the method that chose it. The method is
    `fallback` if no member was likely."""

    expert: str
    confidence: float
    method: Literal["tfidf", "fallback"]


class Usage(WireDict):
    """Token counts. The server's own times, in seconds, are given for a single choice only."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    time_to_first_token: NotRequired[float]
    queue_time: NotRequired[float]
    total_latency: NotRequired[float]
    completion_tokens_after_first_per_sec: NotRequired[float | None]
    completion_tokens_after_first_per_sec_first_ten: NotRequired[float | None]
    total_tokens_per_sec: NotRequired[float | None]
    batch_size_used: NotRequired[int]
    acceptance_rate: NotRequired[float | None]
    tokens_per_step: NotRequired[float]
    acceptance_by_depth: NotRequired[list[float]]
    switching_time: NotRequired[float]
    switch: NotRequired[Switch]
    router: NotRequired[Routed]


class CompletionLogprobs(WireDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class ScoredText(WireDict):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(ScoredText):
    top_logprobs: list[ScoredText]


class ChatLogprobs(WireDict):
    content: list[ChatLogprob]
    refusal: None


class PromptLogprob(WireDict):
    """`rank` counts from 1, the likeliest token."""

    logprob: float
    rank: int
    decoded_token: str


# For each token of a prompt, its own log probability and those of the likeliest tokens, by token
# id; null for the first token, which follows nothing.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionChoice(WireDict):
    index: int
    finish_reason: FinishReason
    text: str
    logprobs: CompletionLogprobs | None
    prompt_logprobs: NotRequired[PromptLogprobs]


class CalledFunction(WireDict):
    name: str
    arguments: str


class ToolCall(WireDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(WireDict):
    """`content` is null if the answer consists of calls only."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(WireDict):
    index: int
    finish_reason: FinishReason | Literal["tool_calls"]
    message: AssistantMessage
    logprobs: ChatLogprobs | None


class Completion(WireDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ChatCompletion(WireDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: NotRequired[PromptLogprobs]


class Tokens(WireDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokenizerInfo(WireDict):
    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None
    model_max_length: int


class Detokenized(WireDict):
    prompt: str
