"""The network to train: a Llama decoder in plain torch, with the parameter names of Hugging Face.

It exists beside `transformers.LlamaForCausalLM` for speed alone: activations are kept in one dtype
and attention is written out, which `torch.compile` fuses well on a CPU (half as many tokens per
second again). The exported weights are loaded, judged and tested through `transformers`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, rms_norm, silu

from .documents import BOS, SPECIAL_TOKENS

_BOS_ID = SPECIAL_TOKENS.index(BOS)


@dataclass(frozen=True, slots=True)
class ModelShape:
    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 768
    num_layers: int = 5
    num_heads: int = 8
    num_kv_heads: int = 4
    max_positions: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


class Linear(nn.Linear):
    """Multiplies in the dtype of its input; the stored weight stays float32 for the optimizer."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.hidden_size))
        self.eps = shape.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        hidden, kv_width = shape.hidden_size, shape.num_kv_heads * shape.head_dim
        self.q_proj = Linear(hidden, hidden)
        self.k_proj = Linear(hidden, kv_width)
        self.v_proj = Linear(hidden, kv_width)
        self.o_proj = Linear(hidden, hidden)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        rows, length, hidden = x.shape
        heads, kv_heads, head_dim = (
            self.shape.num_heads,
            self.shape.num_kv_heads,
            self.shape.head_dim,
        )
        group = heads // kv_heads
        q = self.q_proj(x).view(rows, length, heads, head_dim).transpose(1, 2)
        k = self.k_proj(x).view(rows, length, kv_heads, head_dim).transpose(1, 2)
        v = self.v_proj(x).view(rows, length, kv_heads, head_dim).transpose(1, 2)
        q = rotate(q, rope) * head_dim**-0.5
        k = rotate(k, rope)
        # The query heads that share a key head are stacked along the length axis.
        scores = q.reshape(rows, kv_heads, group * length, head_dim) @ k.transpose(2, 3)
        scores = scores.view(rows, kv_heads, group, length, length) + mask
        attended = scores.softmax(-1).reshape(rows, kv_heads, group * length, length) @ v
        attended = attended.view(rows, heads, length, head_dim).transpose(1, 2)
        out: Tensor = self.o_proj(attended.reshape(rows, length, hidden))
        return out


class MLP(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.up_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape)


class TrainableLlama(nn.Module):
    """The state dict is that of `LlamaForCausalLM` with tied embeddings."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        self.dtype = dtype
        self.model = Decoder(shape)
        self._initialise()

    def _initialise(self) -> None:
        residual_std = 0.02 / math.sqrt(2 * self.shape.num_layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                is_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=residual_std if is_residual else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits, [rows, length, vocab]."""
        rope = rope_tables(self.shape, ids.shape[1], self.dtype)
        mask = attention_mask(ids, self.dtype)
        x = self.model.embed_tokens(ids).to(self.dtype)
        for layer in self.model.layers:
            x = layer(x, rope, mask)
        x = self.model.norm(x)
        return linear(x, self.model.embed_tokens.weight.to(self.dtype))

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy over the labels that are not -100."""
        logits = self(ids)
        return cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.reshape(-1))


def attention_mask(ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Added to the scores: a token sees those before it in its own document, which `<s>` opens.

    [rows, 1, 1, length, length]; windows hold several documents, a served prompt holds one.
    """
    document = (ids == _BOS_ID).cumsum(1)
    is_other = document[:, :, None] != document[:, None, :]
    is_later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
    mask = torch.zeros(is_other.shape, dtype=dtype).masked_fill(is_other | is_later, -1e4)
    return mask[:, None, None]


def rope_tables(shape: ModelShape, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    positions = torch.arange(length, dtype=torch.float32)
    angles = torch.outer(positions, shape.rope_theta**-exponents)
    return angles.cos().to(dtype), angles.sin().to(dtype)  # [length, head_dim / 2] each


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rope
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
