"""Checks that llama.cpp reads our GGUF files as we do, by greedy answers to the same prompts.

    python -m lab.peers.check_gguf

An independent program must agree about names, order of rows, rope and scales. llama.cpp rounds the
activations that meet quantised weights, and keeps keys and values in half precision. Answers may
therefore diverge at a near tie, so the check counts the tokens before they diverge.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from inference_api.engine.kernel_runner import KernelRunner
from inference_api.loading.options import EngineOptions
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep, place_own_pages
from inference_api.settings import EMBEDDED_MODEL
from inference_api.text.tokens import load_tokenizer
from lab.kit.servers import ROOT, environment
from lab.models.gguf_file import make_gguf
from lab.peers.install import LLAMA_CPP, NotInstalled, install

FORMS = (("F32", "none"), ("F16", "none"), ("Q8_0", "none"), ("Q8_0", "int8"), ("Q4_0", "none"))
NUM_PROMPTS, PROMPT_TOKENS, MAX_TOKENS = 16, 24, 24
GREEDY = SamplingParams(temperature=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare greedy answers with llama.cpp's.")
    parser.add_argument("--model", type=Path, default=EMBEDDED_MODEL, help="a model folder")
    arguments = parser.parse_args()
    try:
        print(f"llama.cpp: {install(LLAMA_CPP)}")
    except NotInstalled as error:
        sys.exit(f"not compared: llama.cpp does not install: {error}")
    text = (EMBEDDED_MODEL / "heldout.txt").read_text()
    tokens = load_tokenizer(arguments.model, frozenset()).encode(text)
    prompts = [
        tokens[first : first + PROMPT_TOKENS]
        for first in range(0, NUM_PROMPTS * PROMPT_TOKENS, PROMPT_TOKENS)
    ]
    with TemporaryDirectory() as folder:
        for gguf_type, quantization in FORMS:
            file = Path(folder) / f"{gguf_type}.gguf"
            if not file.exists():
                make_gguf(arguments.model, file, gguf_type)
            theirs, ours = (
                llama_cpp_answers(file, prompts),
                our_answers(file, quantization, prompts),
            )
            pairs = list(zip(ours, theirs, strict=True))
            whole = sum(mine == its for mine, its in pairs)
            same = sum(common_tokens(mine, its) for mine, its in pairs)
            print(
                f"{gguf_type} with QUANTIZATION={quantization}: {whole} of {len(pairs)} answers "
                f"are the same, {same} of {len(pairs) * MAX_TOKENS} tokens before they part",
                flush=True,
            )


def llama_cpp_answers(file: Path, prompts: list[list[int]]) -> list[list[int]]:
    finished = subprocess.run(
        [str(LLAMA_CPP.python), "-m", "lab.peers.greedy", str(file)],
        input=json.dumps([prompts, MAX_TOKENS]),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers: list[list[int]] = json.loads(finished.stdout)
    return answers


def our_answers(file: Path, quantization: str, prompts: list[list[int]]) -> list[list[int]]:
    options = EngineOptions(
        device="cpu",
        dtype="float32",
        max_rows=1,
        max_seq_len=PROMPT_TOKENS + MAX_TOKENS,
        quantization=quantization,
    )
    runner = KernelRunner(file, options)
    runner.load()
    place_own_pages(runner)
    answers = []
    for prompt in prompts:
        answer: list[int] = []
        runner.step([RowStep(0, 0, prompt[:-1])])
        draw = Draw(GREEDY, prompt, answer)
        for position in range(len(prompt) - 1, len(prompt) - 1 + MAX_TOKENS):
            token = answer[-1] if answer else prompt[-1]
            [result] = runner.step([RowStep(0, position, (token,), (draw,))])
            answer.append(result.drawn[0].token_id)
        answers.append(answer)
    return answers


def common_tokens(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=True)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), len(one))


if __name__ == "__main__":
    main()
