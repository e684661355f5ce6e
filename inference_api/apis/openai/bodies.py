"""The bodies of the `/v1` routes as pydantic models: OpenAI's fields, and vLLM's extra ones."""

import re
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from inference_api.apis.chat import Chat
from inference_api.apis.openai import field_kinds
from inference_api.apis.openai.formats import Constrained
from inference_api.apis.openai.messages import Messages
from inference_api.apis.openai.tools import ConversationFields, check_open
from inference_api.errors import InvalidRequest
from inference_api.request import GenerationParams
from inference_api.web.entries import FILLED, ByForm, StopString, text_or
from inference_api.web.fields import (
    ANY_SIZE,
    MAX_INTEGER,
    OR_ALL,
    Body,
    MaxTokens,
    Unserved,
    fault,
)
from inference_api.web.json_object import shortened
from inference_api.web.sampling import SampledBody
from inference_api.web.thinking import Effort, Thinking, effort_options, thinking_options

MAX_CHOICES = 32
MAX_GENERATIONS = 256  # prompts times choices of one call
MAX_STOP_STRINGS = 8
MAX_STOP_TOKEN_IDS = 64
MAX_BIASES = 1024  # tokens of `logit_bias`, each of which takes time in every step
MAX_LOGPROBS = 20
MAX_SCORES = 1024  # log probabilities for each token of prompts and answers
MAX_PRIORITY = 1000
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions

TOKEN_ID = re.compile("[0-9]{1,10}")

Biases = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100), ANY_SIZE]], Field(max_length=MAX_BIASES)
]
TokenId = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Text = Annotated[str, Field(min_length=1)]


def _form_of_prompt(prompt: Any) -> str | None:
    """Returns the kind of the first element, so that a refusal names the first that differs."""
    if isinstance(prompt, str):
        return "text"
    if not isinstance(prompt, list) or not prompt:
        return None
    forms = {str: "texts", int: "ids", list: "lists of ids"}
    return forms.get(type(prompt[0]))


BY_FORM_OF_PROMPT = ByForm(
    ("text", "ids", "texts", "lists of ids"),
    _form_of_prompt,
    "prompt",
    "give a text, token ids, or a list of one or more of either",
)
SEVERAL_PROMPTS = Field(max_length=MAX_GENERATIONS, fail_fast=True)
Prompt = Annotated[
    Text | Ids | Annotated[list[Text], SEVERAL_PROMPTS] | Annotated[list[Ids], SEVERAL_PROMPTS],
    BY_FORM_OF_PROMPT,
]
Stop = Annotated[
    StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)],
    text_or(f"a list of {MAX_STOP_STRINGS} texts at most", "stop"),
]


def prompts_of(prompt: Prompt) -> list[str | list[int]]:
    """Returns the prompts, each a text or token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(item, int) for item in prompt):
        return [[item for item in prompt if isinstance(item, int)]]
    return [item for item in prompt if not isinstance(item, int)]


class RequestBody(Body):
    advisory: ClassVar[frozenset[str]] = field_kinds.ADVISORY
    unserved: ClassVar[Unserved] = field_kinds.UNSERVED


class StreamOptions(Body):
    advisory: ClassVar[frozenset[str]] = frozenset({"include_obfuscation"})

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationBody(Constrained, SampledBody, RequestBody):
    """Fields that completions and chat share."""

    model: str | None = None
    max_tokens: MaxTokens | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2), ANY_SIZE] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2), ANY_SIZE] | None = None
    logit_bias: Biases | None = None
    stop: Annotated[Stop | None, FILLED] = None
    stop_token_ids: (
        Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None
    ) = None
    include_stop_str_in_output: bool | None = None
    min_tokens: int | None = Field(None, ge=0, le=MAX_INTEGER)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    ignore_eos: bool | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    priority: int | None = Field(None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def num_logprobs(self) -> int | None:
        """Number of likeliest tokens to report with each token; None: no log probabilities."""
        return None

    @property
    def wants_echo(self) -> bool:
        """True if the answer begins with the prompt."""
        return False

    @property
    def num_choices(self) -> int:
        """Number of answers to each prompt."""
        return self.n or 1

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """The field that limits the tokens to generate, and its value; None: only the context."""
        return "max_tokens", self.max_tokens

    def _num_prompt_logprobs(self, choice: int) -> int | None:
        """Returns how many log probabilities a choice needs for each token of the prompt. All
        choices echo them; without an echo only the first choice reports them."""
        of_echo = self.num_logprobs if self.wants_echo else None
        counts = (of_echo, self.prompt_logprobs if choice == 0 else None)
        return max((each for each in counts if each is not None), default=None)

    def params(self) -> list[GenerationParams]:
        """Returns the parameters of each choice, which draws from a seed of its own. Raises
        InvalidRequest."""
        return [self._params(choice) for choice in range(self.num_choices)]

    def _params(self, choice: int) -> GenerationParams:
        sampling = replace(
            self.sampling(choice),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=self._biases(),
            num_logprobs=self.num_logprobs,
        )
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return GenerationParams(
            max_tokens=self.token_limit[1],
            stop_strings=stop,
            ignore_eos=bool(self.ignore_eos),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            min_tokens=self.min_tokens or 0,
            includes_stop=bool(self.include_stop_str_in_output),
            num_prompt_logprobs=self._num_prompt_logprobs(choice),
            priority=self.priority or 0,
            cache_salt=self.cache_salt or "",
            speculation=self.speculation or "auto",
            constraint=self.constraint(),
            sampling=sampling,
            unset=self.unset,
        )

    def check(self) -> None:
        for field in ("ignore_eos", "min_tokens"):
            if getattr(self, field) and self.constraint() is not None:
                raise fault(field, "a constrained answer has an end; leave it out")
        if self.prompt_logprobs is not None and self.stream:
            raise fault("prompt_logprobs", "come with whole answers; leave out stream")
        field, limit = self.token_limit
        if limit is not None and (self.min_tokens or 0) > limit:
            raise fault("min_tokens", f"is {self.min_tokens}, above {field}, {limit}; lower it")

    def _biases(self) -> tuple[tuple[int, float], ...]:
        for token_id in self.logit_bias or ():
            if not TOKEN_ID.fullmatch(token_id):
                raise InvalidRequest(
                    f"logit_bias: {shortened(token_id)!r} is no token id; give numbers.",
                    "logit_bias",
                )
        return tuple((int(token_id), bias) for token_id, bias in (self.logit_bias or {}).items())


class CompletionBody(GenerationBody):
    unserved: ClassVar[Unserved] = {
        **field_kinds.UNSERVED,
        **field_kinds.UNSERVED_TOOLS,
        "add_special_tokens": (True,),
        "prompt_embeds": (),
    }

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0, le=MAX_INTEGER), OR_ALL] | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def wants_echo(self) -> bool:
        return bool(self.echo)

    @property
    def token_limit(self) -> tuple[str, int | None]:
        field, limit = super().token_limit
        return field, DEFAULT_COMPLETION_TOKENS if limit is None else limit

    def check(self) -> None:
        super().check()
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise fault(
                "max_tokens", "is 0, which needs echo: true or prompt_logprobs; give 1 or more"
            )
        num_prompts, num_choices = len(self.prompts()), self.num_choices
        if num_prompts * num_choices > MAX_GENERATIONS:
            raise fault(
                "n",
                f"is {num_choices} for each of {num_prompts} prompts; give prompts times choices "
                f"of {MAX_GENERATIONS} or fewer",
            )
        for field in ("prompt_logprobs", "logprobs"):
            num_shown = (getattr(self, field) or 0) + 1
            if getattr(self, field) is not None and (
                num_prompts * num_choices * num_shown > MAX_SCORES
            ):
                raise fault(
                    field,
                    f"are {num_shown} with each token's own, for {num_prompts} prompts in "
                    f"{num_choices} choices; give a product of {MAX_SCORES} or less",
                )

    def prompts(self) -> list[str | list[int]]:
        return prompts_of(self.prompt)


class ChatBody(ConversationFields, GenerationBody):
    unserved: ClassVar[Unserved] = {
        **field_kinds.UNSERVED,
        **field_kinds.UNSERVED_OF_CHAT,
        "add_special_tokens": (False,),
        "echo": (False,),
    }

    messages: Messages
    enable_thinking: bool | None = None
    thinking: Thinking | None = None
    reasoning_effort: Effort | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def chat(self) -> Chat:
        return Chat(
            model=self.model,
            turns=[message.as_turn() for message in self.messages],
            use=self.tool_use(),
            params=self.params(),
            options={
                **effort_options("reasoning_effort", self.reasoning_effort),
                **thinking_options("enable_thinking", self.enable_thinking),
                **(self.thinking.options() if self.thinking else {}),
                **{
                    f"chat_template_kwargs.{name}": {name: value}
                    for name, value in (self.chat_template_kwargs or {}).items()
                },
            },
            ending=self.ending,
        )

    @property
    def token_limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is None:
            return super().token_limit
        return "max_completion_tokens", self.max_completion_tokens

    def check(self) -> None:
        super().check()
        if self.continue_final_message:
            check_open(self.messages[-1])
        for field in ("ignore_eos", "min_tokens"):
            if getattr(self, field) and self.tool_use().choice.mode == "required":
                raise fault(field, "calls that are required have an end; leave it out")
        if self.top_logprobs and not self.logprobs:
            raise fault("top_logprobs", "needs logprobs: true; give both or neither")
