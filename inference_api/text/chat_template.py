"""Whether a model's chat template serves, found out before the model is loaded."""

from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import TemplateError, TemplateSyntaxError

from inference_api.errors import StartupError
from inference_api.loading.gguf.files import is_gguf

if TYPE_CHECKING:
    from transformers import TokenizersBackend

SIMPLEST = [{"role": "user", "content": "Hello"}]


def check_chat_template(wrapper: "TokenizersBackend", model_dir: Path) -> None:
    """Put the simplest conversation into the template, by what will do it for every request.

    Raises StartupError when the template is not Jinja, or breaks on one user's turn: chat could
    answer nobody then. One that refuses this turn of its own accord (it calls `raise_exception`)
    may want a system message first, say, and is left to the requests.
    """
    if wrapper.chat_template is None:
        return
    try:
        wrapper.apply_chat_template(SIMPLEST, tokenize=False, add_generation_prompt=True)
    except TemplateSyntaxError as error:
        fault = f"is not valid Jinja, line {error.lineno}: {error.message}"
    except Exception as error:  # whatever the template raises
        if type(error) is TemplateError:
            return
        fault = f"cannot render one message of a user ({type(error).__name__}: {error})"
    else:
        return
    raise StartupError(
        [
            f"The chat template in {_source(model_dir)} {fault}; correct it or remove it: chats "
            "are then put as plain text."
        ]
    )


def _source(model_dir: Path) -> str:
    """Returns the file that the tokenizer's library has found it in."""
    if is_gguf(model_dir):
        return f"{model_dir} (tokenizer.chat_template)"
    file = model_dir / "chat_template.jinja"
    return str(file if file.is_file() else model_dir / "tokenizer_config.json")
