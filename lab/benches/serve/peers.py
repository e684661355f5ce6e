"""Compares our server with the best public engines, in turn, on the same prompts:
`make bench-peers`.

It installs the peers, makes a model with random weights in every format, and lets all contestants
answer the same loads in turn. Ours is the real server over HTTP; the peers run without a server.
Tokens/s are all new tokens over the time from the first request to the last token, prefill
included. Nothing else may use the cores.

A peer that does not install or start, or that ends, is in the table with the reason, and the others
go on. Results are kept in var/bench/peers.jsonl, so that runs can complete earlier ones.
"""

import argparse
import random
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarking.machine import describe_machine
from inference_api.kernels.packing import CACHE_DTYPES
from inference_api.loading.hardware import physical_cores
from lab.peers import report as peer_report
from lab.peers.contest import Contestant, PeerEnded, Prompts, Took, gguf_peers, hearth, peer
from lab.peers.install import LLAMA_CPP, OPENVINO, RECIPES, VLLM, NotInstalled, Recipe, install
from lab.peers.models import NAMES, gguf_model, model_folder, openvino_model
from lab.peers.report import Cell, Measurement

GGUF_TYPES = {"int8": "Q8_0", "int4": "Q4_0"}
BFLOAT16 = "bfloat16"
BYTE_IDS = 256  # token ids of the model's tokenizer that are text
MOST_IDLE_SHARE = 0.02  # largest share of a run's time that waiting contestants may take


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of every user, sent `rounds` times in a row."""

    name: str
    users: int
    prompt_tokens: int
    max_tokens: int
    rounds: int = 1

    def prompts(self, seed: int) -> Prompts:
        """Returns random ids, different for each request and `seed`: no prefix cache helps."""
        draw = random.Random(f"{self.name} {seed}").choices
        ids = range(BYTE_IDS)
        return [
            [draw(ids, k=self.prompt_tokens) for _ in range(self.rounds)] for _ in range(self.users)
        ]

    @property
    def is_long(self) -> bool:
        """Whether one measurement is enough."""
        return self.prompt_tokens > 1024

    @property
    def counted_tokens(self) -> int:
        """Returns the tokens that tokens/s counts: new ones, or prompt tokens if one is new."""
        each = self.prompt_tokens if self.max_tokens == 1 else self.max_tokens
        return self.users * self.rounds * each


LOADS = {
    "1": Load("1 user", 1, 128, 64, rounds=3),
    "8": Load("8 users", 8, 128, 64),
    "32": Load("32 users", 32, 128, 64),
    "prefill": Load("prefill of 1,024", 1, 1024, 1, rounds=2),
    "prefill-512": Load("prefill of 512", 1, 512, 1, rounds=2),
    "prefill-8192": Load("prefill of 8,192", 1, 8192, 1),
    "long": Load("32 users, 1,500 in", 32, 1500, 64),
}
FORMS = {  # form of weights -> our settings, and llama.cpp's type
    "int8": ({"QUANTIZATION": "int8"}, GGUF_TYPES["int8"]),
    "int4": ({"QUANTIZATION": "int4"}, GGUF_TYPES["int4"]),
    BFLOAT16: ({"DTYPE": BFLOAT16}, "BF16"),
}
FILE_TYPES = ("Q4_K_M", "Q8_0", "Q4_0", "IQ4_XS")  # types of GGUF files that all read


def main() -> None:
    arguments = _arguments()
    if arguments.chart:
        arguments.chart.write_text(peer_report.chart())
        return
    print(describe_machine("torch", "gunicorn"))
    left_out: dict[str, str] = {}
    llama = replace(LLAMA_CPP, arguments=tuple(arguments.llama_options.split()))
    recipes = list(installed(arguments.peers, left_out))
    recipes = [llama if each is LLAMA_CPP else each for each in recipes]
    loads = contests(arguments.loads)
    # SIGTERM ends the bench like Ctrl-C, so that its servers end, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    for name, form, model in _models(arguments):
        for together in loads:
            with TemporaryDirectory() as logs, ExitStack() as stack:
                starts = _contestants(model, form, recipes, together, Path(logs), arguments)
                contest = Contest(stack, starts, left_out)
                for load in together:
                    cell = Cell(name, _form(form, arguments), load.name)
                    measured = contest.measure(load, 1 if load.is_long else arguments.times)
                    print(peer_report.keep(cell, describe_machine("torch"), measured), flush=True)
    print(peer_report.table())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure our server beside the best public ones.")
    parser.add_argument("--models", nargs="+", choices=NAMES, default=["110m", "1.1b"])
    parser.add_argument(
        "--quantizations", nargs="+", choices=(*FORMS, *FILE_TYPES), default=list(GGUF_TYPES)
    )
    parser.add_argument(
        "--files",
        nargs="+",
        type=Path,
        help="NAME.TYPE.gguf in place of models",
    )
    parser.add_argument(
        "--loads",
        nargs="+",
        choices=LOADS,
        default=["1", "8", "32", "prefill"],
        help="users or kind",
    )
    parser.add_argument("--peers", nargs="*", choices=RECIPES, default=list(RECIPES))
    parser.add_argument(
        "--llama-options", default="", help='of lab.peers.llama_cpp, "--flash 1" say'
    )
    parser.add_argument("--times", type=int, default=3, help="alternations (one of long prompts)")
    parser.add_argument(
        "--kv-cache-dtype", choices=("auto", *CACHE_DTYPES), default="auto", help="of ours"
    )
    parser.add_argument("--chart", type=Path, help="only draw what is kept, into this SVG file")
    return parser.parse_args()


def contests(names: Sequence[str]) -> list[list[Load]]:
    """Returns the loads of one user, for which ik_llama.cpp uses flash attention, and of several.
    Contestants start anew for each group."""
    loads = [LOADS[name] for name in names]
    one, several = ([each for each in loads if (each.users > 1) is many] for many in (False, True))
    return [together for together in (one, several) if together]


def installed(names: Sequence[str], left_out: dict[str, str]) -> Iterator[Recipe]:
    """Yields the peers that install. Adds the reasons of others to `left_out`."""
    for name in names:
        try:
            print(f"{name}: {install(RECIPES[name])}", flush=True)
            yield RECIPES[name]
        except NotInstalled as error:
            left_out[name] = f"it does not install: {error}"
            print(f"{name} is left out, {left_out[name]}", flush=True)


def _models(arguments: argparse.Namespace) -> Iterator[tuple[str, str, Path]]:
    """Yields names and forms of weights, with files or folders."""
    for file in arguments.files or ():
        name, _, form = file.stem.rpartition(".")
        yield name, form, file.absolute()
    for name in arguments.models if arguments.files is None else ():
        for form in arguments.quantizations:
            folder = model_folder(name)
            yield name, form, folder if form in FORMS else gguf_model(folder, form)


def _contestants(
    model: Path,
    form: str,
    recipes: Sequence[Recipe],
    loads: Sequence[Load],
    logs: Path,
    arguments: argparse.Namespace,
) -> Iterator[AbstractContextManager[Contestant]]:
    users = max(load.users for load in loads)
    longest = max(load.prompt_tokens + load.max_tokens for load in loads)
    context = -(-longest // 64) * 64
    options = ("--users", str(users), "--context", str(context))
    settings, gguf_type = FORMS.get(form, ({}, form))
    ours = {**settings, "KV_CACHE_DTYPE": arguments.kv_cache_dtype}
    yield hearth(_form(form, arguments), model, users, context, logs / "ours", ours)

    def file() -> Path:
        return gguf_model(model, gguf_type) if model.is_dir() else model

    yield from gguf_peers(recipes, file, gguf_type, options, logs)
    if OPENVINO in recipes and form in GGUF_TYPES:
        yield peer(
            f"OpenVINO {form}",
            OPENVINO,
            lambda: [str(openvino_model(model, form)), "--threads", str(physical_cores())],
            logs / "openvino",
        )
    if VLLM in recipes and form == BFLOAT16:
        yield peer("vLLM bfloat16", VLLM, lambda: [str(model), *options], logs / "vllm")


def _form(form: str, arguments: argparse.Namespace) -> str:
    """Returns the form of our weights and, if it is not `auto`, of our KV cache."""
    cache = arguments.kv_cache_dtype
    return form if cache == "auto" else f"{form}, KV cache {cache}"


class Contest:
    """The running contestants, and why others do not run. A peer that ends takes no more part."""

    def __init__(
        self,
        stack: ExitStack,
        starts: Iterable[AbstractContextManager[Contestant]],
        left_out: Mapping[str, str],
    ) -> None:
        self.running: list[Contestant] = []
        self.reasons = dict(left_out)
        for each in starts:
            with self._going_on():
                self.running.append(stack.enter_context(each))

    def measure(self, load: Load, times: int) -> list[Measurement]:
        """Returns tokens/s of `turns`, and the reasons of contestants that do not run."""
        turns = self.turns(load, times)
        measured = [
            Measurement(
                each.name,
                each.about,
                [load.counted_tokens / took.seconds for took in turns[each.name]],
            )
            for each in self.running
        ]
        return measured + [Measurement(name, why, []) for name, why in self.reasons.items()]

    def turns(self, load: Load, times: int) -> dict[str, list[Took]]:
        """Runs a load `times` times in turn, after a short run of each contestant that warms it up.
        Returns the turns by contestant."""
        turns: dict[str, list[Took]] = {each.name: [] for each in self.running}
        for each in [*self.running]:
            with self._going_on():
                each.run([[list(range(16))]] * load.users, 2)
        for turn in range(times):
            prompts = load.prompts(turn)
            for each in [*self.running]:
                with self._going_on():
                    turns[each.name].append(self._run(each, prompts, load.max_tokens))
        return turns

    def _run(self, each: Contestant, prompts: Prompts, max_tokens: int) -> Took:
        others = [other for other in self.running if other is not each]
        before_s = sum(other.cpu_s() for other in others)
        took = each.run(prompts, max_tokens)
        others_s = sum(other.cpu_s() for other in others) - before_s
        if others_s > MOST_IDLE_SHARE * took.seconds:
            print(f"not quiet: others took {others_s:.2f} s in {took.seconds:.2f} s of {each.name}")
        return took

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except PeerEnded as error:
            print(f"{error.name} takes no further part: {error}", flush=True)
            self.reasons[error.name] = str(error)
            self.running = [each for each in self.running if each.name != error.name]
