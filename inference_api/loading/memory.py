"""Computes from descriptions whether models fit into memory. Allocates nothing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from inference_api.kernels.packing import FLOAT_BITS, Bits, cache_dtype
from inference_api.loading.config import PAGE_TOKENS, SPARE_SLOTS, ModelConfig
from inference_api.loading.layout import parameter_forms, torch_forms, whole_panels
from inference_api.loading.options import EngineOptions
from inference_api.loading.packing.layout import PackedLayout
from inference_api.loading.page_groups import PageGroup, bytes_of_pages, page_groups
from inference_api.runner import PageLayout

STEP_TOKENS = 512  # tokens of a step that the kernels process at once; see `src/step.cpp`
EXPERT_ROWS = 4096  # rows of experts that the kernels process at once; see `src/experts.cpp`
FLOAT_BYTES = 4
GUARANTEED_TOKENS = 2048  # room of each guaranteed row of an expert, at most its context
LEAST_TOKENS = 512  # least room in tokens, of all rows together, to start a server with
SLOT_ALIGNMENT = 512  # bytes; CUDA aligns its own allocations like this
MIB, GIB = 1024**2, 1024**3
DRAFT = "'s draft model"  # follows the name of the model that it drafts for


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory that one model takes when loaded."""

    weights_bytes: int
    page_bytes: int
    num_pages: int  # for all rows
    rows: int
    context_tokens: int
    groups: Sequence[PageGroup] = (PageGroup(None, ()),)
    log_bytes: int = 0  # logs of recurrent layers about a row's guesses
    state_bytes: int = 0  # recurrent state of a row

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        options: EngineOptions,
        bits: Bits | None,
        is_packed_file: bool = False,
        most_pages: int | None = None,
        by_torch: bool = False,
    ) -> Self:
        """Returns the footprint of a model. `options.dtype` is not auto; without `bits`, weights
        are not packed.

        With `is_packed_file`, weights take the size of the file. `most_pages` bounds the pages; all
        rows may need fewer.
        """
        max_rows, context = options.max_rows, config.context(options.max_seq_len)
        if by_torch or bits is None:
            dtype, num_slots = options.dtype, context + SPARE_SLOTS
            groups: Sequence[PageGroup] = [PageGroup(None, range(config.num_layers))]
            kept = replace(config, latent=None)  # torch caches the keys and values of latents
        else:
            dtype = cache_dtype(options.kv_cache_dtype, bits, config.latent is not None)
            num_slots, groups, kept = context, page_groups(config, context), config
        page_bytes = bytes_of_pages(kept, groups, dtype)
        weights_bytes = weights_size(config, options.dtype, bits, is_packed_file, by_torch)
        state_bytes = FLOAT_BYTES * config.state_floats
        log_bytes = FLOAT_BYTES * config.log_floats * options.num_guesses
        of_row = (log_bytes, state_bytes)
        unlimited = cls(weights_bytes, page_bytes, 0, max_rows, context, groups, *of_row)
        count = max_rows * unlimited.layout.row_pages(num_slots)
        if most_pages is not None:
            count = min(count, most_pages)
        return replace(unlimited, num_pages=count)

    @property
    def layout(self) -> PageLayout:
        windows = [each.window for each in self.groups]
        return PageLayout(
            *(self.num_pages, PAGE_TOKENS, self.page_bytes),
            windows=windows,
            state_pages=-(-self.state_bytes // self.page_bytes),
        )

    @property
    def least_pages(self) -> int:
        """Returns the fewest pages that a server can start with."""
        of_rows = self.rows * len(self.groups)
        return min(self.num_pages, max(of_rows, self.layout.row_pages(LEAST_TOKENS)))

    def beside(self, num_bytes: int) -> Self:
        """Returns the footprint with `num_bytes` more of weights."""
        return replace(self, weights_bytes=self.weights_bytes + num_bytes)

    def within(self, cache_bytes: int | None) -> Self:
        """Returns the footprint with as many pages as fit into `cache_bytes`; None: the fewest."""
        count = self.least_pages if cache_bytes is None else self.pages_within(cache_bytes)
        return replace(self, num_pages=min(count, self.num_pages))

    def pages_within(self, cache_bytes: int) -> int:
        """Returns how many pages fit into `cache_bytes` besides the recurrent states."""
        count = (cache_bytes - self.rows * self.log_bytes) // self.page_bytes
        return max(count - self.rows * self.layout.state_pages, 0)

    @property
    def room_tokens(self) -> int:
        """Returns how many tokens all pages hold, before windows free any."""
        return self.num_pages // len(self.groups) * PAGE_TOKENS

    @property
    def cache_bytes(self) -> int:
        num_pages = self.num_pages + self.rows * self.layout.state_pages
        return num_pages * self.page_bytes + self.rows * self.log_bytes

    @property
    def cache_bytes_per_row(self) -> int:
        return self.cache_bytes // self.rows

    @property
    def row_bytes(self) -> int:
        """Returns what a row takes besides its pages."""
        return self.layout.state_pages * self.page_bytes + self.log_bytes

    def guaranteed_pages(self, rows: int) -> int:
        """Returns how many pages `rows` rows need at up to GUARANTEED_TOKENS tokens each, or one
        with the whole context, if that is more."""
        of_row = self.num_pages // self.rows
        return max(of_row, rows * min(of_row, self.layout.row_pages(GUARANTEED_TOKENS)))

    def guaranteed_bytes(self, rows: int) -> int:
        """Returns the bytes of `guaranteed_pages`, and of what each row takes besides."""
        return self.guaranteed_pages(rows) * self.page_bytes + rows * self.row_bytes

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes


def cache_shares(footprints: Sequence[Footprint]) -> list[float]:
    """Returns the shares of KV_CACHE_MEMORY that a model and its draft model get, so that both have
    room for the same number of tokens, before windows free any."""
    sizes = [min(each.num_pages, len(each.groups)) * each.page_bytes for each in footprints]
    return [size / max(sum(sizes), 1) for size in sizes]


def cache_faults(
    footprints: Sequence[Footprint], cache_bytes: int | None, shares: Sequence[float]
) -> list[str]:
    """Returns a fault if these shares of KV_CACHE_MEMORY, `cache_bytes`, are too little to start
    with."""
    if cache_bytes is None:
        return []
    least = [
        needed.within(None).cache_bytes / share
        for needed, share in zip(footprints, shares, strict=True)
        if needed.pages_within(int(cache_bytes * share)) < needed.least_pages
    ]
    if not least:
        return []
    least_mib = math.ceil(10 * max(least) / MIB) / 10
    return [
        f"KV_CACHE_MEMORY: {cache_bytes / MIB:.1f} MiB are too few to serve with, at least "
        f"{least_mib:.1f} MiB are needed; raise KV_CACHE_MEMORY, or lower USER_ROWS."
    ]


def all_within(footprints: Sequence[Footprint], cache_bytes: int | None) -> list[Footprint]:
    """Returns the footprints of a model and its draft model, if KV_CACHE_MEMORY is `cache_bytes`;
    None: with the fewest pages."""
    if cache_bytes is None:
        return [each.within(None) for each in footprints]
    shares = cache_shares(footprints)
    return [
        each.within(int(cache_bytes * share))
        for each, share in zip(footprints, shares, strict=True)
    ]


def weights_size(
    config: ModelConfig,
    dtype: str,
    bits: Bits | None,
    is_packed_file: bool = False,
    by_torch: bool = False,
) -> int:
    """Returns the bytes of a model's weights, or of their packed file; see `Footprint.of`."""
    dtype_bytes = FLOAT_BITS[dtype] // 8
    if is_packed_file:
        return PackedLayout.of(config, dtype_bytes, bits, by_torch).file_bytes
    forms = (torch_forms if by_torch else parameter_forms)(config, dtype_bytes, bits)
    return sum(form.num_bytes for form in forms.values())


def slot_bytes(weights_bytes: int, cache_bytes: int) -> int:
    """Returns the bytes of a slot that weights and a cache take, each aligned to SLOT_ALIGNMENT."""
    return sum(-(-size // SLOT_ALIGNMENT) * SLOT_ALIGNMENT for size in (weights_bytes, cache_bytes))


def scratch_bytes(config: ModelConfig, num_outputs: int) -> int:
    """Returns an upper bound of the memory that a step of the kernels takes besides weights and
    cache, with `num_outputs` rows of logits. Models of a process step in turn and share it."""
    shapes, mixture = config.layer_shapes, config.mixture
    shared_ffn_size = 0 if mixture is None else mixture.shared_ffn_size
    queries = config.num_heads * max(shape.head_dim for shape in shapes)
    token_floats = (
        max(config.qkv_size(shape) for shape in shapes)  # queries, keys and values
        + 2 * queries  # attention's outputs, then prepared for products
        + 3 * config.hidden_size  # the residual, and its norm for attention and for the MLP
        + config.has_output_norms * config.hidden_size  # outputs normalised before they are added
        + max(shared_ffn_size, *(shape.ffn_size for shape in shapes))
        + 2 * config.layer_inputs_size  # the vectors that layers read besides the residual
        + 2 * config.layer_input_size
        + 2 * max(shape.ffn_size * (shape.gate_cutoff is not None) for shape in shapes)
    )
    if config.num_streams > 1:  # all streams, also prepared for products, and a result for one
        token_floats += (2 * config.num_streams + 1) * config.hidden_size
    recurrent = config.recurrent
    if recurrent is not None:  # inputs and outputs of mixers, outputs also prepared for products
        token_floats += recurrent.in_floats + 2 * recurrent.out_columns
        token_floats += recurrent.step_rows + recurrent.gate_rank
    latent = config.latent
    if latent is not None:  # latents of queries, and each head's vectors before and after latents
        rows = max(whole_panels(config.head_dim), latent.kv_rank)  # inputs of a head's matrices
        of_head = config.rotary_dim + 2 * latent.kv_rank + rows + latent.value_dim
        token_floats += 2 * (latent.query_rank or 0) + config.num_heads * of_head
    floats = STEP_TOKENS * token_floats + num_outputs * config.vocab_size
    if mixture is not None:
        rows = max(EXPERT_ROWS, mixture.experts_per_token)
        routed = 2 * config.hidden_size + 2 * mixture.num_experts  # norms, logits and their powers
        routed += mixture.has_own_norms * config.hidden_size
        routed += 2 * mixture.latent_size  # experts' inputs and outputs, prepared for products
        floats += STEP_TOKENS * routed + rows * (config.hidden_size + mixture.ffn_size)
    return FLOAT_BYTES * floats


def memory_faults(footprints: Mapping[str, Footprint], available_bytes: int | None) -> list[str]:
    """Returns a fault if these models, by name, do not fit together into free memory."""
    needed_bytes = sum(each.total_bytes for each in footprints.values())
    if available_bytes is None or needed_bytes <= available_bytes:
        return []
    if len(footprints) == 1:
        [footprint] = footprints.values()
        return [_fault_of_one(footprint, available_bytes)]
    shares = [
        f"{name} {each.weights_bytes / GIB:.2f} GiB of weights and {each.cache_bytes / GIB:.2f} "
        f"GiB of KV cache ({each.room_tokens} tokens)"
        for name, each in footprints.items()
    ]
    remedy = "in MODELS lower kv_cache_memory, set quantization to int8, or serve fewer models"
    if any(name.endswith(DRAFT) for name in footprints):
        remedy = "name a smaller DRAFT_MODEL or none, lower KV_CACHE_MEMORY, set QUANTIZATION=int8"
    return [
        f"Memory: {', '.join(shares)} take {needed_bytes / GIB:.2f} GiB together, but only "
        f"{available_bytes / GIB:.2f} GiB are free, {(needed_bytes - available_bytes) / GIB:.2f} "
        f"GiB too few; {remedy}."
    ]


def _fault_of_one(needed: Footprint, available_bytes: int) -> str:
    remedy = "choose a smaller model or, if not yet set, QUANTIZATION=int8 or DTYPE=bfloat16"
    if needed.weights_bytes < available_bytes:
        remedy = "lower KV_CACHE_MEMORY; on CUDA or in a bundle USER_ROWS or MAX_SEQ_LEN"
    return (
        f"Memory: the weights take {needed.weights_bytes / GIB:.2f} GiB and the KV cache of "
        f"{needed.room_tokens} tokens {needed.cache_bytes / GIB:.2f} GiB, but only "
        f"{available_bytes / GIB:.2f} GiB are free; {remedy}."
    )
