"""Recognises by their text the tokens that end an answer, if a model's files list none."""

from collections.abc import Mapping

# The supported families end texts, turns and messages with these; llama.cpp has the same list.
END_TEXTS = frozenset(
    (
        *("</s>", "<eos>", "<EOT>", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"),
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>"),
        *("<|return|>", "<|call|>", "<turn|>", "<|tool_response>"),
    )
)


def known_ends(special: Mapping[str, int]) -> frozenset[int]:
    """Returns the ids of those among a vocabulary's special tokens that end an answer."""
    texts = END_TEXTS & special.keys()
    if "<|return|>" in texts:  # gpt-oss, whose answers continue after <|end|>
        texts -= {"<|end|>"}
    return frozenset(special[text] for text in texts)
