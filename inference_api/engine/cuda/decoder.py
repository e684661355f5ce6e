"""A decoder-only transformer over a static KV cache. Decode thread only.

One path serves every family: families differ only in the data of `ModelConfig`. Steps have a few
fixed shapes, and everything that they depend on is on the device, so that they can be recorded. A
row's numbers depend on that row alone, bit for bit: no operation mixes rows, and matrix products
whose order of summation depends on the number of rows always get the same number of them.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.cuda import graphs
from inference_api.engine.cuda.draws import DRAWS, Plan, lines_of
from inference_api.engine.cuda.inputs import Lines, absent, prompt_inputs, token_inputs
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.engine.cuda.latent import latent_out, latent_qkv
from inference_api.engine.cuda.mlp import CpuExperts, Mixture, Mlp, make_mlp
from inference_api.engine.cuda.ops import (
    IDS,
    LOGITS,
    MAX_PRODUCT_TOKENS,
    NUM_LINES,
    POSITIONS,
    PROMPT_LINES,
    STATES,
    STEP_LINES,
    Affine,
    LayerHeads,
    Operations,
    TokenOperations,
)
from inference_api.engine.cuda.panels import Panels
from inference_api.engine.cuda.parameters import Linear, TorchParameters, summed
from inference_api.kernels.interface import Floats
from inference_api.loading.config import ModelConfig
from inference_api.loading.layout import EMBEDDING, HEAD
from inference_api.runner import RowStep

logger = logging.getLogger(__name__)

PROMPT_SIZES = {64: 1, 256: 65, 1024: 1024}
"""Numbers of prompt tokens in a step, and for each the fewest tokens left that it is padded for. Up
to 256 tokens, reading the weights takes longer than multiplying; beyond, padding costs time."""

NO_EXPERTS: Mapping[int, CpuExperts] = MappingProxyType({})
MAX_GUESSED_TOKENS = 32
"""Most tokens of a step with room for guesses: reading weights takes longer than so few tokens."""


class TorchOutputs(NamedTuple):
    """The outputs of a step: see `cpu.decoder.Outputs`."""

    logits: Tensor  # float32
    hidden: Sequence[Tensor | None]


@dataclass(frozen=True, slots=True)
class Layer:
    """The parameters of one layer."""

    attention_norm: Affine | None
    qkv: Linear  # [heads * head_dim of queries, then of keys, then of values, hidden]
    heads: LayerHeads
    out: Linear
    attention_output_norm: Affine | None
    mlp_norm: Affine | None
    mlp: Mlp | Mixture | CpuExperts
    mlp_output_norm: Affine | None


class Decoder:
    """Decodes with torch, step by step.

    Tokens that draw run in steps of one size, or of any size if that changes no bit. A token thus
    has the same bits whatever else is in its step, and whether or not it was drafted. Prompt tokens
    have the same bits if their prompt is always cut in the same way.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: TorchParameters,
        cache: TorchCache,
        ops: Operations,
        num_guesses: int = 0,
        on_cpu: Mapping[int, CpuExperts] = NO_EXPERTS,
    ) -> None:
        """`num_guesses` is the most guesses of a row in a step, which has room for all of them if
        rows are few. `on_cpu` has the experts that layers use instead of an MLP, by layer."""
        self._config = config
        self._spare_slot = cache.capacity - 1  # see `SPARE_SLOTS`
        max_rows = cache.entries.shape[1]
        self._num_tokens = max(max_rows, min(max_rows * (1 + num_guesses), MAX_GUESSED_TOKENS))
        self._product_rows = self._num_tokens
        if parameters.panels and ops.is_of_any_size and config.mixture is None:
            self._num_tokens, self._product_rows = MAX_PRODUCT_TOKENS, 0
        most = self._num_tokens
        self._sizes = graphs.token_sizes(most) if ops.is_of_any_size else [most]
        self._ops, self._like = ops, cache.entries
        parameters = replace(parameters, multiply=ops.multiply)
        if config.has_ends:
            self._embedding = parameters.panels.get(EMBEDDING) or parameters.tensors[EMBEDDING]
            self._head = parameters.linear(HEAD)
        # Rounded to the model's precision, as in Gemma's training.
        self._embedding_multiplier = self._like.new_tensor(config.embedding_multiplier)
        self._layers = [
            _layer(
                config,
                parameters,
                i,
                on_cpu.get(i) or make_mlp(config, parameters, i, ops.gate, self._num_tokens),
            )
            for i in range(config.num_layers)
        ]
        self._final_norm = _affine(parameters, "final_norm")
        sizes = (config.vocab_size,), (config.hidden_size,), ()
        self._nothing = [torch.empty(0, *size, device=self._like.device) for size in sizes]
        self.prepare(graphs.step_lengths(cache.max_seq_len))

    def prepare(self, lengths: Sequence[int]) -> None:
        """Make the steps. They read the cache up to each of `lengths`, which ascend: the last holds
        the longest sequence."""
        of_tokens = lengths[-1:] if self._ops.is_of_any_size else lengths
        self._of_tokens = [
            self._step(self._token_outputs, STEP_LINES, size, of_tokens) for size in self._sizes
        ]
        self._of_prompts = {
            size: self._step(
                self.prompt_states, PROMPT_LINES, size, [each for each in lengths if each >= least]
            )
            for size, least in PROMPT_SIZES.items()
            if least <= lengths[-1]
        }

    def _step(
        self, forward: graphs.LengthForward, num_lines: int, num_tokens: int, lengths: Sequence[int]
    ) -> graphs.FixedStep:
        inputs = absent(num_lines, num_tokens, self._spare_slot)
        draws = DRAWS if num_lines == STEP_LINES else ()
        return graphs.FixedStep(forward, inputs, lengths, self._like.device, draws)

    @property
    def _steps(self) -> Sequence[graphs.FixedStep]:
        return [*self._of_tokens, *self._of_prompts.values()]

    def record(self, capture: graphs.Capture) -> None:
        """Record the steps. If that fails, they run unrecorded, and a warning is logged."""
        if self._config.mixture is not None:  # see `Mixture`
            return
        try:
            for step in self._steps:
                step.record(capture)
        except RuntimeError as error:
            logger.warning(
                "steps cannot be captured as CUDA graphs and are launched operation by operation, "
                "which is slower: %s",
                error,
            )

    def try_out(self, row: RowStep) -> None:
        """Run a step with this row alone, so that its kernels are compiled."""
        self.forward([row])

    def forward(self, rows: Sequence[RowStep]) -> TorchOutputs:
        """See `KernelDecoder`."""
        logits, hidden = self._outputs(rows, [LOGITS])
        return TorchOutputs(logits[0], hidden)

    def draw(
        self, rows: Sequence[RowStep], plan: Plan
    ) -> tuple[Sequence[int], Sequence[Tensor | None]]:
        """Like `forward`, but returns token ids instead of logits; -1 where `sampler` must draw."""
        wanted = sorted({*plan.outputs})
        ways = None if plan.numbers is None else lines_of(plan.numbers)
        drawn, hidden = self._outputs(rows, wanted, ways)
        by_output = {each: tokens.tolist() for each, tokens in zip(wanted, drawn, strict=True)}
        return [by_output[each][draw] for draw, each in enumerate(plan.outputs)], hidden

    def _outputs(
        self, rows: Sequence[RowStep], of_draws: Sequence[int], ways: Lines | None = None
    ) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
        """Returns the outputs `of_draws` for every draw, and hidden states for rows that ask for
        them. `ways` says how to draw. Prompt tokens that draw nothing run first, in steps of their
        own; the few that a draft model still has to catch up on join the step."""
        firsts = [
            each.num_undrawn if not each.draws or each.num_undrawn > self._num_tokens else 0
            for each in rows
        ]
        counts = [len(row.token_ids) - first for row, first in zip(rows, firsts, strict=True)]
        num_tokens = sum(counts)
        wants_hidden = any(each.wants_hidden for each in rows)
        wanted = [*of_draws, STATES] if wants_hidden else of_draws
        drawing: Sequence[int] | slice = slice(None)
        if sum([len(each.draws) for each in rows]) < num_tokens:
            ends = zip(rows, accumulate(counts), strict=True)
            drawing = [at for row, end in ends for at in range(end - len(row.draws), end)]
        inputs = token_inputs(rows, firsts)
        if ways is not None:
            inputs[NUM_LINES:, drawing] = ways
        before, outputs = self._computed(rows, firsts, wanted, inputs)
        drawn = [each[drawing] for each in outputs[: len(of_draws)]]
        if not wants_hidden:
            return drawn, [None] * len(rows)
        return drawn, [
            torch.cat([*first, rest.float()]) if row.wants_hidden else None
            for row, first, rest in zip(rows, before, outputs[-1].split(counts), strict=True)
        ]

    def _computed(
        self, rows: Sequence[RowStep], firsts: Sequence[int], wanted: Sequence[int], inputs: Lines
    ) -> tuple[Sequence[Sequence[Tensor]], Sequence[Tensor]]:
        """Returns the states of each row's first `firsts` tokens, if it asks for states; and copies
        of the `wanted` outputs of all other tokens, which `inputs` describes."""
        before: list[Sequence[Tensor]] = [()] * len(rows)
        for at, first in enumerate(firsts) if any(firsts) else ():
            before[at] = [*self._prompt(rows[at], first)]
        if not inputs.shape[1]:
            return before, [self._nothing[each] for each in wanted]
        return before, self._run_steps(self._of_tokens, inputs, wanted)

    def _prompt(self, row: RowStep, num_tokens: int) -> Iterator[Tensor]:
        """Run a row's first tokens. Yields their states if the row asks for them."""
        for begin, end in prompt_chunks(num_tokens):
            step = self._of_prompts[prompt_size(end - begin)]
            (states,) = step.run(prompt_inputs(row, begin, end))
            if row.wants_hidden:
                yield states[: end - begin].to(torch.float32, copy=True)

    def _run_steps(
        self,
        steps: Sequence[graphs.FixedStep],
        inputs: Lines,
        wanted: Sequence[int],
        residual: Floats | None = None,
    ) -> Sequence[Tensor]:
        """Returns copies of the outputs of any number of tokens. Runs the smallest of `steps`,
        which ascend in size, that fits, or the largest several times."""
        parts, most = [], steps[-1].num_tokens
        for at in range(0, inputs.shape[1], most):
            part = inputs[:, at : at + most]
            count = part.shape[1]
            step = next(each for each in steps if count <= each.num_tokens)
            step.run(part, None if residual is None else residual[at : at + most])
            parts.append([step.output(each)[:count].clone() for each in wanted])
        return parts[0] if len(parts) == 1 else [*map(torch.cat, zip(*parts, strict=True))]

    def _token_outputs(
        self, lengths: Sequence[int], residual: Tensor, inputs: Tensor
    ) -> Sequence[Tensor]:
        """Returns the outputs of a step: see `_step_outputs`. Products have the same number of rows
        in every step, because their order of summation depends on it, unless weights are packed."""
        tokens = self._ops.tokens(inputs, lengths)
        states = self._through(inputs, residual, tokens, self._product_rows)
        return self._step_outputs(states, inputs.shape[1])

    def _step_outputs(self, states: Tensor, num_tokens: int) -> Sequence[Tensor]:
        """Returns logits [n, vocab] float32, states [n, hidden] and the likeliest tokens [n]."""
        logits = summed(self._head(states), states.dtype)[:num_tokens]
        logits = capped(logits, self._config)
        return logits, states[:num_tokens], logits.argmax(-1)

    def prompt_states(
        self, lengths: Sequence[int], residual: Tensor, inputs: Tensor
    ) -> Sequence[Tensor]:
        """Returns states [n, hidden] of a prompt's tokens, at positions below `lengths[-1]`."""
        tokens = self._ops.prompt(inputs, lengths[-1])
        return [self._through(inputs, residual, tokens, inputs.shape[1])]

    def _through(
        self, inputs: Tensor, before: Tensor, tokens: TokenOperations, num_rows: int
    ) -> Tensor:
        """Run n tokens through all layers and `_after_layers`. Returns [max(n, num_given), hidden].
        `before` [n, hidden] is the residual before these layers, if they have no embedding."""
        ops, config = self._ops, self._config
        x = self._embedded(inputs[IDS]) if config.has_ends else before.to(self._like.dtype)
        x = padded(x, num_rows)
        update, update_norm = None, None  # the last output, which is not yet added to x
        num_present = 0
        if config.mixture is not None:  # the host reads each layer's choice of experts anyway
            num_present = int((inputs[POSITIONS] >= 0).sum())
        for layer in self._layers:
            x, normed = ops.norm_add(x, update, update_norm, layer.attention_norm)
            queries = tokens.place_heads(layer.qkv(normed), layer.heads)
            attention = layer.out(tokens.attend(queries, layer.heads))
            if not config.is_parallel:  # parallel layers have no output norms
                x, normed = ops.norm_add(x, attention, layer.attention_output_norm, layer.mlp_norm)
                if isinstance(layer.mlp, CpuExperts):
                    x, update, update_norm = layer.mlp(x, num_present), None, None
                elif isinstance(layer.mlp, Mixture):
                    update, update_norm = layer.mlp(normed, num_present), layer.mlp_output_norm
                else:
                    update, update_norm = layer.mlp(normed), layer.mlp_output_norm
                continue
            assert not isinstance(layer.mlp, Mixture | CpuExperts), "experts follow attention"
            if layer.mlp_norm is not None:
                _, normed = ops.norm_add(x, None, None, layer.mlp_norm)
            update = summed(attention, x.dtype) + summed(layer.mlp(normed), x.dtype)
        return self._after_layers(x, update, update_norm)

    def _after_layers(self, x: Tensor, update: Tensor | None, update_norm: Affine | None) -> Tensor:
        """Returns the input of the output head."""
        return self._ops.norm_add(x, update, update_norm, self._final_norm)[1]

    def _embedded(self, ids: Tensor) -> Tensor:
        table = self._embedding
        x = self._ops.embed(ids, table) if isinstance(table, Panels) else F.embedding(ids, table)
        return x * self._embedding_multiplier


def prompt_size(num_tokens: int) -> int:
    """Returns the size of the next step for a prompt with `num_tokens` tokens left."""
    return max(size for size, least in PROMPT_SIZES.items() if least <= num_tokens)


def prompt_chunks(num_tokens: int) -> Iterator[tuple[int, int]]:
    """Yields the begin and end of each part of a prompt that one step computes."""
    begin = 0
    while begin < num_tokens:
        end = min(begin + prompt_size(num_tokens - begin), num_tokens)
        yield begin, end
        begin = end


def padded(x: Tensor, num_tokens: int) -> Tensor:
    """Returns `x` [n, hidden], padded with zeros to [num_tokens, hidden] if that is more."""
    return x if len(x) >= num_tokens else F.pad(x, (0, 0, 0, num_tokens - len(x)))


def capped(logits: Tensor, config: ModelConfig) -> Tensor:
    """Returns an output head's results as float32, divided and softly capped if the model asks."""
    divisor, softcap = config.logits_divisor, config.logits_softcap
    logits = logits.float() if divisor == 1.0 else logits.float() / divisor
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _affine(parameters: TorchParameters, name: str) -> Affine | None:
    tensors = parameters.tensors
    if f"{name}.weight" not in tensors:
        return None
    return Affine(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


def _layer(
    config: ModelConfig, parameters: TorchParameters, index: int, mlp: Mlp | Mixture | CpuExperts
) -> Layer:
    name, latent = f"layers.{index}", config.latent

    def affine(norm: str) -> Affine | None:
        return _affine(parameters, f"{name}.{norm}")

    out, sinks = parameters.linear(f"{name}.out"), parameters.tensors.get(f"{name}.sinks")
    if latent is None:
        qkv = parameters.linear(f"{name}.qkv", after=f"{name}.values")
    else:
        qkv, out = latent_qkv(config, latent, parameters, index), latent_out(config, out)
    return Layer(
        attention_norm=affine("attention_norm"),
        qkv=qkv,
        heads=LayerHeads(index, parameters.qk_norm(config, index), sinks),
        out=out,
        attention_output_norm=affine("attention_output_norm"),
        mlp_norm=affine("mlp_norm"),
        mlp=mlp,
        mlp_output_norm=affine("mlp_output_norm"),
    )
