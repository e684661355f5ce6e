"""llama.cpp as a peer: its batch API, driven as its own server does, without the HTTP.

Runs in the environment that `install` made. A step is one `llama_decode`: the last token of
every answer that is being written, then as much of the waiting prompts as fits into the batch.
Tokens are chosen by one argmax over the rows of logits, which is cheaper than its samplers.
"""

import argparse
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import llama_cpp  # type: ignore[import-not-found]  # only in the peer's environment
import numpy as np

from lab.peers.process import serve

BATCH_TOKENS = 512
SGEMM_FEATURE = "LLAMAFILE = 1"


@dataclass(slots=True)
class Slot:
    """A user's request: what is not in the cache yet, and how far the answer is."""

    pending: list[int]
    tokens_left: int
    position: int = 0


@dataclass(slots=True)
class Batch:
    """Tokens of the next call; the last token of a prompt asks for logits."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    users: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)  # indices into the batch

    def take(self, user: int, slot: Slot, count: int) -> None:
        self.tokens += slot.pending[:count]
        self.positions += range(slot.position, slot.position + count)
        self.users += [user] * count
        del slot.pending[:count]
        slot.position += count
        if not slot.pending:
            self.outputs.append(len(self.tokens) - 1)


class LlamaCpp:
    """One model and its cache; see `peer_loop.Engine`."""

    def __init__(
        self,
        path: str,
        users: int,
        context: int,
        threads: int,
        flash: bool,
        unified: bool,
        cache: str = "F16",
    ) -> None:
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = users * context
        params.n_seq_max = users
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(flash)
        params.kv_unified = unified
        params.type_k = params.type_v = getattr(llama_cpp, f"GGML_TYPE_{cache}")
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit(f"llama.cpp makes no context of {users} x {context} tokens")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self._model)
        )
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._slots: dict[int, Slot] = {}

    def add(self, user: int, prompt: Sequence[int], max_tokens: int) -> None:
        self._slots[user] = Slot(list(prompt), max_tokens)

    def step(self) -> tuple[int, list[int]]:
        batch = self._next_batch()
        self._decode(batch)
        finished = []
        for index in batch.outputs:
            user = batch.users[index]
            slot = self._slots[user]
            slot.pending = [self._likeliest(index)]
            slot.tokens_left -= 1
            if slot.tokens_left == 0:
                finished.append(user)
                del self._slots[user]
                llama_cpp.llama_memory_seq_rm(self._memory, user, -1, -1)
        return len(batch.outputs), finished

    def _next_batch(self) -> Batch:
        batch = Batch()
        writing = [(user, slot) for user, slot in self._slots.items() if len(slot.pending) == 1]
        reading = [(user, slot) for user, slot in self._slots.items() if len(slot.pending) > 1]
        for user, slot in writing + reading:
            room = BATCH_TOKENS - len(batch.tokens)
            if room == 0:
                break
            batch.take(user, slot, min(room, len(slot.pending)))
        return batch

    def _decode(self, batch: Batch) -> None:
        target, count = self._batch, len(batch.tokens)
        target.n_tokens = count
        for index in range(count):
            target.token[index] = batch.tokens[index]
            target.pos[index] = batch.positions[index]
            target.n_seq_id[index] = 1
            target.seq_id[index][0] = batch.users[index]
            target.logits[index] = 0
        for index in batch.outputs:
            target.logits[index] = 1
        failed = llama_cpp.llama_decode(self._context, target)
        if failed:
            raise SystemExit(f"llama_decode failed with {failed}")

    def _likeliest(self, index: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, index)
        return int(np.argmax(np.ctypeslib.as_array(logits, shape=(self._vocab_size,))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--users", type=int, default=32)
    parser.add_argument("--context", type=int, default=256, help="tokens of one user")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--flash", type=int, default=0, help="1: flash attention")
    parser.add_argument("--unified", type=int, default=0, help="1: one cache for all users")
    parser.add_argument(
        "--cache", default="F16", help="type of keys and values; Q8_0 needs --flash 1"
    )
    arguments = parser.parse_args()
    silence()
    about: dict[str, Any] = {
        "version": llama_cpp.__version__,
        "system": llama_cpp.llama_print_system_info().decode().strip(),
    }
    if arguments.model is None:
        print(about["system"])
        raise SystemExit(0 if SGEMM_FEATURE in about["system"] else "llama.cpp lacks SGEMM")
    serve(lambda: _engine(arguments), about)


def _engine(arguments: argparse.Namespace) -> LlamaCpp:
    return LlamaCpp(
        arguments.model,
        arguments.users,
        arguments.context,
        arguments.threads,
        bool(arguments.flash),
        bool(arguments.unified),
        arguments.cache,
    )


def _drop(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Loading says hundreds of lines."""


_DROP = llama_cpp.llama_log_callback(_drop)  # the library keeps no reference


def silence() -> None:
    llama_cpp.llama_log_set(_DROP, ctypes.c_void_p(0))


if __name__ == "__main__":
    main()
