"""mistral.rs as a peer: its Python `Runner`, with a stream for each user.

Runs in the environment that `install` made. It takes text, so a prompt becomes letters chosen by
its token ids, which the tokenizer turns into the same number of tokens. The tokens of an answer are
counted when it is complete.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from string import ascii_lowercase
from tempfile import NamedTemporaryFile
from typing import Any

from lab.peers.process import main


class MistralRs:
    """One model and its caches, which grow with requests; see `process.Engine`."""

    def __init__(self, model: str, users: int, context: int, threads: int) -> None:
        os.putenv("RAYON_NUM_THREADS", str(threads))
        import mistralrs  # type: ignore[import-not-found]  # starts the threads

        self._request = mistralrs.ChatCompletionRequest
        file = mistralrs.Which.GGUF(os.path.dirname(model), os.path.basename(model))
        with NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{{ messages[0]['content'] }}")  # only chats stream
            template.flush()
            self._runner = mistralrs.Runner(
                file, max_seqs=users, prefix_cache_n=0, jinja_explicit=template.name
            )
        self._running: dict[int, tuple[int, Iterator[Any]]] = {}  # user -> (prompt tokens, answer)

    def add(self, user: int, prompt: Sequence[int], max_tokens: int) -> None:
        text = text_of(prompt, lambda text: len(self._runner.tokenize_text(text, True, None)))
        greedy = {"temperature": 0.0, "ignore_eos": True}
        request = self._request(text, "default", max_tokens=max_tokens, stream=True, **greedy)
        self._running[user] = len(prompt), self._runner.send_chat_completion_request(request)

    def step(self) -> tuple[int, list[int]]:
        num_new, finished = 0, []
        for user, (prompt_tokens, answer) in [*self._running.items()]:
            usage = next(answer).usage
            if usage is None:
                continue
            if usage.prompt_tokens != prompt_tokens:
                raise ValueError(f"{usage.prompt_tokens} tokens were read, not {prompt_tokens}")
            num_new += usage.completion_tokens
            finished.append(user)
            del self._running[user]
        return num_new, finished


def text_of(prompt: Sequence[int], count_tokens: Callable[[str], int]) -> str:
    """Returns text with as many tokens as `prompt`. Each letter or space adds a token or none."""
    letters = " ".join(ascii_lowercase[token % len(ascii_lowercase)] for token in prompt)
    length = len(prompt)
    while (missing := len(prompt) - count_tokens(letters[:length])) and length < len(letters):
        length += missing
    return letters[:length]


if __name__ == "__main__":
    about = {"version": version("mistralrs"), "system": "its wheel"}
    main(about, MistralRs, users=32, context=256, threads=1)
