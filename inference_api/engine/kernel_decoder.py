"""The decoder by the kernels: all layers of a step in one call. Decode thread only.

Does what `Decoder` does, for packed weights on the CPU, and has its methods. Every token is
computed on its own and in a fixed order of sums: its numbers are the same bits whatever shares the
step, however a prompt is cut and on however many threads.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from inference_api.engine.kv_cache import KVCache
from inference_api.engine.loading.config import ACTIVATIONS, ModelConfig
from inference_api.engine.loading.layout import HEAD
from inference_api.engine.loading.weights import Parameters
from inference_api.engine.rope import Rope
from inference_api.kernels import model_structs as structs
from inference_api.kernels.library import CACHE_TYPES, SOURCE_TYPES, PackedWeight

NORMS = ("rms", "layer")  # by their numbers in kernels.h, as are the config's ACTIVATIONS


class KernelDecoder:
    """Runs steps. Tokens, rows and positions are trusted to be in range."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        cache: KVCache,
        rope: Rope,
        max_seq_len: int,
    ) -> None:
        """`rope` turns float32 for `max_seq_len` positions. The weights are packed."""
        assert parameters.packing is not None
        self._config = config
        self._packed = parameters.packed
        self._tensors = parameters.tensors
        self._kernels = parameters.packing.kernels
        self._floats: list[Tensor] = []  # what the model points to, kept alive
        self._layers = (structs.Layer * config.num_layers)(
            *(self._layer(index, cache) for index in range(config.num_layers))
        )
        self._model = self._describe(cache, rope, max_seq_len)
        self._cache = cache
        self._logits = torch.empty(0, config.vocab_size)

    def forward(
        self,
        token_ids: Sequence[int],
        rows: Sequence[int],
        positions: Sequence[int],
        num_outputs: int,
    ) -> Tensor:
        """Write tokens of any rows, those of a row in their order: logits [num_outputs, vocab]
        float32 for what follows the last ones, in memory that the next call writes again."""
        if len(self._logits) < num_outputs:
            self._logits = torch.empty(num_outputs, self._config.vocab_size)
        logits = self._logits[:num_outputs]
        self._kernels.step(self._model, torch.tensor([token_ids, rows, positions]), logits)
        return logits

    def prefill(self, row: int, start: int, token_ids: Sequence[int]) -> None:
        """Write the keys and values of one row's next tokens."""
        num_tokens = len(token_ids)
        self.forward(token_ids, [row] * num_tokens, range(start, start + num_tokens), 0)

    def decode(
        self, token_ids: Sequence[int], rows: Sequence[int], positions: Sequence[int]
    ) -> Tensor:
        """Write one token of each row; logits [len(rows), vocab] for what follows it."""
        return self.forward(token_ids, rows, positions, len(rows)).clone()

    def _describe(self, cache: KVCache, rope: Rope, max_seq_len: int) -> structs.Model:
        config = self._config
        embedding = self._tensors["embedding"]
        cos, sin = rope.at(torch.arange(max_seq_len))
        return structs.Model(
            layers=self._layers,
            embedding=embedding.data_ptr(),
            cos=self._pointer(cos),
            sin=self._pointer(sin),
            final_norm=self._norm("final_norm"),
            head=self._linear(HEAD),
            num_layers=config.num_layers,
            hidden=config.hidden_size,
            ffn=config.ffn_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            row_stride=cache.keys.stride(1),
            head_stride=cache.keys.stride(2),
            bits=self._packed[HEAD].bits,
            embedding_type=SOURCE_TYPES[embedding.dtype],
            cache_type=CACHE_TYPES[cache.keys.dtype],
            norm=NORMS.index(config.norm),
            activation=ACTIVATIONS.index(config.activation),
            is_gated=config.is_mlp_gated,
            is_parallel=config.is_parallel,
            norm_eps=config.norm_eps,
            attention_scale=config.attention_scale,
            embedding_multiplier=config.embedding_multiplier,
            residual_multiplier=config.residual_multiplier,
            logits_divisor=config.logits_divisor,
        )

    def _layer(self, index: int, cache: KVCache) -> structs.Layer:
        config, name = self._config, f"layers.{index}"
        qk_norm = None
        if config.has_qk_norm:
            counts = {"q_norm": config.num_heads, "k_norm": config.num_kv_heads}
            norms = [self._tensors[f"{name}.{k}"].expand(n, -1) for k, n in counts.items()]
            qk_norm = self._pointer(torch.cat(norms))
        return structs.Layer(
            attention_norm=self._norm(f"{name}.attention_norm"),
            mlp_norm=self._norm(f"{name}.mlp_norm") if config.has_mlp_norm else structs.Norm(),
            qk_norm=qk_norm,
            qkv=self._linear(f"{name}.qkv.weight", f"{name}.qkv.bias"),
            out=self._linear(f"{name}.out.weight", f"{name}.out.bias"),
            up=self._linear(f"{name}.up.weight", f"{name}.up.bias"),
            down=self._linear(f"{name}.down.weight", f"{name}.down.bias"),
            keys=cache.keys[index].data_ptr(),
            values=cache.values[index].data_ptr(),
            window=config.windows[index] or 0,
        )

    def _norm(self, name: str) -> structs.Norm:
        return structs.Norm(self._optional(f"{name}.weight"), self._optional(f"{name}.bias"))

    def _linear(self, weight: str, bias: str = "") -> structs.Linear:
        packed: PackedWeight = self._packed[weight]
        return structs.Linear(
            packed.blocks.data_ptr(), self._optional(bias), packed.outputs, packed.inputs
        )

    def _optional(self, name: str) -> int | None:
        tensor = self._tensors.get(name)
        return None if tensor is None else self._pointer(tensor)

    def _pointer(self, tensor: Tensor) -> int:
        """The address of the tensor's numbers as float32, which stay there."""
        self._floats.append(tensor.float().contiguous())
        return self._floats[-1].data_ptr()
