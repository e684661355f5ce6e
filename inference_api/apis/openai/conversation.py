"""Fields that control how messages become a prompt."""

from pydantic import model_validator

from inference_api.apis.openai.messages import ChatMessage
from inference_api.apis.openai.tools import TemplateOptions, ToolFields
from inference_api.text.chat_prompts import Ending
from inference_api.web.fields import fault


class ConversationFields(ToolFields):
    """`continue_final_message` continues the last message; it excludes `add_generation_prompt`."""

    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def ending(self) -> Ending:
        if self.continue_final_message:
            return "open"
        return "closed" if self.add_generation_prompt is False else "answer"

    @model_validator(mode="after")
    def _one_ending(self) -> "ConversationFields":
        if self.continue_final_message and self.add_generation_prompt:
            raise fault(
                "continue_final_message", "comes without add_generation_prompt; give one of the two"
            )
        return self


def check_open(message: ChatMessage) -> None:
    """Raises an error if the last message has no text to continue."""
    if message.content is None or message.tool_calls or message.role == "tool":
        raise fault(
            "continue_final_message",
            "goes on with a text, which the last message is not; end with a text and without calls",
        )
