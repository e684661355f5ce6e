"""Makes prompts with exactly the wanted number of tokens by the model's tokenizer. Seeded.

Each prompt has its own prefix, unless that is switched off, so that a prefix cache does not help.
Images to send with them are random tiles of colour, as PNG in a data URL.
"""

import struct
import zlib
from base64 import b64encode
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from random import Random

import yaml

from benchmarking.errors import RowRefused
from benchmarking.load.tokenizers import Tokenizer
from benchmarking.records import ImageSize

# The text `default`, and others to draw from.
TEXTS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("prompt_texts.yaml").read_bytes())
MAX_TRIES = 50
FILLED_BY_WORDS = 3  # a rest of up to this many words is filled with pieces of one token each
FILLER_WORDS = ("the", "and", "a", "of", "to", "in", "is", "it", "you", "that", "was", "for", "on")
FILLER_CHARS = "aeiost.,!0123456789"

Count = Callable[[str], int]


class PromptMaker:
    """Makes the prompts of one model. For one thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._fillers = _fillers(tokenizer.count)
        sample = TEXTS["default"]
        self._tokens_per_word = tokenizer.count(sample) / len(sample.split())

    def make(self, name: str, num_tokens: int, prefix: str, rng: Random) -> str:
        """Returns `prefix` and the repeated text `TEXTS[name]`, cut and filled so that it has
        `num_tokens`, special tokens included. Raises RowRefused if it does not find such a text."""
        words = cycle(f" {word}" for word in TEXTS[name].split())
        pieces = [prefix] if prefix else [next(words)]
        for _ in range(MAX_TRIES):
            text = "".join(pieces).lstrip()
            missing = num_tokens - self._tokenizer.count(text)
            if missing == 0:
                return text
            if missing < 0:
                if len(pieces) == 1:
                    break
                surplus_words = max(1, int(-missing / self._tokens_per_word))
                del pieces[max(1, len(pieces) - surplus_words) :]
            elif missing > FILLED_BY_WORDS * self._tokens_per_word:
                pieces += islice(words, int(missing / self._tokens_per_word))
            else:
                pieces += rng.choices(self._fillers, k=missing)
        raise RowRefused(
            f"input_tokens={num_tokens}: no text of exactly this length was found in the model's "
            "tokenizer; choose another length"
        )


def _fillers(count: Count) -> list[str]:
    """Returns pieces that add one token each to most texts. Raises RowRefused if none do."""
    base = TEXTS["default"]
    length = count(base)

    def is_one_token(piece: str) -> bool:
        return count(base + 3 * piece) == length + 3

    fillers = [f" {word}" for word in FILLER_WORDS if is_one_token(f" {word}")]
    fillers = fillers or [char for char in FILLER_CHARS if is_one_token(char)]
    if not fillers:
        raise RowRefused("the model's tokenizer has no word or character of a single token")
    return fillers


PIXELS: dict[ImageSize, int] = {"small": 500, "medium": 1000, "large": 2000}
TILE_PIXELS = 50


def image_url(size: ImageSize, rng: Random) -> str:
    """Returns the data URL of a square image. `size` must not be "na"."""
    return "data:image/png;base64," + b64encode(_png(PIXELS[size], rng)).decode()


def _png(side: int, rng: Random) -> bytes:
    """Returns 8-bit RGB without filters or interlacing (PNG specification, third edition)."""
    rows = []
    for _ in range(side // TILE_PIXELS):
        tiles = b"".join(rng.randbytes(3) * TILE_PIXELS for _ in range(side // TILE_PIXELS))
        rows.append((b"\0" + tiles) * TILE_PIXELS)
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
