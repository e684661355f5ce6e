"""The bodies of `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's fields, and `seed`."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator

from inference_api.apis.anthropic.client_tools import plain_tools
from inference_api.apis.anthropic.contents import (
    CACHED,
    InputMessage,
    Text,
    ToolResultBlock,
    ToolUseBlock,
    text_of,
)
from inference_api.apis.chat import Chat
from inference_api.errors import ThreadUnserved
from inference_api.request import ConstraintSpec, GenerationParams
from inference_api.text.chat_prompts import Ending
from inference_api.tools.events import ChosenTools, Tool
from inference_api.web.constraints import Schema, schema_constraint
from inference_api.web.entries import FILLED, StopString, aside_of, of_list
from inference_api.web.fields import ANY_SIZE, MAX_INTEGER, Body, fault
from inference_api.web.sampling import SampledBody
from inference_api.web.thinking import Effort, Thinking, effort_options
from inference_api.web.tools import (
    MAX_TOOLS,
    Description,
    FunctionName,
    ToolBody,
    check_schema,
    tool_of,
)

MAX_STOP_SEQUENCES = 8


class ToolDefinition(Body):
    """A tool that the client runs. With `defer_loading` it is offered only after a tool search by
    the client has found it."""

    advisory: ClassVar[frozenset[str]] = CACHED | {
        *("allowed_callers", "eager_input_streaming", "input_examples", "max_characters")
    }

    type: Literal["custom"] = "custom"
    name: FunctionName
    description: Description | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    defer_loading: bool | None = None

    def check(self) -> None:
        check_schema("input_schema", self.input_schema)

    def as_tool(self) -> Tool:
        return tool_of(self.name, self.description, self.input_schema, self.strict)


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def check(self) -> None:
        if (self.type == "tool") != (self.name is not None):
            raise fault("name", "comes with type tool; give both or neither")

    def chosen_tools(self) -> ChosenTools:
        allows_several = not self.disable_parallel_tool_use
        if self.type in ("none", "auto"):
            return ChosenTools(self.type, allows_several=allows_several)
        names = () if self.name is None else (self.name,)
        return ChosenTools("required", names, self.type == "tool", allows_several)


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class OutputConfig(Body):
    advisory: ClassVar[frozenset[str]] = frozenset({"task_budget"})

    effort: Effort | None = None
    format: OutputFormat | None = None


def _run_by_clients(tools: list[Any], info: ValidationInfo) -> Iterator[Any]:
    """Yields the tools without those that only Anthropic's servers can run."""
    for tool, type_ in plain_tools(tools):
        if tool is None:
            aside_of(info, ToolDefinition).add(ToolDefinition, type_)
        else:
            yield tool


class CountBody(ToolBody):
    """The fields that make the prompt. `count_tokens` takes only these."""

    advisory: ClassVar[frozenset[str]] = CACHED | {
        *("betas", "billing_policy", "compaction", "container", "context_management"),
        *("diagnostics", "fallback_credit_token", "fallbacks", "inference_geo", "mcp_servers"),
        *("metadata", "service_tier", "speed", "user_profile_id", "workspace_id"),
    }

    model: str | None = None
    messages: Annotated[list[InputMessage], Field(min_length=1, fail_fast=True)]
    system: Text | None = None
    tools: (
        Annotated[
            list[ToolDefinition],
            Field(max_length=MAX_TOOLS, fail_fast=True),
            of_list(_run_by_clients),
        ]
        | None
    ) = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # where it was before it moved into output_config

    @model_validator(mode="before")
    @classmethod
    def _no_thread(cls, body: Any) -> Any:
        """Raises ThreadUnserved: if a thread were ignored, the client would omit its history."""
        if isinstance(body, dict) and body.get("thread") is not None:
            raise ThreadUnserved
        return body

    def check(self) -> None:
        super().check()
        last = self.messages[-1]
        if last.role == "assistant" and not last.ends_with_text:
            raise fault(
                "messages",
                "the last is the assistant's and does not end with a text to go on with; end with "
                "a text or a user's message",
            )

    @property
    def offered(self) -> list[Tool]:
        tools = self.tools or ()
        found = self._found_tools() if any(tool.defer_loading for tool in tools) else set[str]()
        return [t.as_tool() for t in tools if not t.defer_loading or t.name in found]

    def _found_tools(self) -> set[str]:
        """Returns the names of tools that a search has found, or that were or must be called."""
        names = {self.tool_choice.name or ""} if self.tool_choice else set[str]()
        for block in (block for message in self.messages for block in message.blocks):
            if isinstance(block, ToolResultBlock):
                names.update(block.found_tools)
            elif isinstance(block, ToolUseBlock):
                names.add(block.name)
        return names

    @property
    def choice(self) -> ChosenTools:
        return ChosenTools() if self.tool_choice is None else self.tool_choice.chosen_tools()

    def chat(self) -> Chat:
        turns = [turn for message in self.messages for turn in message.turns()]
        if self.system:
            turns.insert(0, {"role": "system", "content": text_of(self.system)})
        effort = None if self.output_config is None else self.output_config.effort
        ending: Ending = "open" if self.messages[-1].role == "assistant" else "answer"
        return Chat(
            model=self.model,
            turns=turns,
            use=self.tool_use(),
            params=[self.params()],
            options={
                **effort_options("output_config.effort", effort),
                **(self.thinking.options() if self.thinking else {}),
            },
            ending=ending,
        )

    def params(self) -> GenerationParams:
        return GenerationParams(constraint=self.constraint())

    def constraint(self) -> ConstraintSpec | None:
        form = (self.output_config and self.output_config.format) or self.output_format
        return None if form is None else schema_constraint("output_config", form.schema_)


class MessagesBody(SampledBody, CountBody):
    max_tokens: int = Field(ge=1, le=MAX_INTEGER)
    stop_sequences: (
        Annotated[list[StopString], Field(max_length=MAX_STOP_SEQUENCES), FILLED] | None
    ) = None
    temperature: Annotated[float, Field(ge=0, le=1), ANY_SIZE] | None = None
    top_k: int | None = Field(None, ge=0, le=MAX_INTEGER)
    stream: bool | None = None

    def params(self) -> GenerationParams:
        return GenerationParams(
            max_tokens=self.max_tokens,
            stop_strings=tuple(self.stop_sequences or ()),
            cache_salt=self.cache_salt or "",
            speculation=self.speculation or "auto",
            constraint=self.constraint(),
            sampling=self.sampling(),
            unset=self.unset,
        )
