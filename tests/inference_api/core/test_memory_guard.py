"""Where the machine's memory runs out, what is kept for later prompts is given up."""

from inference_api.core.batching import Batching
from inference_api.core.input_queue import InputQueue
from inference_api.core.residents import LOW_MEMORY_BYTES, MEMORY_LOOKS_S, FixedModels
from tests.inference_api.core.test_decode_backend import NAME, Loop


def test_half_of_what_is_cached_goes_at_every_look_while_memory_is_low() -> None:
    loop = Loop(rows=2, context=1024, chunk=1000)
    for number in range(16):
        loop.submit(f"{number:02} " * 20, max_tokens=1)
        loop.step(3)
    (model,) = loop.backend.models.values()
    pages = model.rows.pages
    assert pages.counts.cached >= 16
    free_bytes: list[int | None] = [LOW_MEMORY_BYTES]
    queue = InputQueue(8, {NAME: 2})
    models = FixedModels([model], queue, Batching.of(loop.backend.settings), lambda: free_bytes[-1])
    cached = [pages.counts.cached]
    for look in range(3):
        models.turn(look * MEMORY_LOOKS_S)
        cached.append(pages.counts.cached)
    assert cached[1] == cached[0]  # as much as that is not little
    free_bytes.append(LOW_MEMORY_BYTES - 1)
    models.turn(2.5 * MEMORY_LOOKS_S)  # too early for a look
    assert pages.counts.cached == cached[0]
    for look in (3, 4):
        models.turn(look * MEMORY_LOOKS_S)
        cached.append(pages.counts.cached)
    assert cached[-2:] == [cached[0] // 2, cached[0] // 4]
    free_bytes.append(None)  # not known
    models.turn(5 * MEMORY_LOOKS_S)
    assert pages.counts.cached == cached[-1]
