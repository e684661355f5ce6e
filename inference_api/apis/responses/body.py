"""The body of `/v1/responses`: OpenAI's fields, `seed` and `top_k`.

The server keeps no conversation: a client sends it whole each time, with the items of earlier
answers unchanged.
"""

from dataclasses import replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from inference_api.apis.chat import Chat
from inference_api.apis.openai.bodies import MAX_LOGPROBS
from inference_api.apis.openai.field_kinds import ADVISORY
from inference_api.apis.openai.tools import choice_of
from inference_api.apis.responses.input import Input, tools_of, turns_of
from inference_api.apis.responses.tools import CalledTool, ToolChoice, Tools, flattened
from inference_api.request import ConstraintSpec, GenerationParams
from inference_api.tools.events import ChosenTools, Tool
from inference_api.web.constraints import Schema, schema_constraint
from inference_api.web.entries import aside_of
from inference_api.web.fields import Body, MaxTokens, Unserved, fault
from inference_api.web.sampling import SampledBody
from inference_api.web.thinking import Effort, effort_options
from inference_api.web.tools import ToolBody

MAX_METADATA = 16  # OpenAI's bounds
MAX_METADATA_CHARS = 512
LOGPROBS = "message.output_text.logprobs"  # the value of `include` that has an effect

UNSERVED: Unserved = {
    "background": (False,),
    "conversation": (),
    "previous_response_id": (),
    "prompt": (),
}


class TextFormat(Body):
    """`json_schema` needs a schema; `json_object` is any object."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None

    def check(self) -> None:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise fault("schema", "comes with type json_schema; give both or neither")


class TextOptions(Body):
    advisory: ClassVar[frozenset[str]] = frozenset({"verbosity"})

    format: TextFormat | None = None

    def constraint(self) -> ConstraintSpec | None:
        if self.format is None or self.format.type == "text":
            return None
        schema = self.format.schema_ or {"type": "object"}
        return schema_constraint("text", schema, bool(self.format.strict))


class Reasoning(Body):
    """Reasoning options. Thoughts are sent whole, so a summary is not needed."""

    advisory: ClassVar[frozenset[str]] = frozenset(
        {"context", "generate_summary", "mode", "summary"}
    )

    effort: Effort | None = None


MetadataText = Annotated[str, Field(max_length=MAX_METADATA_CHARS)]


class ResponsesBody(ToolBody, SampledBody):
    advisory: ClassVar[frozenset[str]] = (ADVISORY - {"metadata", "reasoning"}) | {
        *("access_programs", "background_options", "context_management", "image"),
        *("stream_options", "truncation"),
        "max_tool_calls",  # limits calls of tools that the server itself runs; Hearth runs none
    }
    unserved: ClassVar[Unserved] = UNSERVED

    model: str | None = None
    instructions: str | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    input: Input
    parallel_tool_calls: bool | None = None
    max_output_tokens: MaxTokens | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    include: Annotated[list[str], Field(max_length=64)] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    metadata: Annotated[dict[str, MetadataText], Field(max_length=MAX_METADATA)] | None = None
    stream: bool | None = None

    @field_validator("include")
    @classmethod
    def _leave_others_aside(cls, include: list[str], info: ValidationInfo) -> list[str]:
        aside_of(info, cls).add(cls, "include", [each for each in include if each != LOGPROBS])
        return include

    @property
    def offered(self) -> list[Tool]:
        found = {tool.name: tool for tool, _ in flattened(tools_of(self.input))}
        offered = [tool for tool, _ in flattened(self.tools or ())]
        names = {tool.name for tool in offered}
        return [*offered, *(tool for name, tool in found.items() if name not in names)]

    @cached_property
    def called_tools(self) -> dict[str, CalledTool]:
        """Returns how calls are shown, by the tools' names in the prompt."""
        tools = [*tools_of(self.input), *(self.tools or ())]
        return {tool.name: called for tool, called in flattened(tools)}

    @property
    def choice(self) -> ChosenTools:
        return choice_of(self.tool_choice, self.parallel_tool_calls)

    @property
    def effort(self) -> Effort | None:
        return None if self.reasoning is None else self.reasoning.effort

    def chat(self) -> Chat:
        turns = turns_of(self.input)
        if self.instructions:
            turns.insert(0, {"role": "system", "content": self.instructions})
        return Chat(
            model=self.model,
            turns=turns,
            use=self.tool_use(),
            params=[self._params()],
            prompt_field="input",
            options=effort_options("reasoning.effort", self.effort),
        )

    def _params(self) -> GenerationParams:
        asks = self.top_logprobs or LOGPROBS in (self.include or ())
        num_logprobs = (self.top_logprobs or 0) if asks else None
        return GenerationParams(
            max_tokens=self.max_output_tokens,
            cache_salt=self.cache_salt or "",
            speculation=self.speculation or "auto",
            constraint=None if self.text is None else self.text.constraint(),
            sampling=replace(self.sampling(), num_logprobs=num_logprobs),
            unset=self.unset,
        )
