"""Checks whether a bundle's members can be served here, and computes the memory they take.

It reads only the headers of their files and, like `checkpoint`, does not import torch. The totals
leave out tokenizers and grammars, whose memory is known only after loading.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from inference_api.bundle.sums import FAST_MEMORY, MEMORY, SLOTS, Limit, MemberMemory, Piece, excess
from inference_api.errors import StartupError
from inference_api.loading import checkpoint
from inference_api.loading.config import ModelConfig
from inference_api.loading.drafting import assisted, draft_faults, heads_bytes, known_heads
from inference_api.loading.layout import Tensors
from inference_api.loading.memory import scratch_bytes
from inference_api.loading.options import EngineOptions
from inference_api.loading.settling import kernel_faults, settle
from inference_api.settings import Settings
from inference_api.settings.bundle_file import Bundle, BundleMember
from inference_api.settings.model import ModelSettings

Level = Literal["ERROR", "INFO"]
Reason = Literal[
    "FileInvalid",
    "SourceInvalid",
    "ArchitectureNotSupported",
    "ContextTooLong",
    "HeadsNotFound",
    "VocabulariesDiffer",
    "SpeculativeDecodingPairCompatible",
    "RowsExceeded",
    "RowsSufficient",
    "MemoryExceeded",
    "MemorySufficient",
    "FastMemoryExceeded",
    "FastMemorySufficient",
]


REASONS: Mapping[tuple[str, bool], Reason] = {  # keyed by the limit, and whether it holds
    ("memory_limit", True): "MemorySufficient",
    ("memory_limit", False): "MemoryExceeded",
    ("fast_memory_limit", True): "FastMemorySufficient",
    ("fast_memory_limit", False): "FastMemoryExceeded",
}


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class Finding(_Value):
    level: Level
    reason: Reason
    expert: str | None = Field(None, description="Set if it concerns a single expert.")
    message: str
    need_bytes: int | None = None
    limit_bytes: int | None = None


class Share(_Value):
    need_bytes: int
    limit_bytes: int


class ExpertMemory(_Value):
    """Memory of one loaded expert with its guaranteed rows."""

    name: str
    weights_bytes: int
    cache_bytes_per_row: int
    need_bytes: int


class Utilization(_Value):
    """How much of the limits the experts use whose files could be read."""

    memory: Share
    fast_memory: Share = Field(
        description="For the pinned experts, the largest other one and `scratch_bytes`; on CUDA "
        "each expert takes as much as the largest."
    )
    scratch_bytes: int = Field(description="Scratch memory of a step, at most.")
    rows_needed: int
    rows_limit: int
    experts: list[ExpertMemory]


class Validation(_Value):
    valid: bool
    validations: list[Finding]
    utilization: Utilization | None = Field(description="null if the file cannot be read.")

    @property
    def errors(self) -> list[str]:
        return [each.message for each in self.validations if each.level == "ERROR"]


def invalid_file(error: StartupError) -> Validation:
    """Returns the result for a bundle that could not be read."""
    found = [Finding(level="ERROR", reason="FileInvalid", message=each) for each in error.faults]
    return Validation(valid=False, validations=found, utilization=None)


def check_bundle(bundle: Bundle, settings: Settings) -> Validation:
    """Returns every reason why this bundle cannot be served, and how much of the limits its members
    use. `settings` are the server's; the bundle that they name is ignored."""
    check = _Check(settings)
    taken = [each for member in bundle.members if (each := check.member(member)) is not None]
    check.rows(bundle)
    check.limits(bundle, taken)
    return Validation(
        valid=all(each.level != "ERROR" for each in check.found),
        validations=check.found,
        utilization=_utilization(bundle, settings, taken),
    )


def _utilization(bundle: Bundle, settings: Settings, taken: list[MemberMemory]) -> Utilization:
    fast_memory = _fast_memory(settings)
    return Utilization(
        memory=Share(need_bytes=MEMORY.need(taken), limit_bytes=bundle.memory_limit),
        fast_memory=Share(need_bytes=fast_memory.need(taken), limit_bytes=bundle.fast_memory_limit),
        scratch_bytes=max((each.scratch_bytes for each in taken), default=0),
        rows_needed=sum(each.rows.min for each in bundle.members),
        rows_limit=settings.user_rows,
        experts=[ExpertMemory.model_validate(each, from_attributes=True) for each in taken],
    )


class _Model(NamedTuple):
    """The model of a source that can be served."""

    folder: Path
    config: ModelConfig
    tensors: Tensors


class _Check:
    """Collects findings in `found`. It reads a source that several members share only once."""

    def __init__(self, settings: Settings) -> None:
        self.found: list[Finding] = []
        self._settings = settings
        self._look_at = cache(partial(_look_at, settings.device == "cuda"))

    def member(self, member: BundleMember) -> MemberMemory | None:
        """Returns the memory that a member takes; None if its files cannot be read or served."""
        before = len(self.found)
        settings = self._settings.of_member(member)
        model = self._model(member, settings.model)
        draft, assistant = None, None if model is None else _assistant(settings, model)
        if assistant is not None:
            for fault in assistant[0]:
                self._error("SourceInvalid", member.name, fault)
        elif settings.used_draft_model is not None:
            draft = self._model(member, settings.used_draft_model)
            if model is not None and draft is not None:
                self._compare(member, model, draft)
        if model is None:
            return None
        if member.context is not None and member.context > model.config.max_positions:
            fault = f"context {member.context} > {model.config.max_positions}"
            self._error("ContextTooLong", member.name, f"{fault}; lower it or leave it out.")
        if settings.device == "cuda":
            self._check_on_cuda(member, settings, [model, draft])
        heads = self._heads(member, model)
        if any(each.level == "ERROR" for each in self.found[before:]):
            return None
        if assistant is None:
            return _needs(member, settings, model, draft, heads)
        needs = _needs(member, settings, model._replace(config=assisted(model.config)), None, heads)
        return replace(needs, pieces=(*needs.pieces, assistant[1]))

    def rows(self, bundle: Bundle) -> None:
        faults = bundle.row_faults(self._settings.user_rows)
        for fault in faults:
            self._error("RowsExceeded", None, fault)
        if not faults:
            needed = sum(each.rows.min for each in bundle.members)
            limit = f"limit USER_ROWS={self._settings.user_rows}"
            self._info("RowsSufficient", f"rows.min: need {needed} rows, {limit}.")

    def limits(self, bundle: Bundle, taken: list[MemberMemory]) -> None:
        """Check the limits for the members in `taken`. The total of fast memory leaves out members
        that are too large even alone."""
        if taken:
            self.found.append(_against(MEMORY, taken, bundle.memory_limit))
        limit, limit_bytes = _fast_memory(self._settings), bundle.fast_memory_limit
        alone = {each.name: _against(limit, [each], limit_bytes, each.name) for each in taken}
        self.found += [each for each in alone.values() if each.level == "ERROR"]
        if fitting := [each for each in taken if alone[each.name].level != "ERROR"]:
            self.found.append(_against(limit, fitting, limit_bytes))

    def _model(self, member: BundleMember, source: str) -> _Model | None:
        """Returns the model at `source`; None, with a finding, if it cannot be served."""
        model, faults = self._look_at(source)
        for reason, fault in faults:
            self._error(reason, member.name, fault)
        return model

    def _compare(self, member: BundleMember, model: _Model, draft: _Model) -> None:
        faults = draft_faults(model.folder, draft.folder, draft.config, "draft.source")
        is_recurrent = draft.config.recurrent is not None
        for fault in faults:
            reason: Reason = "ArchitectureNotSupported" if is_recurrent else "VocabulariesDiffer"
            self._error(reason, member.name, fault)
        if not faults:
            message = f"{member.name}: {draft.folder.name} can draft for {model.folder.name}."
            self._info("SpeculativeDecodingPairCompatible", message, member.name)

    def _check_on_cuda(
        self, member: BundleMember, settings: ModelSettings, models: Sequence[_Model | None]
    ) -> None:
        options = EngineOptions.from_settings(settings)
        for model in filter(None, models):
            for fault in settle(model.config, options, model.tensors).faults:
                self._error("ArchitectureNotSupported", member.name, fault)

    def _heads(self, member: BundleMember, model: _Model) -> Path | None:
        """Returns the folder of the Medusa heads; None without heads, or if they are on a hub."""
        heads = member.medusa_heads
        if self._settings.device == "cuda":
            if heads is not None or member.speculation == "medusa":
                fault = "Medusa heads are not there yet for a bundle on CUDA"
                remedy = "leave medusa_heads out and set speculation: off, or set DEVICE=cpu."
                self._error("HeadsNotFound", member.name, f"{fault}; {remedy}")
            return None
        if member.speculation not in ("auto", "medusa"):
            return None
        try:
            folder = known_heads(model.folder, heads)
            is_missing = folder is None and heads is None and member.speculation == "medusa"
        except StartupError:
            folder, is_missing = None, True
        if is_missing:
            fault = f"no Medusa heads in {heads or model.folder}; correct medusa_heads"
            self._error("HeadsNotFound", member.name, f"{fault}, or set speculation: off.")
        return folder

    def _error(self, reason: Reason, name: str | None, fault: str) -> None:
        message = fault if name is None else f"{name}: {fault}"
        self.found.append(Finding(level="ERROR", reason=reason, expert=name, message=message))

    def _info(self, reason: Reason, message: str, name: str | None = None) -> None:
        self.found.append(Finding(level="INFO", reason=reason, expert=name, message=message))


def _against(
    limit: Limit, taken: list[MemberMemory], limit_bytes: int, name: str | None = None
) -> Finding:
    """Returns the finding whether a limit holds for all members, or for the member `name`."""
    need_bytes = limit.need(taken)
    fault = excess(limit, taken, limit_bytes)
    message = fault or f"{limit.key}: need {need_bytes} bytes, limit {limit_bytes}."
    return Finding(
        level="INFO" if fault is None else "ERROR",
        reason=REASONS[limit.key, fault is None],
        expert=name,
        message=message if name is None else f"{name}: {message}",
        need_bytes=need_bytes,
        limit_bytes=limit_bytes,
    )


def _fast_memory(settings: Settings) -> Limit:
    return SLOTS if settings.device == "cuda" else FAST_MEMORY


def _look_at(on_cuda: bool, source: str) -> tuple[_Model | None, list[tuple[Reason, str]]]:
    """Returns the model at a source, or None and the reasons why it cannot be served."""
    try:
        described = checkpoint.describe(source, "source")
    except StartupError as error:
        return None, [("SourceInvalid", fault) for fault in error.faults]
    if described.faults or described.config is None:
        return None, [("SourceInvalid", fault) for fault in described.faults]
    faults = [] if on_cuda else kernel_faults(described.config)
    if faults:
        return None, [("ArchitectureNotSupported", f"{each}; choose another.") for each in faults]
    return _Model(described.folder, described.config, described.tensors), []


def _assistant(settings: ModelSettings, model: _Model) -> tuple[Sequence[str], Piece] | None:
    """Returns the faults and the memory of the model's assistant; None if it has none."""
    source, options = settings.used_draft_model, EngineOptions.from_settings(settings)
    if source is None:
        return None
    key, described = (source, "assistant"), checkpoint.Described(*model, [])
    try:
        found = checkpoint.examined_assistant(described, options, source, "draft.source", True)
    except StartupError as error:
        return error.faults, Piece(key, 0, 0, 0)
    if found is None:
        return None
    faults, footprint = found
    if footprint is None:
        fault = "draft.source: an assistant drafts on the CPU alone; leave it out, or DEVICE=cuda"
        return [*faults, f"{fault}."], Piece(key, 0, 0, 0)
    return faults, Piece(key, footprint.weights_bytes, 0, 0)


def _needs(
    member: BundleMember,
    settings: ModelSettings,
    model: _Model,
    draft: _Model | None,
    heads: Path | None,
) -> MemberMemory:
    options = EngineOptions.from_settings(settings)
    rows = member.rows.min
    pieces = [_piece(model, options, rows)]
    if heads is not None:
        pieces.append(Piece((str(heads.resolve()), "heads"), heads_bytes(heads), 0, 0))
    guesses = 0 if settings.speculation == "off" else settings.speculation_tokens
    outputs = settings.user_rows * (1 + guesses)
    scratch = scratch_bytes(model.config, outputs)
    if draft is not None:
        draft_options = options.of_draft(model.config.context(options.max_seq_len), draft.config)
        pieces.append(_piece(draft, draft_options, rows))
        scratch = max(scratch, scratch_bytes(draft.config, outputs))
    return MemberMemory(member.name, tuple(pieces), member.pinned, scratch)


def _piece(model: _Model, options: EngineOptions, rows: int) -> Piece:
    on_cuda = options.device == "cuda"
    of_rows = options if on_cuda else replace(options, max_rows=1)
    settled = settle(model.config, of_rows, model.tensors)
    footprint = settled.footprint(is_packed_file=True)
    form = settled.options.quantization + " with MTP" * settled.whole.has_mtp
    key = (str(model.folder.resolve()), form)
    cache_bytes = footprint.cache_bytes if on_cuda else footprint.guaranteed_bytes(rows)
    return Piece(key, footprint.weights_bytes, footprint.cache_bytes_per_row, cache_bytes)
