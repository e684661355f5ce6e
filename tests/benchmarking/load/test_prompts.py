"""Prompts have exactly the asked length, whichever tokenizer counts; pictures have their size."""

import struct
import zlib
from base64 import b64decode
from pathlib import Path
from random import Random

import pytest

from benchmarking.errors import InvalidConfig, RowRefused, TargetUnusable
from benchmarking.load.prompts import PIXELS, TEXTS, PromptMaker, image_url
from benchmarking.load.targets import Endpoint
from benchmarking.load.tokenizers import SERVER, FileTokenizer, Tokenizer, tokenizer_for
from benchmarking.records import ImageSize
from lab.kit.scripted_server import Script, scripted
from lab.kit.servers import ROOT, free_port

TINY = ROOT / "models" / "hearth-tiny"


class ByteTokenizer:
    """Every byte is a token, as in tests of other servers."""

    def count(self, text: str) -> int:
        return len(text.encode())

    def count_plain(self, text: str) -> int:
        return self.count(text)

    def context_left(self, text: str) -> int | None:
        return None


class PairTokenizer(ByteTokenizer):
    """No text of an odd length exists."""

    def count(self, text: str) -> int:
        return 2 * len(text)


@pytest.mark.parametrize("tokenizer", [FileTokenizer(TINY), ByteTokenizer()], ids=["bpe", "bytes"])
@pytest.mark.parametrize("num_tokens", [40, 41, 97, 512, 2000])
def test_prompts_have_exactly_the_asked_length(tokenizer: Tokenizer, num_tokens: int) -> None:
    maker = PromptMaker(tokenizer)
    for index, name in enumerate(TEXTS):
        text = maker.make(name, num_tokens, f"Request {index}.", Random(index))
        assert tokenizer.count(text) == num_tokens
        assert text.startswith(f"Request {index}.")


def test_prompts_have_exactly_the_asked_length_in_the_servers_words() -> None:
    with scripted({"m": Script()}) as (_, base):
        tokenizer = tokenizer_for(SERVER, Endpoint("openai", base), "m")
        text = PromptMaker(tokenizer).make("default", 123, "", Random(0))
        assert (tokenizer.count(text), len(text.split())) == (123, 123)
        assert tokenizer.count_plain("three more words") == 3
        assert tokenizer.context_left(text) == 4096 - 125  # the chat adds two of its own


def test_the_same_seed_makes_the_same_prompt() -> None:
    maker = PromptMaker(FileTokenizer(TINY))
    first, again = (maker.make("default", 90, "Request 1.", Random(7)) for _ in range(2))
    assert first == again


def test_a_length_that_no_text_has_is_refused() -> None:
    with pytest.raises(RowRefused, match="single token"):
        PromptMaker(PairTokenizer())


def test_a_server_that_counts_nothing_says_what_to_do() -> None:
    target = Endpoint("openai", f"http://127.0.0.1:{free_port()}/v1")
    with pytest.raises(TargetUnusable, match=r"set tokenizer to the folder of .* tokenizer\.json"):
        tokenizer_for(SERVER, target, "m")


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"tokenizer\.json"):
        tokenizer_for(str(tmp_path), Endpoint("openai", "http://x/v1"), "m")


@pytest.mark.parametrize("size", PIXELS)
def test_pictures_have_their_size(size: ImageSize) -> None:
    kind, _, data = image_url(size, Random(1)).partition(",")
    png = b64decode(data)
    assert kind == "data:image/png;base64"
    width, height, depth, colour = struct.unpack(">IIBB", png[16:26])
    assert (width, height, depth, colour) == (PIXELS[size], PIXELS[size], 8, 2)
    pixels = zlib.decompress(png[png.index(b"IDAT") + 4 : -16])
    assert len(pixels) == height * (1 + 3 * width)
