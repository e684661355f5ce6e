"""Generates llama.cpp's greedy answers, one prompt at a time. `check_gguf` compares ours with them.

Runs in llama.cpp's environment, as `python -m lab.peers.greedy MODEL`, with `[prompts, max_tokens]`
as JSON on standard input and the answers as JSON on standard output.
"""

import json
import sys

from lab.peers.llama_apis import API
from lab.peers.llama_cpp import LlamaCpp


class Recorder(LlamaCpp):
    """A `LlamaCpp` that keeps the tokens it chooses."""

    def __init__(self, path: str, context: int) -> None:
        super().__init__(path, users=1, context=context, threads=1, flash=False, unified=False)
        self.tokens: list[int] = []

    def _likeliest(self, index: int) -> int:
        token = super()._likeliest(index)
        self.tokens.append(token)
        return token


def main() -> None:
    API.silence()
    prompts, max_tokens = json.load(sys.stdin)
    engine = Recorder(sys.argv[1], max(len(prompt) for prompt in prompts) + max_tokens)
    answers = []
    for prompt in prompts:
        engine.tokens = []
        engine.add(0, prompt, max_tokens)
        while not engine.step()[1]:
            pass
        answers.append(engine.tokens)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
