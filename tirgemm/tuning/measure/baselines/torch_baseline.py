"""The GPU's baseline ``torch.matmul``: what a PyTorch user would write, into given outputs, on our stream.

Where rows do not begin at multiples of 16 bytes, the call that a careful user would write is a candidate too: the odd
operands padded by ``F.pad`` in every call, or copied where a copy of the same size is enough, and the product copied
into D. The faster of the two is the baseline, and the choice keeps both times.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tirgemm.expr import evaluate
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand
from tirgemm.tuning.driver.tensors import View
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.measure.baselines.tuned_baseline import BaselineOption, Call

# PyTorch's own defaults, set whatever the environment says: fp32 products in fp32 (``highest``: no TF32, no bf16 on a
# CPU), and cuBLAS may add partial sums of fp16 and bf16 in their own precision, which ours never do.
PINNED: dict[str, Any] = {
    "float32_matmul_precision": "highest",
    "allow_tf32": False,
    "allow_fp16_reduced_precision_reduction": True,
    "allow_bf16_reduced_precision_reduction": True,
}
PLAIN = "torch.matmul(a, b, out=d)"
# Bytes at multiples of which rows begin that the libraries' fast kernels load.
_ALIGNED = 16
_FACTORS: dict[Operand, set[str]] = {"a": {"m", "k"}, "b": {"k", "n"}}


class TorchBaseline:
    """``torch.matmul``, then scaling, C, bias and activation in place. Raises BaselineUnavailable."""

    def __init__(self, gemm: Gemm, ordinal: int, stream: int) -> None:
        if gemm.out != gemm.dtype:
            raise BaselineUnavailable(f"torch.matmul writes {gemm.dtype}, its inputs' dtype, not {gemm.out}")
        try:
            import torch
        except ImportError as error:
            raise BaselineUnavailable("PyTorch is not installed") from error
        if not torch.cuda.is_available():
            raise BaselineUnavailable("this PyTorch has no CUDA, or none that fits the driver")
        pin(torch)
        self._torch = torch
        self._gemm = gemm
        self._stream = torch.cuda.ExternalStream(stream, device=ordinal)

    def context(self) -> AbstractContextManager[Any]:
        """PyTorch works on our stream within it."""
        context: AbstractContextManager[Any] = self._torch.cuda.stream(self._stream)
        return context

    def candidates(self, sets: list[dict[str, View]]) -> list[BaselineOption]:
        """The one call that a user would write, without a label; of rows that are not aligned also the one with
        aligned operands."""
        careful = careful_call(self._gemm)
        if careful is None:
            return [BaselineOption({}, lambda i: self.prepared(sets[i], in_given_output))]
        return [
            BaselineOption({"call": PLAIN}, lambda i: self.prepared(sets[i], in_given_output)),
            BaselineOption({"call": careful}, lambda i: self.prepared(sets[i], with_aligned_operands)),
        ]

    def prepared(self, views: dict[str, View], write: Callable[..., Call]) -> Call:
        """A call with these operands."""
        return write(self._torch, self._gemm, **operand_tensors(self._torch, self._gemm, views))


def operand_tensors(torch: Any, gemm: Gemm, views: dict[str, View]) -> dict[str, Any]:
    """The operands as PyTorch's, A and B as the product means them."""
    tensors = {name: torch.from_dlpack(view) for name, view in views.items()}
    for name, transposed in (("a", gemm.trans_a), ("b", gemm.trans_b)):
        tensors[name] = tensors[name].mT if transposed else tensors[name]
    return tensors


def pin(torch: Any) -> None:
    """Set what ``PINNED`` says. Raises BaselineUnavailable where this PyTorch does not take it."""
    matmul = torch.backends.cuda.matmul
    torch.set_float32_matmul_precision(PINNED["float32_matmul_precision"])
    for name, value in PINNED.items():
        if name.startswith("allow_"):
            setattr(matmul, name, value)
    got = {name: getattr(matmul, name) for name in PINNED if name.startswith("allow_")}
    got["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    if got != PINNED:
        raise BaselineUnavailable(
            f"PyTorch {torch.__version__} does not take its settings: they are {got}, not {PINNED}"
        )


def careful_call(gemm: Gemm) -> str | None:
    """The call with operands whose rows are all aligned, ``with_aligned_operands``, as PyTorch code; None where they
    are as they stand."""
    unaligned, odd = unaligned_operands(gemm), odd_sizes(gemm)
    if not unaligned:
        return None
    a, b = (
        f"F.pad({name})" if odd & sizes else f"{name}.clone()" if name in unaligned else name
        for name, sizes in _FACTORS.items()
    )
    product = f"torch.matmul({a}, {b}"
    part = "[..., :m, :n]" if odd & {"m", "n"} else ""
    return f"d.copy_({product}){part})" if _makes_own_output(gemm) else f"{product}, out=d)"


def unaligned_operands(gemm: Gemm) -> dict[Operand, frozenset[str]]:
    """The matrices of which some row may begin at an address that the libraries' fast kernels do not load, each with
    those of m, n and k that a copy with aligned rows has to pad: none where one of the same size is aligned."""
    step = _ALIGNED // DTYPE_BYTES[gemm.dtype]
    inner: tuple[tuple[Operand, str, int], ...] = (
        ("a", "m", gemm.m_max) if gemm.trans_a else ("a", "k", gemm.k),
        ("b", "k", gemm.k) if gemm.trans_b else ("b", "n", gemm.n),
        ("d", "n", gemm.n),
    )
    return {
        operand: frozenset({name} if size % step else ())
        for operand, name, size in inner
        if gemm.align < _ALIGNED
        or evaluate(gemm.leading(operand), gemm.m_max) % step
        or (gemm.batch > 1 and evaluate(gemm.batch_stride(operand), gemm.m_max) % step)
    }


def odd_sizes(gemm: Gemm) -> frozenset[str]:
    """Which of m, n and k a user would pad."""
    return frozenset().union(*unaligned_operands(gemm).values())


def _makes_own_output(gemm: Gemm) -> bool:
    """Whether the product of aligned operands is copied into D, whose rows or sizes are not those."""
    return "d" in unaligned_operands(gemm) or bool(odd_sizes(gemm) & {"m", "n"})


def in_given_output(torch: Any, gemm: Gemm, a: Any, b: Any, d: Any, c: Any = None, bias: Any = None) -> Call:
    """``torch.matmul`` into ``d``, then scaling, C, bias and activation in place. A and B are as the product means
    them."""
    finish = _epilogue(torch, gemm, d, c, bias)

    def run() -> None:
        torch.matmul(a, b, out=d)
        finish()

    return run


def with_aligned_operands(torch: Any, gemm: Gemm, a: Any, b: Any, d: Any, c: Any = None, bias: Any = None) -> Call:
    """As ``in_given_output``, with what is not aligned filled up with zeros to multiples of 16 bytes, or copied, in
    every call."""
    unaligned, odd, step = unaligned_operands(gemm), odd_sizes(gemm), _ALIGNED // DTYPE_BYTES[gemm.dtype]
    (m, k), n = a.shape[-2:], b.shape[-1]
    more_m, more_n, more_k = (-size % step if name in odd else 0 for name, size in (("m", m), ("n", n), ("k", k)))
    own_output, finish = _makes_own_output(gemm), _epilogue(torch, gemm, d, c, bias)

    def run() -> None:
        left = _filled(torch, a, more_m, more_k, gemm.trans_a, copied="a" in unaligned)
        right = _filled(torch, b, more_k, more_n, gemm.trans_b, copied="b" in unaligned)
        if own_output:
            d.copy_(torch.matmul(left, right)[..., :m, :n])
        else:
            torch.matmul(left, right, out=d)
        finish()

    return run


def _filled(torch: Any, tensor: Any, rows: int, columns: int, transposed: bool, *, copied: bool) -> Any:
    """The tensor with so many rows and columns of zeros, laid out as it was but for its strides; itself where there
    are none, unless it is to be ``copied``."""
    if transposed:
        return _filled(torch, tensor.mT, columns, rows, False, copied=copied).mT
    if rows or columns:
        return torch.nn.functional.pad(tensor, (0, columns, 0, rows))
    return tensor.clone(memory_format=torch.contiguous_format) if copied else tensor


def _epilogue(torch: Any, gemm: Gemm, d: Any, c: Any, bias: Any) -> Callable[[], None]:
    """Scaling, C, bias and activation of D in place."""
    act = activation(torch, gemm.act)

    def run() -> None:
        if gemm.alpha:
            d.mul_(1.0)
        if c is not None:
            d.add_(c, alpha=1.0)
        if bias is not None:
            d.add_(bias)
        if act is not None:
            d.copy_(act(d))

    return run


def activation(torch: Any, act: str) -> Callable[[Any], Any] | None:
    """PyTorch's function for an activation's name, or None."""
    functional = torch.nn.functional
    functions: dict[str, Callable[[Any], Any] | None] = {
        "none": None,
        "relu": torch.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "silu": functional.silu,
    }
    return functions[act]
