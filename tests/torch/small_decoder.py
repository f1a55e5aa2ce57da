"""``SmallDecoder``: a decoder of one layer, written by hand, for tests of what is done with decoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.decoder import Decoder

HIDDEN = 32


class SmallDecoder(Decoder):
    """Causal attention whose ``qkv`` has a bias, and a head where there is a vocabulary."""

    def __init__(self, vocabulary: int = 0, heads: int = 4) -> None:
        super().__init__(HIDDEN, vocabulary)
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, HIDDEN) if vocabulary else nn.Identity()
        self.layers = nn.ModuleDict({"qkv": nn.Linear(HIDDEN, 3 * HIDDEN), "o": nn.Linear(HIDDEN, HIDDEN, bias=False)})
        self.head = nn.Linear(HIDDEN, vocabulary, bias=False) if vocabulary else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the last of the tokens x, or hidden states of x."""
        hidden = self.embedding(x).to(self.layers["o"].weight.dtype)
        count, tokens = x.shape[:2]
        each = self.layers["qkv"](hidden).view(count, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*each, is_causal=True)
        hidden = self.layers["o"](attended.transpose(1, 2).reshape(count, tokens, HIDDEN))
        result: Tensor = self.head(hidden[:, -1:]) if self.vocabulary else hidden
        return result


def small_decoder(vocabulary: int, place: str, dtype: torch.dtype) -> Decoder:
    """A SmallDecoder with the same random weights each time, for inference."""
    torch.manual_seed(0)
    with torch.device(place), torch.no_grad():
        return SmallDecoder(vocabulary).settled(dtype)
