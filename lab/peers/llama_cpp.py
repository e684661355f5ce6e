"""llama.cpp or ik_llama.cpp as a peer: its batch API, driven as by its own server, but without
HTTP.

Runs in the environment that `install` made. A step is one `llama_decode`: the last token of every
unfinished answer, then as much of the waiting prompts as fits into the batch. Tokens are chosen by
one argmax over the rows of logits, which is cheaper than llama.cpp's samplers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lab.peers.llama_apis import API, CACHE_TYPES
from lab.peers.process import main

c = API.c

BATCH_TOKENS = 512
CHECKED_USERS, CHECKED_TOKENS, FEW_TOKENS = 4, 64, 8  # users and tokens at once, tokens alone
LEAST_CORRELATION = 0.9  # between logits of prompts read at once and alone


@dataclass(slots=True)
class Slot:
    """A user's request: tokens that are not cached yet, and how many are left to generate."""

    pending: list[int]
    tokens_left: int
    position: int = 0


@dataclass(slots=True)
class Batch:
    """The tokens of the next call. The last pending token of a user asks for logits."""

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
    """One model and its cache; see `process.Engine`. `context` is the tokens of one user, `flash`
    turns on flash attention, `unified` means one cache for all users, and `cache` is the type of
    keys and values; Q8_0 needs flash attention."""

    def __init__(
        self,
        model: str,
        users: int,
        context: int,
        threads: int,
        flash: bool,
        unified: bool,
        cache: str = "F16",
    ) -> None:
        c.llama_backend_init()
        model_params, params = c.llama_model_default_params(), c.llama_context_default_params()
        params.n_ctx = users * context
        params.n_seq_max = users
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = CACHE_TYPES[cache]
        API.arrange(model_params, params, flash, unified)
        self._model = c.llama_model_load_from_file(model.encode(), model_params)
        if not self._model:
            raise SystemExit(f"the model does not load: {' '.join(API.errors)}")
        self._context = c.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit(f"it makes no context of {users} x {context} tokens")
        self._vocab_size = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self._model))
        self._batch = c.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._slots: dict[int, Slot] = {}
        self._check(range(min(users, CHECKED_USERS)), min(context, CHECKED_TOKENS))

    def _check(self, users: range, num_tokens: int) -> None:
        """Exits if logits for many tokens and users at once are wrong, unlike for few at a time."""
        prompts = [[*range(user, user + num_tokens)] for user in users]
        alone, every = [], Batch()
        for user in users:
            slot = Slot(prompts[user][:], 1)
            while slot.pending:
                batch = Batch()
                batch.take(user, slot, min(FEW_TOKENS, len(slot.pending)))
                self._decode(batch)
            alone.append(self._logits(len(batch.tokens) - 1).copy())
            API.forget(self._context, user)
        for user in users:
            every.take(user, Slot(prompts[user], 1), num_tokens)
        self._decode(every)
        pairs = zip(alone, map(self._logits, every.outputs), strict=True)
        least = min(float(np.corrcoef(*pair)[0, 1]) for pair in pairs)
        for user in users:
            API.forget(self._context, user)
        if not least > LEAST_CORRELATION:
            raise SystemExit(f"logits of prompts read at once are wrong: correlation {least:.2f}")

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
                API.forget(self._context, user)
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
        failed = c.llama_decode(self._context, target)
        if failed:
            raise SystemExit(f"llama_decode failed with {failed}")

    def _likeliest(self, index: int) -> int:
        return int(np.argmax(self._logits(index)))

    def _logits(self, index: int) -> Any:
        logits = c.llama_get_logits_ith(self._context, index)
        return np.ctypeslib.as_array(logits, shape=(self._vocab_size,))


if __name__ == "__main__":
    API.silence()
    system = c.llama_print_system_info().decode().strip()
    if API.feature not in system:
        raise SystemExit(f"it lacks {API.feature}: {system}")
    options = {"flash": 0, "unified": 0, "cache": "F16"}
    about = {"version": API.version, "system": system}
    main(about, LlamaCpp, users=32, context=256, threads=1, **options)
