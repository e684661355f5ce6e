"""What the `/v1` routes answer, as pydantic models: OpenAI's shapes, and ours beside them.

For the description at `/openapi.json`; tests hold real answers to it.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from inference_api.request import FinishReason


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ModelCard(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Answer):
    object: Literal["list"]
    data: list[ModelCard]


class PromptTokensDetails(Answer):
    cached_tokens: int


class Usage(Answer):
    """The server's own times, in seconds, come with a single choice only."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    time_to_first_token: float = 0.0
    queue_time: float = 0.0
    total_latency: float = 0.0
    completion_tokens_after_first_per_sec: float | None = None
    completion_tokens_after_first_per_sec_first_ten: float | None = None
    total_tokens_per_sec: float | None = None
    batch_size_used: int = 0
    acceptance_rate: None = None
    switching_time: float = 0.0


class CompletionLogprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class ScoredText(Answer):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(ScoredText):
    top_logprobs: list[ScoredText]


class ChatLogprobs(Answer):
    content: list[ChatLogprob]
    refusal: None


class Choice(Answer):
    index: int
    finish_reason: FinishReason


class CompletionChoice(Choice):
    text: str
    logprobs: CompletionLogprobs | None


class AssistantMessage(Answer):
    role: Literal["assistant"]
    content: str


class ChatChoice(Choice):
    message: AssistantMessage
    logprobs: ChatLogprobs | None


class Completion(Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ChatCompletion(Answer):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Tokens(Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokenizerInfo(Answer):
    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None
    model_max_length: int


class Detokenized(Answer):
    prompt: str
