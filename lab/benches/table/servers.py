"""Starts the servers of `bench-table`. Servers that cannot start are left out, with the reason."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lab.benches.serve.bench import Workload, served_workload
from lab.benches.table.models import Model
from lab.benches.table.turns import Counts, Server
from lab.peers.install import LLAMA_CPP, NotInstalled, install
from lab.peers.llama_server import llama_server

PLAIN = "plain"
AUTO = "auto"
DYNAMIC_FROM_USERS = 8  # with fewer users there is no batch to wait for
# llama.cpp's lookups, of which the fastest under each load takes part: lookup of n tokens with the
# m that followed, and lookup by statistics. DRAFT_TOKENS are numbers that a draft model proposes.
LOOKUPS = {
    "simple 2, 4": ("ngram-simple", "--spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 4"),
    "simple 3, 3": ("ngram-simple", "--spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 3"),
    "simple 3, 8": ("ngram-simple", "--spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8"),
    "cache": ("ngram-cache", ""),
}
DRAFT_TOKENS = (2, 4, 8)

Settings = dict[str, Any]  # settings of a server, by variable
Servers = Iterator[AbstractContextManager[Server]]


@dataclass(frozen=True, slots=True)
class Form:
    """The properties that all servers of one model share.

    `quantization` may be none, as it must be on CUDA. `tokens` is SPECULATION_TOKENS of servers
    that always draft; `draft` is a draft model, if there is one; `prefix_reuse` says whether a
    repeated prompt is reused instead of computed again.
    """

    model: Model
    quantization: str
    users: int
    context: int
    tokens: int
    draft: Path | None = None
    prefix_reuse: bool = False

    @property
    def is_quantised(self) -> bool:
        return self.quantization != "none"

    @property
    def base(self) -> str:
        """The name of the server that only decodes weights of this form."""
        return self.quantization if self.is_quantised else PLAIN

    @property
    def auto(self) -> str:
        """The name of the server with the scheduler."""
        return f"{self.base}, {AUTO}"

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """The names of the plain, the quantised and the Medusa server, and of both together."""
        return PLAIN, self.base, f"{PLAIN}, medusa", f"{self.base}, medusa"

    def forms(self) -> Servers:
        """Yields the four servers of `labels`, or two without heads or quantisation."""
        plain, quantised, medusa, both = self.labels
        yield self._hearth(plain, "none")
        if self.is_quantised:
            yield self._hearth(quantised, self.quantization)
        for settings in self._medusa():
            yield self._hearth(medusa, "none", settings)
            if self.is_quantised:
                yield self._hearth(both, self.quantization, settings)

    def sources(self) -> Servers:
        """Yields quantised servers: one more without drafts, to show chance, and other sources."""
        yield self._quantised("again", {})
        yield self._quantised("ngram", self._always("ngram"))
        if self.draft is None:
            print(f"{self.model.name}, draft is left out: no draft model is named by --draft")
        else:
            yield self._quantised("draft", self._always("draft") | {"DRAFT_MODEL": self.draft})
        yield self._quantised(AUTO, self._auto())

    def batching(self) -> Servers:
        """Yields a server with dynamic batching, to compare with the quantised one of `forms`."""
        yield self._quantised(
            "BATCHING=dynamic", {"BATCHING": "dynamic"}, least_users=DYNAMIC_FROM_USERS
        )

    def peers(self) -> Servers:
        """Yields llama.cpp's server, plain and with each of its own kinds of drafts."""
        try:
            print(f"llama.cpp: {install(LLAMA_CPP)}", flush=True)
        except NotInstalled as error:
            print(f"llama.cpp is left out, it does not install: {error}", flush=True)
            return
        yield self._llama()
        for name, (kind, options) in LOOKUPS.items():
            yield self._llama(f", lookup ({name})", "--spec-type", kind, *options.split())
        if self.draft is not None:
            draft = ("--spec-type", "draft-simple", "--spec-draft-model", str(self.draft))
            for tokens in DRAFT_TOKENS:
                most = ("--spec-draft-n-max", str(tokens))
                yield self._llama(f", draft ({tokens})", *draft, *most)

    def bound(self, sizes: Sequence[int]) -> Servers:
        """Yields servers without drafts, with the scheduler, and with drafts of each size."""
        yield self._hearth(self.base, self.quantization)
        yield self._quantised(AUTO, self._auto())
        for settings in [*self._medusa(), self._always("ngram")]:
            for size in sizes:
                label = f"{settings['SPECULATION']} {size}"
                yield self._quantised(label, settings | {"SPECULATION_TOKENS": size})

    def unaided(self) -> Servers:
        """Yields servers without drafts, with n-grams wherever they match, and the scheduler."""
        yield self._hearth(self.base, self.quantization)
        yield self._quantised("ngram", self._always("ngram"))
        yield self._quantised(AUTO, self._auto())

    def _always(self, source: str) -> Settings:
        return {"SPECULATION": source, "SPECULATION_TOKENS": self.tokens}

    def _medusa(self) -> Iterator[Settings]:
        """Yields the settings for Medusa, if there are heads."""
        if self.model.heads.is_dir():
            yield self._always("medusa") | {"MEDUSA_HEADS": self.model.heads}
        else:
            print(f"{self.model.name}, medusa is left out: no heads in {self.model.heads}")

    def _auto(self) -> Settings:
        """Returns the settings for the scheduler over all existing sources."""
        settings: Settings = {"SPECULATION": "auto"}
        if self.model.heads.is_dir():
            settings["MEDUSA_HEADS"] = self.model.heads
        if self.draft is not None:
            settings["DRAFT_MODEL"] = self.draft
        return settings

    def _quantised(
        self, name: str, settings: Settings, least_users: int = 1
    ) -> AbstractContextManager[Server]:
        label = f"{self.base}, {name}"
        return self._hearth(label, self.quantization, settings, least_users)

    @contextmanager
    def _hearth(
        self,
        label: str,
        quantization: str,
        settings: Settings | None = None,
        least_users: int = 1,
    ) -> Iterator[Server]:
        """Yields our server. Raises AssertionError if it does not start."""
        own = {
            "USER_ROWS": self.users,
            "MAX_SEQ_LEN": self.context,
            "PREFIX_REUSE": self.prefix_reuse,
        }
        workload = Workload(self.model.name, self.model.fetch(), max_tokens=0, rounds=1)
        with served_workload(workload, quantization, **own, **(settings or {})) as api:
            process = psutil.Process(api.process.pid)
            plain = PLAIN if quantization == "none" else quantization
            yield Server(
                label, plain, api.port, process, lambda streams: Counts.of(api), least_users
            )

    @contextmanager
    def _llama(self, name: str = "", *options: str) -> Iterator[Server]:
        file = self.model.gguf()
        plain = f"llama.cpp {file.stem.rpartition('.')[2]}"
        with llama_server(file, self.users, self.context, options) as (port, process):
            yield Server(plain + name, plain, port, process, Counts.reported)


def started(servers: Servers, stack: ExitStack) -> list[Server]:
    """Starts servers one by one, because some measure at start. Returns those that start."""
    running = []
    for server in servers:
        try:
            running.append(stack.enter_context(server))
        except AssertionError as error:
            print(f"left out, it does not start: {str(error).strip()[-300:]}", flush=True)
    return running
