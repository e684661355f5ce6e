"""A model that agents' prompts fit into: random weights, a context of 131,072 tokens, tools."""

import json
import shutil
from pathlib import Path

from lab.kit.servers import ROOT
from lab.models.random_model import Shape, make_random_model

CONTEXT_TOKENS = 131_072
SHAPE = Shape(hidden=64, ffn=128, layers=2, heads=2, kv_heads=2, vocab_size=2048)
EMBEDDED = (
    ROOT / "models" / "hearth-tiny"
)  # for its tokenizer: bytes alone would make four times the tokens
TEMPLATE = ROOT / "tests" / "data" / "templates" / "hermes.jinja"


def make_model(folder: Path) -> None:
    """Write the model; a few megabytes, in a second."""
    make_random_model(SHAPE, folder, TEMPLATE.read_text())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / name, folder / name)
    _change(folder / "config.json", max_position_embeddings=CONTEXT_TOKENS, eos_token_id=1)
    _change(folder / "tokenizer_config.json", model_max_length=CONTEXT_TOKENS)


def _change(path: Path, **members: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | members, indent=1))
