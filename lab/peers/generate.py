"""The peer of `bench-serve`: transformers' own `generate` with one static batch, on the device and
in the type that the server chooses: float32 on all cores, or bfloat16 on a GPU.

It reads `[model folder, prompts, max_tokens]` as JSON from standard input, and prints tokens/s.
"""

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from inference_api.loading.hardware import physical_cores


def main() -> None:
    folder, prompts, max_tokens = json.load(sys.stdin)
    torch.set_num_threads(physical_cores())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.to(device)
    if tokenizer.chat_template is not None:
        turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
        prompts = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    batch = tokenizer(
        prompts,
        return_tensors="pt",
        padding=True,
        add_special_tokens=tokenizer.chat_template is None,
    ).to(device)
    batch.pop("token_type_ids", None)
    model.generate(**batch, max_new_tokens=2, do_sample=False)  # warm up
    started_s = time.perf_counter()
    answers = model.generate(**batch, max_new_tokens=max_tokens, do_sample=False)
    elapsed_s = time.perf_counter() - started_s
    new_tokens = answers[:, batch["input_ids"].shape[1] :]
    print(int((new_tokens != tokenizer.pad_token_id).sum()) / elapsed_s)


if __name__ == "__main__":
    main()
