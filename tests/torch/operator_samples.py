"""PyTorch's own samples of its products (OpInfo) as calls, and what is checked of them within ``routed``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import unittest
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from tests.torch.built_kernels import BuiltKernels
from tirgemm.gemm import Gemm, Range

OPERATORS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "matmul",
    "nn.functional.linear",
    "einsum",
    "tensordot",
    "linalg.multi_dot",
)
# What may be told of a call that no kernel computed; anything else would be a fault of ours.
REASONS = {
    "empty operand",
    "in place",
    "shapes",
    "strides",
    "batch stride",
    "refused by the launcher",
    "dtypes or devices that differ",
}


def samples(dtype: Any, place: str = "cpu") -> Iterator[tuple[str, Any, Any]]:
    """Every sample of OpInfo for OPERATORS: the operator's name, the OpInfo and the sample."""
    # Its tests' base class is all that PyTorch's module takes from this package, which need not be installed.
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in = ModuleType("expecttest")
        vars(stand_in)["TestCase"] = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    database = importlib.import_module("torch.testing._internal.common_methods_invocations").op_db
    # What importing it forbids to other tests of this process: to set flags of torch.backends.
    torch.backends.__allow_nonbracketed_mutation_flag = True
    for op in database:
        # The samples of its Triton kernel are outer products of large matrices, six kernels more.
        if op.name in OPERATORS and op.variant_test_name != "triton_optimized":
            for sample in op.sample_inputs(place, dtype, requires_grad=False):
                yield op.name, op, sample.transform(_whole)


def _whole(value: Any) -> Any:
    """Whole numbers, small ones of few bits: sums of them, and of their products' sums, are exact in any order."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.round() if value.dtype == torch.float32 else value.round().clamp(-2, 2)


def lying_otherwise(tensor: Any) -> Iterator[Any]:
    """The same elements by columns, within a wider matrix, with gaps; and one row, and one matrix, for all."""
    if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2 or tensor.numel() == 0:
        return
    yield tensor.mT.contiguous().mT
    yield torch.nn.functional.pad(tensor, (4, 4))[..., 4:-4]
    yield tensor.repeat_interleave(2, -1)[..., ::2]
    yield tensor[..., :1, :].expand(tensor.shape)
    if tensor.dim() == 3:
        yield tensor[:1].expand(tensor.shape)


@dataclass(frozen=True)
class Call:
    """One call of an operator; ``written``: whether it is tried with ``out=`` too."""

    op: Any
    given: tuple[Any, ...]
    more: dict[str, Any]
    written: bool = False

    def __call__(self, **more: Any) -> Any:
        return self.op(*self.given, **self.more, **more)

    def attempt(self, out: Any) -> Any:
        """``out``, once it is written; of a call that PyTorch refuses, its words."""
        try:
            assert self(out=out) is out
        except RuntimeError as error:
            return str(error)
        return out

    def outputs(self, result: Any) -> Iterator[Any]:
        """Where the result may be written: in its shape, by columns, within a wider tensor, where it does not fit."""
        if not self.written:
            return
        yield torch.full_like(result, float("nan"))
        if result.dim() >= 2 and result.numel():
            yield torch.full_like(result.mT.contiguous(), float("nan")).mT
            yield result.new_full((*result.shape[:-1], result.shape[-1] + 4), float("nan"))[..., 4:]
        yield result.new_empty(0)

    def in_double(self) -> Any:
        """What PyTorch computes of the same values in fp64."""
        return self.op(*map(widened, self.given), **self.more)


def widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double()
    return type(value)(map(widened, value)) if isinstance(value, (list, tuple)) else value


def calls(dtype: Any, place: str = "cpu") -> Iterator[Call]:
    """Every sample as a call; those of the four operators lying otherwise in memory too."""
    for name, op, sample in samples(dtype, place):
        tensors = (sample.input, *sample.args)
        yield Call(op, tensors, sample.kwargs, op.supports_out)
        if name in OPERATORS[:4]:
            for position, tensor in enumerate(tensors):
                for other in lying_otherwise(tensor):
                    yield Call(op, (*tensors[:position], other, *tensors[position + 1 :]), sample.kwargs)


def with_a_range_of_m(gemms: list[Gemm]) -> list[Gemm]:
    """The same problems, those that differ in m alone as one of a range."""
    groups: dict[str, list[Gemm]] = {}
    for gemm in gemms:
        groups.setdefault(str(gemm).partition("x")[2], []).append(gemm)
    return [
        group[0] if len(group) == 1 else group[0].with_(m=Range(1, max(gemm.m_max for gemm in group)))
        for group in groups.values()
    ]


def prepare_missing(source: BuiltKernels, dtype: Any, place: str = "cpu") -> str | None:
    """Make a kernel for every problem among the samples, as one group, and offer them; why that cannot be, or None."""
    from tirgemm.torch import routed
    from tirgemm.torch.kernel_table import TABLE

    with routed("default") as missing:
        for call in calls(dtype, place):
            for out in call.outputs(call()):
                call.attempt(out)
    refusal = source.refusal(next(iter(missing.missing)), source.device, "default")
    if refusal is None:
        prepared = source.prepare(with_a_range_of_m(list(missing.missing)), source.device, "default", TABLE.add)
        assert prepared.wait(240)
        assert not prepared.failures
    return refusal


def check_samples(dtype: Any, place: str, *, rtol: float, atol: float) -> Counter[str]:
    """Check every call against PyTorch's result in fp64, exactly where all numbers are whole, and that what no kernel
    computes has a reason. How many ``samples`` there were, ``all`` the products, and those ``served``."""
    from tirgemm.torch import routed

    total: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for call in calls(dtype, place):
        wanted, theirs = call.in_double(), call()
        with routed("default") as counted:
            result = call()
            written = [call.attempt(out) for out in call.outputs(result)]
        exact = not {"alpha", "beta"} & call.more.keys()
        for ours, plain in zip([result, *written], [theirs, *map(call.attempt, call.outputs(theirs))], strict=True):
            if isinstance(plain, str):
                assert ours == plain
                continue
            assert (ours.dtype, ours.shape, ours.stride()) == (plain.dtype, plain.shape, plain.stride())
            torch.testing.assert_close(
                ours.double(),
                (wanted.to(dtype) if exact else wanted).double(),
                rtol=0 if exact else rtol,
                atol=0 if exact else atol,
                msg=f"{call}: {{}}".format,
            )
        total.update(samples=1, served=counted.served, all=counted.total)
        reasons += counted.reasons
    assert not reasons.keys() - REASONS
    return total
