"""Decoders that are raced: Hugging Face's Llama, Qwen and the attention of its Mixtral, in real sizes, with random
weights.

They are transformers' own classes, made from their configurations; nothing is downloaded. Attention is its
implementation ``sdpa``, causal, without a mask: making one would read a tensor on the host, which no CUDA graph can
capture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models.decoder import MOST_TOKENS, Decoder
from tirgemm.bench import results
from tirgemm.errors import InvalidRequest

LEAST_VERSION = (4, 53)
# The name under which ``sdpa`` is known that is given no mask.
UNMASKED = "sdpa_without_mask"


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a decoder of a ``kind``: ``llama``, ``qwen2``, or ``mixtral``, whose layers are attention alone."""

    kind: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    rope_theta: float
    rms_norm_eps: float
    layers: int = 4


# Llama-3-8B, Qwen2.5-7B, and the attention of Mixtral-8x7B, by their config.json; fewer layers.
SHAPES: dict[str, DecoderShape] = {
    "llama-3-8b": DecoderShape("llama", 4096, 14336, 32, 8, 128_256, 500_000.0, 1e-5),
    "qwen2.5-7b": DecoderShape("qwen2", 3584, 18944, 28, 4, 152_064, 1_000_000.0, 1e-6),
    "mixtral-attention": DecoderShape("mixtral", 4096, 14336, 32, 8, 32_000, 1_000_000.0, 1e-5),
}
# The same in small, for a machine without a GPU.
TINY_SHAPES: dict[str, DecoderShape] = {
    "llama-tiny": DecoderShape("llama", 32, 48, 4, 2, 40, 500_000.0, 1e-5, layers=1),
    "qwen-tiny": DecoderShape("qwen2", 32, 40, 4, 1, 24, 1_000_000.0, 1e-6, layers=1),
    "mixtral-attention-tiny": DecoderShape("mixtral", 32, 40, 4, 2, 24, 1_000_000.0, 1e-5, layers=1),
}


class LanguageModel(Decoder):
    """A causal language model of transformers."""

    def __init__(self, model: Any, places: Tensor) -> None:
        super().__init__(model.config.hidden_size, model.config.vocab_size)
        self.model, self.layers, self.head = model, model.model, model.lm_head
        self.register_buffer("places", places)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (count, 1, vocabulary) of the last of the tokens (count, tokens)."""
        places = self.places[:, : x.shape[1]]
        logits: Tensor = self.model(input_ids=x, position_ids=places, use_cache=False, logits_to_keep=1).logits
        return logits


class AttentionLayers(Decoder):
    """The attention of each layer with its norm, added to its input."""

    def __init__(self, layers: nn.ModuleList, norms: nn.ModuleList, rotary: nn.Module, places: Tensor) -> None:
        super().__init__(layers[0].config.hidden_size, 0)
        self.layers, self.norms, self.rotary, self.head = layers, norms, rotary, nn.Identity()
        self.register_buffer("places", places)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states (count, tokens, hidden) of hidden states."""
        hidden = x.to(self.norms[0].weight.dtype)
        rotation = self.rotary(hidden, self.places[:, : x.shape[1]])
        for layer, norm in zip(self.layers, self.norms, strict=True):
            hidden = hidden + layer(norm(hidden), position_embeddings=rotation, attention_mask=None)[0]
        return hidden


def _require_transformers() -> None:
    """Raise InvalidRequest where transformers is not there, or too old."""
    least, installed = ".".join(map(str, LEAST_VERSION)), results.version_of("transformers")
    if installed is None or tuple(int(part) for part in installed.split(".")[:2]) < LEAST_VERSION:
        raise InvalidRequest(
            f"the models that are raced are those of transformers {least} or newer, and "
            f"{installed or 'none'} is installed: pip install 'transformers>={least}'"
        )


def hugging_face_decoder(name: str, place: str, dtype: torch.dtype, seed: int = 0) -> Decoder:
    """The decoder of that name on a device. Raises InvalidRequest where transformers is not there, or too old."""
    _require_transformers()
    import transformers
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    transformers.AttentionInterface.register(UNMASKED, sdpa_attention_forward)
    shape = (SHAPES | TINY_SHAPES)[name]
    configuration = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}.get(
        shape.kind, transformers.MixtralConfig
    )(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        num_hidden_layers=shape.layers,
        vocab_size=shape.vocabulary,
        rope_theta=shape.rope_theta,
        rms_norm_eps=shape.rms_norm_eps,
        max_position_embeddings=MOST_TOKENS,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=UNMASKED,
    )
    torch.manual_seed(seed)
    with torch.device(place), torch.no_grad():
        places = torch.arange(MOST_TOKENS)[None]
        if shape.kind == "mixtral":
            made: Decoder = _attention_layers(configuration, places)
        else:
            model = {"llama": transformers.LlamaForCausalLM, "qwen2": transformers.Qwen2ForCausalLM}[shape.kind]
            made = LanguageModel(model(configuration), places)
        return made.settled(dtype)


def _attention_layers(configuration: Any, places: Tensor) -> AttentionLayers:
    from transformers.models.mixtral import modeling_mixtral as mixtral

    numbers = range(configuration.num_hidden_layers)
    norm = configuration.hidden_size, configuration.rms_norm_eps
    return AttentionLayers(
        nn.ModuleList(mixtral.MixtralAttention(configuration, number) for number in numbers),
        nn.ModuleList(mixtral.MixtralRMSNorm(*norm) for _ in numbers),
        mixtral.MixtralRotaryEmbedding(configuration),
        places,
    )
