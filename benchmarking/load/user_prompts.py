"""Reads the user's own prompts from a JSONL file: one `{"prompt": "...", "image_path": "..."}` per
line. `image_path` may be left out. It is a local file, relative to the working directory.
"""

from base64 import b64encode
from mimetypes import guess_type
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarking.errors import InvalidConfig
from benchmarking.load.targets import Prompt
from benchmarking.load.tokenizers import Tokenizer
from benchmarking.records import Workload
from common.faults import MAX_FAULTS, fault_of
from common.files import read_bounded
from common.paths import expanded

MAX_BYTES, MAX_IMAGE_BYTES = 2**28, 2**26
MAX_LINES = 1_000_000


class Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    prompt: str = Field(min_length=1)
    image_path: str | None = None


def load_of(path: Path, model: str, max_tokens: int, concurrency: int) -> Workload:
    """Returns a closed loop of a file's prompts. Raises InvalidConfig, naming wrong lines."""
    num_prompts = len(_lines(path))
    return Workload(model, 0, max_tokens, num_prompts, concurrency, prompts_path=str(path))


def read_prompts(path: Path, tokenizer: Tokenizer) -> list[Prompt]:
    """Returns the prompts of a file in their order. Raises InvalidConfig."""
    return [
        Prompt(
            name=f"line {number}",
            text=line.prompt,
            num_tokens=tokenizer.count(line.prompt),
            image_url=line.image_path and _image_url(path, number, line.image_path),
        )
        for number, line in _lines(path).items()
    ]


def _lines(path: Path) -> dict[int, Line]:
    """Returns the lines by their numbers in the file, without empty lines."""
    lines: dict[int, Line] = {}
    faults: list[str] = []
    try:
        texts = read_bounded(path, MAX_BYTES).decode("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise InvalidConfig(path, [str(error)]) from error
    if len(texts) > MAX_LINES:
        raise InvalidConfig(path, [f"has {len(texts)} lines; give {MAX_LINES} or fewer"])
    for number, text in enumerate(texts, start=1):
        if len(faults) >= MAX_FAULTS:
            break
        try:
            if text.strip():
                lines[number] = Line.model_validate_json(text)
        except ValidationError as error:
            found = [fault_of(each, Line) for each in error.errors()]
            faults += [f"line {number}, {fault}" for fault in found]
    if faults or not lines:
        raise InvalidConfig(path, faults or ["holds no prompts"])
    return lines


def _image_url(path: Path, number: int, image_path: str) -> str:
    kind, _ = guess_type(image_path)
    if kind is None or not kind.startswith("image/"):
        fault = f"line {number}, image_path={image_path!r}: name a local picture, such as a .png"
        raise InvalidConfig(path, [fault])
    try:
        content = read_bounded(expanded(image_path), MAX_IMAGE_BYTES)
    except (OSError, ValueError) as error:
        raise InvalidConfig(path, [f"line {number}, image_path: {error}"]) from error
    return f"data:{kind};base64,{b64encode(content).decode()}"
