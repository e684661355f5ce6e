"""The decoder for packed weights on the CPU: all layers of a step in one call to the kernels.

Decode thread only. Each token is computed separately, with sums in a fixed order, so its numbers
have the same bits whatever else is in the step, however a prompt is cut into chunks, and whatever
the number of threads.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from inference_api.engine.paged_cache import PagedCache
from inference_api.engine.rope import RopeTurns
from inference_api.kernels.interface import Floats, data, ffi, floats
from inference_api.kernels.library import CACHE_TYPES, StepStates, StepTokens
from inference_api.loading.config import ACTIVATIONS, ExpertGroups, ModelConfig
from inference_api.loading.families.layer_plan import ALTUP, LAYER_INPUTS, ROUTER
from inference_api.loading.families.recurrence import RecurrentConfig
from inference_api.loading.layout import EMBEDDING, HEAD
from inference_api.loading.weights import Parameters
from inference_api.runner import Hidden, RowStep

Fields = dict[str, Any]  # fields of a C struct
LINEARS = (  # each layer has some of these
    *("qkv", "values", "q_a", "q_b", "kv_a", "k_b", "v_b", "out", "in", "mixer_out"),
    *("router", "up", "down", "shared_up", "shared_down", "shared_gate"),
    *("latent_down", "latent_up"),
    *("steps", "gates", "forgets", "input_gate", "input_out", "laurel_in", "laurel_out"),
)
LAYER_NORMS = (
    *("attention_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm"),
    *("experts_norm", "experts_output_norm", "shared_output_norm", "input_norm", "laurel_norm"),
)
VECTORS = ("sinks", "output_scale", "expert_scales")
# Fields of C structs with the same names and values as a config's.
OF_MODEL = (
    *("num_layers", "num_heads", "is_parallel", "is_qk_norm_whole", "is_qk_norm_last"),
    *("has_value_norm", "has_output_gates", "norm_eps", "attention_scale"),
    *("embedding_multiplier", "residual_multiplier", "logits_divisor"),
)
OF_MIXTURE = ("experts_per_token", "scale", "least_sum", "is_renormalised")
OF_DELTA = ("heads", "key_heads", "is_tiled", "key_dim", "value_dim", "is_doubled")
NORMS = ("rms", "layer")  # in the order of kernels.h, as are the config's ACTIVATIONS
MIXERS = ("attention", "short_conv", "delta", "mamba2", "kimi_delta")  # in the order of `Mixer`


class Outputs(NamedTuple):
    """The outputs of a decoder's step."""

    logits: Floats  # [draws, vocab], in the order of the tokens that draw
    hidden: Sequence[Hidden | None]  # for each row; see `RowResult`


class KernelDecoder:
    """Runs a step, or this rank's layers of it, in one call. Does not check that inputs are in
    range."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        cache: PagedCache,
        max_seq_len: int,
        places: Mapping[int, tuple[int, int]] | None = None,
        first_turn: int = 0,
    ) -> None:
        """`places` has the layers' places in the cache, by default `cache.places`. Rope turns each
        position as if it were higher by `first_turn`."""
        self._config = config
        self._places = cache.places if places is None else places
        self._first_turn = first_turn
        self._packed = parameters.packed
        self._tensors = parameters.tensors
        self._kernels = parameters.packing.kernels
        self._num_guesses = cache.log.shape[1] // config.log_floats if config.log_floats else 0
        self._bits = parameters.packing.bits
        self._floats: list[Any] = []  # keeps alive the arrays that the C model points to
        self._rope = RopeTurns(config, max_seq_len + first_turn)
        turns = self._turns()
        layers = [
            self._layer(index, cache, parameters.qk_norm(config, index)) | turns[index]
            for index in range(config.num_layers)
        ]
        self._layers = ffi.new("HearthLayer[]", layers)
        self._model = ffi.new("HearthModel *", self._describe(cache))
        self._head = ffi.new("HearthModel *", self._model[0])
        self._head.num_layers = self._head.inputs.size = 0
        self._cache = cache
        self._logits = np.empty((0, config.vocab_size), np.float32)

    def forward(self, rows: Sequence[RowStep], before: Floats | None = None) -> Outputs:
        """Run a step, and write the keys and values of all its tokens: see `ModelRunner.step`. The
        next call overwrites the logits. `before` is the residual of all tokens; by default it comes
        from the embedding."""
        return self._run(self._model, rows, before)

    def embedded(self, token_ids: Sequence[int]) -> Floats:
        """Returns the first layer's input for these tokens, [tokens, hidden size]."""
        assert self._config.recurrent is None, "a row that begins forgets its state"
        ids, nowhere = array("q", token_ids), array("q", bytes(8 * len(token_ids)))
        after = np.empty((len(ids), self._config.hidden_size), np.float32)
        tokens = StepTokens(ids, nowhere, nowhere, outputs=array("q"))
        self._kernels.step(self._head, tokens, StepStates(after=after))
        return after

    def pass_through(self, before: Floats, after: Floats) -> None:
        """Run layers in which no token sees another. Reads the residual `before` them [tokens,
        hidden size], and writes the one `after` them."""
        nothing = array("q", bytes(8 * len(before)))
        tokens = StepTokens(nothing, nothing, nothing, outputs=array("q"))
        self._kernels.step(self._model, tokens, StepStates(before=before, after=after))

    def layers(self, rows: Sequence[RowStep], before: Floats | None = None) -> Floats:
        """Returns the residual after these layers, [tokens, hidden size], without logits.

        `before` is the residual before them; None means that it comes from the embedding.
        """
        self._reach(rows)
        tokens = _flattened(rows)._replace(outputs=array("q"))
        after = np.empty((len(tokens.ids), self._config.hidden_size), np.float32)
        self._kernels.step(self._model, tokens, StepStates(before=before, after=after))
        return after

    def head(self, rows: Sequence[RowStep], before: Floats) -> Outputs:
        """Returns the outputs, given the residual after all layers for all tokens of `rows`."""
        return self._run(self._head, rows, before)

    def _run(self, model: Any, rows: Sequence[RowStep], before: Floats | None = None) -> Outputs:
        self._reach(rows)
        tokens = _flattened(rows)
        num_outputs = len(tokens.outputs)
        if len(self._logits) < num_outputs:
            self._logits = np.empty((num_outputs, self._config.vocab_size), np.float32)
        logits, hidden = self._logits[:num_outputs], None
        has_mtp = self._config.has_mtp  # its layer reads all states
        if has_mtp or any(each.wants_hidden for each in rows):  # a new array: callers keep it
            hidden = np.empty((len(tokens.ids), self._config.hidden_size), np.float32)
        self._kernels.step(model, tokens, StepStates(logits, hidden, before))
        if hidden is None:
            return Outputs(logits, [None] * len(rows))
        ends = accumulate(len(each.token_ids) for each in rows)
        return Outputs(
            logits,
            [
                hidden[end - len(each.token_ids) : end] if has_mtp or each.wants_hidden else None
                for each, end in zip(rows, ends, strict=True)
            ],
        )

    def keep_guesses(self, row: int, count: int) -> None:
        """Apply the first `count` guesses of the row's last step to its recurrent state."""
        self._kernels.keep(self._model, row, count)

    def _reach(self, rows: Sequence[RowStep]) -> None:
        if self._config.recurrent is not None:
            for each in rows:
                assert each.parents is None, "a state is of one branch"
                assert each.num_guesses <= self._num_guesses, "what is guessed is noted"
                self._cache.kept[each.row] = each.start + len(each.token_ids) - each.num_guesses
        end = max(each.start + len(each.token_ids) for each in rows)
        self._rope.reach(end + self._first_turn)

    def _turns(self) -> list[Fields]:
        """Returns pointers to each layer's rotary turns; null for layers without rope."""
        return [
            {
                "cos": self._pointer(turns.cosines[self._first_turn :]),
                "sin": self._pointer(turns.sines[self._first_turn :]),
                "query_scales": self._pointer_or_null(turns.query_scales),
            }
            if turns is not None
            else {}
            for turns in self._rope.layers
        ]

    def _describe(self, cache: PagedCache) -> Fields:
        config = self._config
        ends: Fields = {}
        if config.has_ends:
            embedding = self._packed[EMBEDDING]
            ends = {
                "embedding": data(embedding.blocks),
                "embedding_bits": embedding.bits,
                "final_norm": self._norm("final_norm"),
                "head": self._linear(HEAD),
            }
        return {
            **ends,
            **_alike(config, OF_MODEL),
            "layers": self._layers,
            "hidden": config.hidden_size,
            "pages": {
                "base": data(cache.pages),
                "page_bytes": cache.pages.strides[0],
                "tables": ffi.from_buffer("int32_t[]", cache.tables),
                "table_stride": cache.tables.shape[2],
            },
            "recurrent": {
                "base": floats(cache.states) if config.recurrent is not None else ffi.NULL,
                "row_floats": cache.states.shape[1],
                "kept": ffi.from_buffer("int64_t[]", cache.kept),
                "log": floats(cache.log) if self._num_guesses else ffi.NULL,
                "log_tokens": self._num_guesses,
                "log_floats": cache.log.shape[1],
            },
            "bits": self._bits,
            "cache_type": CACHE_TYPES[cache.dtype],
            "norm": NORMS.index(config.norm),
            "activation": ACTIVATIONS.index(config.activation),
            "is_gated": config.is_mlp_gated,
            "logits_softcap": config.logits_softcap or 0.0,
            "swiglu_limit": config.swiglu.limit if config.swiglu else 0.0,
            "swiglu_alpha": config.swiglu.alpha if config.swiglu else 0.0,
            "mixture": self._mixture(),
            "inputs": self._inputs(),
            "streams": self._streams(),
        }

    def _inputs(self) -> Fields:
        if not self._config.layer_input_size:
            return {}
        embedding = self._packed[LAYER_INPUTS]
        return {
            "size": self._config.layer_input_size,
            "num_tokens": self._config.layer_input_tokens,
            "embedding": data(embedding.blocks),
            "bits": embedding.bits,
            "projection": self._linear("inputs.weight"),
            "norm": self._pointer(self._tensors["inputs.norm"]),
        }

    def _streams(self) -> Fields:
        if self._config.num_streams == 1:
            return {}
        ends = {each: self._linear(f"streams_{each}.weight") for each in ("in", "out")}
        return ends | {"count": self._config.num_streams}

    def _mixture(self) -> Fields:
        mixture = self._config.mixture
        if mixture is None:
            return {}
        groups = mixture.groups or ExpertGroups(1, 1, 1)
        is_sigmoid = mixture.scoring == "sigmoid"
        return _alike(mixture, OF_MIXTURE) | groups._asdict() | {"is_sigmoid": is_sigmoid}

    def _layer(self, index: int, cache: PagedCache, qk_norm: Floats | None) -> Fields:
        name = f"layers.{index}"
        weights = {each: f"{name}.{each}.weight" for each in LINEARS}
        linears = {
            each: self._linear(weight, f"{name}.{each}.bias")
            for each, weight in weights.items()
            if weight in self._packed
        }
        recurrent = self._config.recurrent_of(index)
        mixers: Fields = {}
        if recurrent is not None:
            names = ("in", "mixer_out", "steps", "gates", "forgets")
            recurrent_linears = {
                each.removeprefix("mixer_"): linears.pop(each) for each in names if each in linears
            }
            mixers = {"recurrent": recurrent_linears | self._recurrent(recurrent, index)}
        if self._config.attends(index):
            group, place = self._places[index]
            shape = self._config.shape_of(index)
            mixers |= _alike(shape, ("head_dim", "value_dim", "rotary_dim")) | {
                "num_kv_heads": self._config.cache_shape(shape).num_heads,
                "are_keys_values": not shape.has_values,
                "is_kv_shared": shape.kv_source is not None,
                "page_offset": place * cache.by_group[group].strides[1],
                "table_offset": group * cache.tables[0].size,
                "window": self._config.windows[index] or 0,
            }
        router_scale = self._tensors.get(f"{name}.router_scale")
        if router_scale is not None:
            router_scale = router_scale * np.float32(self._config.hidden_size**-0.5)
        return {
            **{each: self._norm(f"{name}.{each}") for each in LAYER_NORMS},
            **linears,
            "qk_norm": self._pointer_or_null(qk_norm),
            "q_a_norm": self._optional(f"{name}.q_a_norm.weight"),
            "kv_a_norm": self._optional(f"{name}.kv_a_norm.weight"),
            **{each: self._optional(f"{name}.{each}") for each in VECTORS},
            "gate_cutoff": self._gate_cutoff(index),
            "altup": self._altup(f"{name}{ALTUP}"),
            "router_norm": {"weight": self._pointer_or_null(router_scale)},
            "selection_bias": self._optional(f"{name}{ROUTER}.selection_bias"),
            **mixers,
        }

    def _recurrent(self, config: RecurrentConfig, index: int) -> Fields:
        name = f"layers.{index}"
        conv = self._tensors[f"{name}.conv.weight"]
        number = self._config.recurrent_layers.index(index)
        tail_at = number * config.layer_floats
        fields: Fields = {
            "kind": MIXERS.index(config.kind),
            **_alike(config, ("conv_dim", "conv_width")),
            "tail_at": tail_at,
            "log_at": number * config.log_floats * self._num_guesses,
            "conv": self._pointer(conv.reshape(config.conv_dim, config.conv_width).T),
            "conv_bias": self._optional(f"{name}.conv.bias"),
        }
        if config.kind == "short_conv":
            return fields
        decays = self._tensors[f"{name}.decays"]
        return {
            **fields,
            **_alike(config, OF_DELTA),
            "norm_eps": config.norm_eps or self._config.norm_eps,
            "state_at": tail_at + config.tail_floats,
            "decay": self._pointer(-np.exp(decays) if config.has_log_decays else decays),
            "step_bias": self._pointer(self._tensors[f"{name}.step_bias"]),
            "head_norm": self._optional(f"{name}.head_norm"),
            "skip": self._optional(f"{name}.skip"),
        }

    def _gate_cutoff(self, index: int) -> Any:
        cutoff = self._config.shape_of(index).gate_cutoff
        return self._pointer_or_null(None if cutoff is None else np.array([cutoff], np.float32))

    def _altup(self, name: str) -> Fields:
        names = ("norm", "router", "predict", "correct", "scale")
        tensors = {each: self._tensors.get(f"{name}.{each}") for each in names}
        if tensors["norm"] is not None:  # the router reads normalised numbers, divided by its size
            tensors["norm"] = tensors["norm"] / np.float32(self._config.hidden_size)
        return {each: self._pointer_or_null(tensor) for each, tensor in tensors.items()}

    def _norm(self, name: str) -> Fields:
        return {"weight": self._optional(f"{name}.weight"), "bias": self._optional(f"{name}.bias")}

    def _linear(self, weight: str, bias: str = "") -> Fields:
        return self._packed[weight].linear(self._tensors.get(bias))

    def _optional(self, name: str) -> Any:
        return self._pointer_or_null(self._tensors.get(name))

    def _pointer_or_null(self, array: Floats | None) -> Any:
        return ffi.NULL if array is None else self._pointer(array)

    def _pointer(self, array: Floats) -> Any:
        """Returns the address of the array's numbers, and keeps the array alive."""
        self._floats.append(floats(np.ascontiguousarray(array)))
        return self._floats[-1]


def _alike(config: object, names: Sequence[str]) -> Fields:
    return {name: getattr(config, name) for name in names}


def _flattened(rows: Sequence[RowStep]) -> StepTokens:
    ids: list[int] = []
    cache_rows: list[int] = []
    positions: list[int] = []
    outputs: list[int] = []
    for each in rows:
        ids += each.token_ids
        cache_rows += [each.row] * len(each.token_ids)
        positions += each.positions
        outputs += range(len(ids) - len(each.draws), len(ids))
    tokens = StepTokens(*(array("q", values) for values in (ids, cache_rows, positions, outputs)))
    if all(each.parents is None for each in rows):
        return tokens
    slots, parents = array("q"), array("q")
    for each in rows:
        begin, num_tokens = len(slots), len(each.token_ids)
        slots.extend(range(each.start, each.start + num_tokens))
        row_parents = range(-1, num_tokens - 1) if each.parents is None else each.parents
        parents.extend(-1 if parent < 0 else begin + parent for parent in row_parents)
    return tokens._replace(slots=slots, parents=parents)
