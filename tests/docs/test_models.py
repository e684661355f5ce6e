"""docs/models.md has every family that is read, each compared with transformers' class."""

import transformers

from inference_api.loading.families.read import READERS
from inference_api.loading.gguf.names import KNOWN_ARCHITECTURES
from lab.models.page import BEGIN, DRAFTING, END, FAMILIES, PAGE, lines, sample
from tests.inference_api.engine import mtp_models
from tests.inference_api.engine.tiny_models import GEMMAS, HYBRIDS, MODELS

ALL = MODELS | HYBRIDS | GEMMAS
AROUND_ANOTHER = {"mistral3"}  # its text model is another family


def family(name: str) -> str:
    """The `model_type` of a tiny model, as if it saw too."""
    kind: str = getattr(transformers, f"{ALL[name][0]}Config").model_type
    return kind.removesuffix("_text")


def test_the_page_has_what_the_readers_say() -> None:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert table.splitlines() == list(lines())
    assert all(f"`{name}`" in table for name in KNOWN_ARCHITECTURES)


def test_every_family_has_a_row_and_a_tiny_model() -> None:
    listed = [each for families in FAMILIES.values() for each in families]
    assert sorted(listed) == sorted(READERS)
    assert {each.removesuffix("_text") for each in listed} - AROUND_ANOTHER == {*map(family, ALL)}
    assert {*map(family, mtp_models.MODELS)} <= {*DRAFTING}
    assert all(sample(each).num_layers == 4 for each in listed)
