"""Who takes turns in `bench-table`; what cannot start here is left out, with the reason."""

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
DYNAMIC_FROM_USERS = 8  # with fewer there is no batch to wait for
# llama.cpp's drafts, of which the fastest under each load takes part: its lookup of n tokens with
# the m that followed, its lookup by statistics, and how many tokens a draft model proposes.
LOOKUPS = {
    "simple 2, 4": ("ngram-simple", "--spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 4"),
    "simple 3, 3": ("ngram-simple", "--spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 3"),
    "simple 3, 8": ("ngram-simple", "--spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8"),
    "cache": ("ngram-cache", ""),
}
DRAFT_TOKENS = (2, 4, 8)

Settings = dict[str, Any]  # of a server, by the names of its variables
Servers = Iterator[AbstractContextManager[Server]]


@dataclass(frozen=True, slots=True)
class Form:
    """What all servers of one model have in common.

    `quantization` may be none, as it has to be on CUDA. `tokens`: SPECULATION_TOKENS of those that
    always draft; `draft`: a draft model, if there is one; `prefix_reuse`: whether a prompt that
    comes again is computed again.
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
        """What the server is called that does nothing but decode weights of this form."""
        return self.quantization if self.is_quantised else PLAIN

    @property
    def auto(self) -> str:
        """What the scheduler's server is called."""
        return f"{self.base}, {AUTO}"

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """Plain, quantised, Medusa, both."""
        return PLAIN, self.base, f"{PLAIN}, medusa", f"{self.base}, medusa"

    def forms(self) -> Servers:
        """The four of `labels`, or two where there are no heads or nothing is quantised."""
        plain, quantised, medusa, both = self.labels
        yield self._hearth(plain, "none")
        if self.is_quantised:
            yield self._hearth(quantised, self.quantization)
        for settings in self._medusa():
            yield self._hearth(medusa, "none", settings)
            if self.is_quantised:
                yield self._hearth(both, self.quantization, settings)

    def sources(self) -> Servers:
        """Quantised, without drafts again, which differs by chance, and with what else drafts."""
        yield self._quantised("again", {})
        yield self._quantised("ngram", self._always("ngram"))
        if self.draft is None:
            print(f"{self.model.name}, draft is left out: no draft model is named by --draft")
        else:
            yield self._quantised("draft", self._always("draft") | {"DRAFT_MODEL": self.draft})
        yield self._quantised(AUTO, self._auto())

    def batching(self) -> Servers:
        """Beside the quantised one of `forms`, whose batching is continuous."""
        yield self._quantised(
            "BATCHING=dynamic", {"BATCHING": "dynamic"}, least_users=DYNAMIC_FROM_USERS
        )

    def peers(self) -> Servers:
        """llama.cpp's server, plain and with each of its own drafts."""
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
        """Without drafts, with the scheduler's, and with drafts of each of `sizes` tokens."""
        yield self._hearth(self.base, self.quantization)
        yield self._quantised(AUTO, self._auto())
        for settings in [*self._medusa(), self._always("ngram")]:
            for size in sizes:
                label = f"{settings['SPECULATION']} {size}"
                yield self._quantised(label, settings | {"SPECULATION_TOKENS": size})

    def unaided(self) -> Servers:
        """Without drafts, with n-grams wherever they match, and with the scheduler's."""
        yield self._hearth(self.base, self.quantization)
        yield self._quantised("ngram", self._always("ngram"))
        yield self._quantised(AUTO, self._auto())

    def _always(self, source: str) -> Settings:
        return {"SPECULATION": source, "SPECULATION_TOKENS": self.tokens}

    def _medusa(self) -> Iterator[Settings]:
        """Once, where there are heads."""
        if self.model.heads.is_dir():
            yield self._always("medusa") | {"MEDUSA_HEADS": self.model.heads}
        else:
            print(f"{self.model.name}, medusa is left out: no heads in {self.model.heads}")

    def _auto(self) -> Settings:
        """The scheduler over every source there is."""
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
        """Ours. Raises AssertionError when it does not start."""
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
    """All that start, one after the other, as what some of them measure then needs quiet."""
    running = []
    for server in servers:
        try:
            running.append(stack.enter_context(server))
        except AssertionError as error:
            print(f"left out, it does not start: {str(error).strip()[-300:]}", flush=True)
    return running
