"""The GPU's baseline ``torch.matmul``: what a PyTorch user would write, into given outputs, on our stream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tirgemm.gemm import Gemm
from tirgemm.tuning.measure.candidates import Candidate
from tirgemm.tuning.measure.numpy_baseline import Absent
from tirgemm.tuning.measure.tensors import View


class TorchBaseline:
    """``torch.matmul(a, b, out=d)``, then scaling, C, bias and activation in place. Raises Absent."""

    def __init__(self, gemm: Gemm, ordinal: int, stream: int) -> None:
        if gemm.out != gemm.dtype:
            raise Absent(f"torch.matmul writes {gemm.dtype}, its inputs' dtype, not {gemm.out}")
        try:
            import torch
        except ImportError as error:
            raise Absent("PyTorch is not installed") from error
        if not torch.cuda.is_available():
            raise Absent("this PyTorch has no CUDA, or none that fits the driver")
        self._torch = torch
        self._gemm = gemm
        self._stream = torch.cuda.ExternalStream(stream, device=ordinal)

    def context(self) -> AbstractContextManager[Any]:
        """PyTorch works on our stream within it."""
        context: AbstractContextManager[Any] = self._torch.cuda.stream(self._stream)
        return context

    def candidates(self, sets: list[dict[str, View]]) -> list[Candidate]:
        """The one call that a user would write."""
        return [Candidate({}, lambda i: self.prepared(sets[i]))]

    def prepared(self, views: dict[str, View]) -> Callable[[], object]:
        """A call with these operands."""
        torch, gemm = self._torch, self._gemm
        tensors = {name: torch.from_dlpack(view) for name, view in views.items()}
        a = tensors["a"].mT if gemm.trans_a else tensors["a"]
        b = tensors["b"].mT if gemm.trans_b else tensors["b"]
        d, c, bias = tensors["d"], tensors.get("c"), tensors.get("bias")
        activation = _activation(torch, gemm.act)

        def run() -> None:
            torch.matmul(a, b, out=d)
            if gemm.alpha:
                d.mul_(1.0)
            if c is not None:
                d.add_(c, alpha=1.0)
            if bias is not None:
                d.add_(bias)
            if activation is not None:
                d.copy_(activation(d))

        return run


def _activation(torch: Any, act: str) -> Callable[[Any], Any] | None:
    functional = torch.nn.functional
    functions: dict[str, Callable[[Any], Any] | None] = {
        "none": None,
        "relu": torch.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "silu": functional.silu,
    }
    return functions[act]
