"""``Decoder``: a model as it is raced, with its layers, its head, and random prompts; every call is a prompt of its
own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

MOST_TOKENS = 2048
# Standard deviation of random weights, as Hugging Face initialises them.
INITIALIZER_RANGE = 0.02


class Decoder(nn.Module):  # type: ignore[misc]  # types are checked where PyTorch is not installed
    """What computes the logits (count, 1, vocabulary) of the last of the tokens (count, tokens), or without a
    vocabulary hidden states of hidden states (count, tokens, hidden).

    The linears of ``layers`` take all tokens, those of ``head`` the last one alone.
    """

    layers: nn.Module
    head: nn.Module

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.hidden, self.vocabulary = hidden, vocabulary

    def settled(self, dtype: torch.dtype) -> Decoder:
        """This decoder for inference, with weights in that dtype; matrices are drawn anew. Buffers, such as the
        frequencies of positions, stay as they are."""
        for parameter in self.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, INITIALIZER_RANGE)
        self.eval()
        return self._of_dtype(dtype)

    def twin(self) -> Decoder:
        """The same decoder with modules of its own on the same parameters."""
        twin: Decoder = copy.deepcopy(self, {id(parameter): parameter for parameter in self.parameters()})
        return twin

    def cast(self, dtype: torch.dtype) -> Decoder:
        """A copy with weights in another dtype."""
        other: Decoder = copy.deepcopy(self)
        return other._of_dtype(dtype)

    def prompts(self, tokens: int, count: int = 1) -> Tensor:
        """Random inputs of so many tokens: ids (count, tokens), or hidden states (count, tokens, hidden)."""
        weight = next(self.parameters())
        generator = torch.Generator(weight.device).manual_seed(1)
        how: dict[str, Any] = {"device": weight.device, "generator": generator}
        if self.vocabulary:
            return torch.randint(self.vocabulary, (count, tokens), **how)
        return torch.randn(count, tokens, self.hidden, dtype=torch.float32, **how).to(weight.dtype)

    def _of_dtype(self, dtype: torch.dtype) -> Decoder:
        for parameter in self.parameters():
            parameter.requires_grad_(False)
            parameter.data = parameter.data.to(dtype)
        return self
