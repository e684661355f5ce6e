"""The body of `/v1/responses`: OpenAI's fields, `seed` and `top_k` beside them.

It keeps nothing: a conversation is sent whole each time, the items of answers among it as they are.
"""

import secrets
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from inference_api.bodies.fields import (
    ANY_SIZE,
    MAX_INTEGER,
    AskedSpeculation,
    Body,
    Unserved,
    fault,
)
from inference_api.bodies.tools import (
    MAX_TOOLS,
    Description,
    FunctionName,
    check_choice,
    check_schema,
    check_tools,
    tool_of,
)
from inference_api.generation.chat import ChatRequest, Conversation
from inference_api.openai.formats import schema_constraint
from inference_api.openai.response_input import Input, turns_of
from inference_api.openai.tools import form_of_choice
from inference_api.openai.unserved_fields import IGNORED
from inference_api.request import ConstraintSpec, GenerationParams, SamplingParams
from inference_api.text.chat_prompts import Extras
from inference_api.tools.events import NO_TOOLS, Mode, ToolUse

MAX_METADATA = 16  # OpenAI's bounds
MAX_METADATA_CHARS = 512

UNSERVED: Unserved = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    # Thoughts come in the clear, and go back as they are.
    "include": ([], ["reasoning.encrypted_content"]),
    "stream_options": ({}, {"include_obfuscation": False}),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}


class FlatTool(Body):
    unserved: ClassVar[Unserved] = {
        "allowed_callers": (["direct"],),
        "async": (False,),
        "defer_loading": (False,),
        "output_schema": (),
    }

    type: Literal["function"]
    name: FunctionName
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_in_bounds(self) -> "FlatTool":
        check_schema("parameters", self.parameters)
        return self


class NamedTool(Body):
    type: Literal["function"]
    name: str


class AllowedTools(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[NamedTool, Tag("<named>")]
    | Annotated[AllowedTools, Tag("<allowed>")],
    Discriminator(
        form_of_choice,
        custom_error_type="tool_choice",
        custom_error_message="give none, auto, required, or an object that names a function",
    ),
]


class TextFormat(Body):
    """`json_schema` needs a schema; `json_object` is any object."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> "TextFormat":
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise fault("schema", "comes with type json_schema; give both or neither")
        return self


class TextOptions(Body):
    unserved: ClassVar[Unserved] = {"verbosity": ("medium",)}

    format: TextFormat | None = None

    def constraint(self) -> ConstraintSpec | None:
        if self.format is None or self.format.type == "text":
            return None
        return schema_constraint("text", self.format.schema_ or {"type": "object"})


class Reasoning(Body):
    """Thoughts come whole, so that there is no need for a summary."""

    unserved: ClassVar[Unserved] = {
        "context": ("auto",),
        "generate_summary": ("auto",),
        "mode": ("standard",),
        "summary": ("auto",),
    }

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


MetadataText = Annotated[str, Field(max_length=MAX_METADATA_CHARS)]


class ResponsesBody(Body):
    ignored: ClassVar[frozenset[str]] = (IGNORED - {"metadata"}) | {
        "max_tool_calls",  # of tools that the server itself would call
        "prompt_cache_options",
    }
    unserved: ClassVar[Unserved] = UNSERVED

    model: str
    input: Input
    instructions: str | None = None
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_INTEGER)
    temperature: Annotated[float, Field(ge=0, le=2), ANY_SIZE] | None = None
    top_p: Annotated[float, Field(gt=0, le=1), ANY_SIZE] | None = None
    top_k: int | None = Field(None, ge=-1, le=MAX_INTEGER)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    speculation: AskedSpeculation = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    metadata: Annotated[dict[str, MetadataText], Field(max_length=MAX_METADATA)] | None = None
    stream: bool | None = None

    @model_validator(mode="after")
    def _tools_are_few_and_told_apart(self) -> "ResponsesBody":
        tools = self.tools or ()
        check_tools([tool.name for tool in tools], [tool.parameters for tool in tools])
        return self

    @model_validator(mode="after")
    def _choice_is_of_the_tools(self) -> "ResponsesBody":
        if self.tool_choice not in (None, "none", "auto"):
            check_choice([tool.name for tool in self.tools or ()], self._chosen_names)
        return self

    @property
    def _chosen_names(self) -> list[str]:
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return [choice.name]
        of = choice.tools if isinstance(choice, AllowedTools) else self.tools or ()
        return [tool.name for tool in of]

    @property
    def effort(self) -> str | None:
        """How much to think, where the template is to read it."""
        effort = None if self.reasoning is None else self.reasoning.effort
        return None if effort == "none" else effort

    def tool_use(self) -> ToolUse:
        choice = self.tool_choice or "auto"
        if not self.tools or choice == "none":
            return NO_TOOLS
        mode: Mode = "required"
        if isinstance(choice, AllowedTools):
            mode = choice.mode
        elif isinstance(choice, str):
            mode = choice
        return ToolUse(
            tools=tuple(
                tool_of(tool.name, tool.description, tool.parameters, tool.strict)
                for tool in self.tools
            ),
            mode=mode,
            callable_names=frozenset(self._chosen_names),
            is_named=isinstance(choice, NamedTool),
            allows_several=self.parallel_tool_calls is not False,
            field="tool_choice" if mode == "required" else "tools",
        )

    def chat(self) -> ChatRequest:
        use = self.tool_use()
        turns = turns_of(self.input)
        if self.instructions:
            turns.insert(0, {"role": "system", "content": self.instructions})
        options = {} if self.effort is None else {"reasoning_effort": self.effort}
        return ChatRequest(
            model=self.model,
            conversation=Conversation(turns, Extras([t.as_json() for t in use.tools], options)),
            use=use,
            params=self._params(),
            prompt_field="input",
            limit_field="max_output_tokens",
            effort_field=None if self.effort is None else "reasoning",
        )

    def _params(self) -> GenerationParams:
        return GenerationParams(
            max_tokens=self.max_output_tokens,
            speculation=self.speculation or "auto",
            constraint=None if self.text is None else self.text.constraint(),
            sampling=SamplingParams(
                temperature=1.0 if self.temperature is None else self.temperature,
                top_k=max(0, self.top_k or 0),
                top_p=1.0 if self.top_p is None else self.top_p,
                seed=(secrets.randbits(63) if self.seed is None else self.seed) % 2**64,
            ),
        )
