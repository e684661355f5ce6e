"""The bodies of `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's fields, and `seed`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from inference_api.anthropic.contents import CACHED, InputMessage, Text, text_of
from inference_api.bodies.constraints import Schema, schema_constraint
from inference_api.bodies.fields import ANY_SIZE, MAX_INTEGER, Body, Unserved, fault
from inference_api.bodies.sampling import SampledBody
from inference_api.bodies.tools import (
    MAX_TOOLS,
    Choice,
    Description,
    FunctionName,
    ToolBody,
    check_schema,
    tool_of,
)
from inference_api.generation.chat import ChatRequest, Conversation
from inference_api.request import ConstraintSpec, GenerationParams
from inference_api.text.chat_prompts import Ending, Extras
from inference_api.tools.events import Tool

MAX_STOP_SEQUENCES = 8


class ToolDefinition(Body):
    """A tool of the client's own; those that Anthropic would run have other types."""

    ignored: ClassVar[frozenset[str]] = CACHED | {"eager_input_streaming"}
    unserved: ClassVar[Unserved] = {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "input_examples": ([],),
    }

    type: Literal["custom"] = "custom"
    name: FunctionName
    description: Description | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_in_bounds(self) -> "ToolDefinition":
        check_schema("input_schema", self.input_schema)
        return self

    def as_tool(self) -> Tool:
        return tool_of(self.name, self.description, self.input_schema, self.strict)


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _name_where_it_belongs(self) -> "ToolChoice":
        if (self.type == "tool") != (self.name is not None):
            raise fault("name", "comes with type tool; give both or neither")
        return self

    def said(self) -> Choice:
        if self.type in ("none", "auto"):
            return Choice(self.type)
        names = () if self.name is None else (self.name,)
        return Choice("required", names, is_named=self.type == "tool")


class Thinking(Body):
    """`budget_tokens` is not held: `max_tokens` is the bound of thoughts and answer together."""

    unserved: ClassVar[Unserved] = {"display": ("summarized",)}

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1, le=MAX_INTEGER)

    def options(self) -> dict[str, Any]:
        """Returns what templates that can turn thoughts on and off read."""
        if self.type == "adaptive":
            return {}
        is_on = self.type == "enabled"
        return {"enable_thinking": is_on, "thinking": is_on}


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class OutputConfig(Body):
    unserved: ClassVar[Unserved] = {"effort": ("high",)}

    format: OutputFormat | None = None


class CountBody(ToolBody):
    """What makes a prompt."""

    ignored: ClassVar[frozenset[str]] = CACHED | {
        "metadata",
        "service_tier",
        "user_profile_id",
        "workspace_id",
    }
    unserved: ClassVar[Unserved] = {
        "container": (),
        "context_management": ({},),
        "diagnostics": (),
        "inference_geo": (),
        "mcp_servers": ([],),
        "speed": ("standard",),
    }

    model: str
    messages: Annotated[list[InputMessage], Field(min_length=1, fail_fast=True)]
    system: Text | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = (
        None
    )
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    @model_validator(mode="after")
    def _open_message_is_text(self) -> "CountBody":
        last = self.messages[-1]
        if last.role == "assistant" and not last.ends_with_text:
            raise fault(
                "messages",
                "the last is the assistant's and does not end with a text to go on with; end with "
                "a text or a user's message",
            )
        return self

    @property
    def offered(self) -> list[Tool]:
        return [tool.as_tool() for tool in self.tools or ()]

    @property
    def choice(self) -> Choice:
        return Choice() if self.tool_choice is None else self.tool_choice.said()

    @property
    def allows_several(self) -> bool:
        return self.tool_choice is None or not self.tool_choice.disable_parallel_tool_use

    def chat(self) -> ChatRequest:
        """More tokens than fit are cut at the end of the context: `max_tokens` is no wish, as every
        client has to give it."""
        use = self.tool_use()
        turns = [turn for message in self.messages for turn in message.turns()]
        if self.system:
            turns.insert(0, {"role": "system", "content": text_of(self.system)})
        options = {} if self.thinking is None else self.thinking.options()
        ending: Ending = "open" if self.messages[-1].role == "assistant" else "answer"
        tools = [tool.as_json() for tool in use.tools]
        return ChatRequest(
            model=self.model,
            conversation=Conversation(turns, Extras(tools, options, ending)),
            use=use,
            params=self.params(),
            prompt_field="messages",
        )

    def params(self) -> GenerationParams:
        return GenerationParams(constraint=self.constraint())

    def constraint(self) -> ConstraintSpec | None:
        form = None if self.output_config is None else self.output_config.format
        if form is None:
            return None
        return schema_constraint("output_config", form.schema_)


class MessagesBody(SampledBody, CountBody):
    max_tokens: int = Field(ge=1, le=MAX_INTEGER)
    stop_sequences: (
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOP_SEQUENCES)]
        | None
    ) = None
    temperature: Annotated[float, Field(ge=0, le=1), ANY_SIZE] | None = None
    top_k: int | None = Field(None, ge=0, le=MAX_INTEGER)
    stream: bool | None = None

    @model_validator(mode="after")
    def _thoughts_leave_room(self) -> "MessagesBody":
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            raise fault(
                "thinking",
                f"budget_tokens is {budget}; give less than max_tokens, {self.max_tokens}",
            )
        return self

    def params(self) -> GenerationParams:
        return GenerationParams(
            max_tokens=self.max_tokens,
            stop_strings=tuple(self.stop_sequences or ()),
            speculation=self.speculation or "auto",
            constraint=self.constraint(),
            sampling=self.sampling(),
            unsaid=self.unsaid,
        )
