"""Decoders of the shapes of Llama, Qwen and Mixtral with random weights: the same operations as their Hugging Face
implementations, without a cache of keys and values: every call is a prompt of its own."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# Standard deviation of weights, as Hugging Face initialises them.
INITIALIZER_RANGE = 0.02
ROPE_BASE = 500_000.0
MOST_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a decoder. Without ``intermediate`` a layer is attention alone; without ``vocabulary`` the input is the
    hidden states and the result is them too, otherwise token ids and the logits of the last token."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    qkv_bias: bool = False
    layers: int = 4

    @property
    def head_dim(self) -> int:
        """Elements of a query, a key or a value of one head."""
        return self.hidden // self.heads


# Llama-3-8B, Qwen2.5-7B, and the attention of Mixtral-8x7B, by their config.json; fewer layers.
SHAPES: dict[str, DecoderShape] = {
    "llama-3-8b": DecoderShape(4096, 14336, 32, 8, 128_256),
    "qwen2.5-7b": DecoderShape(3584, 18944, 28, 4, 152_064, qkv_bias=True),
    "mixtral-attention": DecoderShape(4096, 0, 32, 8, 0),
}
# The same in small, for a machine without a GPU.
TINY_SHAPES: dict[str, DecoderShape] = {
    "llama-tiny": DecoderShape(32, 48, 4, 2, 40, layers=1),
    "qwen-tiny": DecoderShape(32, 40, 4, 1, 24, qkv_bias=True, layers=1),
    "mixtral-attention-tiny": DecoderShape(32, 0, 4, 2, 0, layers=1),
}


class Decoder:
    """A decoder: ``layers``, whose linears take all tokens, and the ``head``, which takes the last one."""

    def __init__(self, shape: DecoderShape, place: str, dtype: torch.dtype, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.shape = shape
        with torch.device(place), torch.no_grad():
            self.layers = nn.ModuleList(nn.ModuleDict(_layer(shape)) for _ in range(shape.layers))
            self.head = nn.ModuleDict()
            if shape.vocabulary:
                self.head["embedding"] = nn.Embedding(shape.vocabulary, shape.hidden)
                self.head["norm"] = nn.RMSNorm(shape.hidden, eps=1e-5)
                self.head["linear"] = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
            positions = torch.arange(MOST_TOKENS, dtype=torch.float32)
            frequencies = ROPE_BASE ** (-torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim)
            angles = torch.outer(positions, frequencies).repeat(1, 2)
            self.rotation = angles.cos().to(dtype), angles.sin().to(dtype)
            for module in (self.layers, self.head):
                for parameter in module.parameters():
                    if parameter.dim() == 2:
                        parameter.normal_(0.0, INITIALIZER_RANGE)
                module.to(dtype).requires_grad_(False)

    def twin(self) -> Decoder:
        """The same decoder with modules of its own on the same parameters."""
        other = copy.copy(self)
        shared = {id(p): p for module in (self.layers, self.head) for p in module.parameters()}
        other.layers, other.head = copy.deepcopy((self.layers, self.head), dict(shared))
        return other

    def cast(self, dtype: torch.dtype) -> Decoder:
        """A copy in another dtype."""
        other = copy.copy(self)
        other.layers, other.head = copy.deepcopy((self.layers, self.head))
        other.layers.to(dtype)
        other.head.to(dtype)
        other.rotation = self.rotation[0].to(dtype), self.rotation[1].to(dtype)
        return other

    def prompts(self, tokens: int, count: int = 1, seed: int = 1) -> Tensor:
        """Random inputs of so many tokens: ids (count, tokens), or hidden states (count, tokens, hidden)."""
        cosine = self.rotation[0]
        generator = torch.Generator(cosine.device).manual_seed(seed)
        if self.shape.vocabulary:
            return torch.randint(self.shape.vocabulary, (count, tokens), device=cosine.device, generator=generator)
        return torch.randn(
            count, tokens, self.shape.hidden, device=cosine.device, generator=generator, dtype=torch.float32
        ).to(cosine.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Logits (count, 1, vocabulary) of the last of x's tokens; hidden states where there is no vocabulary."""
        head: Any = self.head
        hidden = head["embedding"](x) if self.shape.vocabulary else x.to(self.rotation[0].dtype)
        for layer in self.layers:
            hidden = hidden + self._attention(layer, layer["attention_norm"](hidden))
            if self.shape.intermediate:
                normed = layer["mlp_norm"](hidden)
                hidden = hidden + layer["down"](functional.silu(layer["gate"](normed)) * layer["up"](normed))
        if not self.shape.vocabulary:
            return hidden
        logits: Tensor = head["linear"](head["norm"](hidden[:, -1:]))
        return logits

    def _attention(self, layer: Any, x: Tensor) -> Tensor:
        count, tokens = x.shape[:2]
        query, key, value = (
            layer[name](x).view(count, tokens, -1, self.shape.head_dim).transpose(1, 2) for name in ("q", "k", "v")
        )
        attended = functional.scaled_dot_product_attention(
            self._rotated(query), self._rotated(key), value, is_causal=tokens > 1, enable_gqa=True
        )
        result: Tensor = layer["o"](attended.transpose(1, 2).reshape(count, tokens, self.shape.hidden))
        return result

    def _rotated(self, x: Tensor) -> Tensor:
        cosine, sine = (table[: x.shape[2]] for table in self.rotation)
        first, second = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-second, first), dim=-1) * sine


def _layer(shape: DecoderShape) -> dict[str, nn.Module]:
    kv = shape.kv_heads * shape.head_dim
    modules: dict[str, nn.Module] = {
        "attention_norm": nn.RMSNorm(shape.hidden, eps=1e-5),
        "q": nn.Linear(shape.hidden, shape.hidden, bias=shape.qkv_bias),
        "k": nn.Linear(shape.hidden, kv, bias=shape.qkv_bias),
        "v": nn.Linear(shape.hidden, kv, bias=shape.qkv_bias),
        "o": nn.Linear(shape.hidden, shape.hidden, bias=False),
    }
    if shape.intermediate:
        modules |= {
            "mlp_norm": nn.RMSNorm(shape.hidden, eps=1e-5),
            "gate": nn.Linear(shape.hidden, shape.intermediate, bias=False),
            "up": nn.Linear(shape.hidden, shape.intermediate, bias=False),
            "down": nn.Linear(shape.intermediate, shape.hidden, bias=False),
        }
    return modules
