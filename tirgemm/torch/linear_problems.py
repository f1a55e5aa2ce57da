"""``LinearProblems``: the linears of a model with the problems of their calls, or why they are left alone.

A ``tirgemm.torch.Linear`` stays as it is, but has problems too: the user wrote it, or it comes from a model that was
accelerated before, in this process or another.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, InvalidDevice, InvalidGemm, InvalidRequest
from tirgemm.gemm import DTYPE_BYTES, MAX_SIZE, Gemm, Range
from tirgemm.torch.kernel_table import KernelTable, device_of
from tirgemm.torch.linear_call import PLAIN
from tirgemm.torch.linear_module import Linear
from tirgemm.torch.problems import DTYPES, NotServed, aligned, check_plain, layout_of

Rows: TypeAlias = "int | Range | Iterable[int | Range]"
_ALREADY = "it is a tirgemm.torch.Linear already"
_FORWARD = "its forward was replaced"


@dataclass(frozen=True, slots=True)
class LinearProblems:
    """A linear with all its ``names`` in the model, its problems, one a number of rows, and the device of its weight.

    ``reason`` says why it is left alone; empty where it need not be. ``already``: it is a ``tirgemm.torch.Linear``,
    whose problems are those that its own settings make.
    """

    names: tuple[str, ...]
    module: nn.Linear
    gemms: tuple[Gemm, ...]
    device: Device | None
    reason: str
    already: bool = False

    def other_class(self) -> str:
        """Why a linear that became a ``tirgemm.torch.Linear``, or was one, is none now, or ""."""
        kind = type(self.module)
        if kind is nn.Linear:
            return "it is a plain torch.nn.Linear again"
        return "" if kind is Linear else f"it is a {kind.__name__} now, which may compute something else"

    def other_calls(self) -> str:
        """What became of it that makes its calls other problems than these, or none, or ""."""
        if not self.gemms or self.device is None:
            return ""
        if "forward" in self.module.__dict__:
            return _FORWARD
        asked, (weight, bias) = self.gemms[0], map(self.module._parameters.get, ("weight", "bias"))
        if weight is None:
            return "its weight is no parameter any more"
        is_asked = weight.dtype == DTYPES[asked.dtype] and tuple(weight.shape) == (asked.n, asked.k)
        if not is_asked or weight.device.type != self.device.kind:
            return f"its weight is {tuple(weight.shape)} of {weight.dtype} on {weight.device} now: accelerate it again"
        if other := _other_type(weight, bias):
            return f"one of its parameters is a {other} now"
        if (bias is not None) != asked.bias:
            return f"it has {'no' if bias is None else 'a'} bias now: accelerate it again"
        if not _is_laid_out(weight, asked):
            return f"its weight has strides {weight.stride()} now: accelerate it again"
        return ""

    def left_to_pytorch(self, table: KernelTable) -> bool:
        """Whether PyTorch is left all rows of all its problems."""
        return self.device is not None and all(table.excludes(gemm, self.device) for gemm in self.gemms)


def _other_type(*parameters: torch.Tensor | None) -> str:
    """The type of the first parameter that is none of PyTorch's own, or ""."""
    return next((type(each).__name__ for each in parameters if each is not None and type(each) not in PLAIN), "")


def _is_laid_out(weight: torch.Tensor, asked: Gemm) -> bool:
    """Whether ``asked`` reads a weight with these strides."""
    try:
        layout = layout_of(weight.mT.shape, weight.mT.stride(), "t")
    except NotServed:
        return False
    return replace(asked, layout=f"n{layout.letter}", ldb=layout.leading) == asked


def row_counts(rows: Rows) -> tuple[int | Range, ...]:
    """``rows`` as numbers and Ranges; integers may be of any type. Raises InvalidRequest."""
    counts = [_row_count(each) for each in _listed(rows)]
    if not counts:
        raise InvalidRequest("rows is empty; give the numbers of rows that the model is called with, or a Range")
    return tuple(dict.fromkeys(counts))


def _listed(rows: Any) -> list[object]:
    if isinstance(rows, (Range, str)) or _integer(rows) is not None:
        return [rows]
    try:
        return [*rows]
    except TypeError:
        return [rows]


def _row_count(rows: object) -> int | Range:
    low, high = (_integer(rows.low), _integer(rows.high)) if isinstance(rows, Range) else [_integer(rows)] * 2
    if low is None or high is None or not 1 <= low <= high <= MAX_SIZE:
        such_as = f"a number from 1 to {MAX_SIZE}, a range such as tirgemm.Range(1, 64), or a list of these"
        raise InvalidRequest(f"rows is {rows!r:.80}; it must be {such_as}")
    return Range(low, high) if isinstance(rows, Range) else low


def _integer(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def linears_of(
    model: nn.Module,
    rows: Sequence[int | Range],
    *,
    invariant: bool = False,
    dependent_launch: bool = False,
    prepack: bool = False,
) -> list[LinearProblems]:
    """Every linear of ``model``, in the order of its modules; of one that occurs twice the names together. Problems are
    ``invariant`` where that is asked for; their kernels are for dependent launches where that is. What is a
    ``tirgemm.torch.Linear`` already and lacks the ``prepack`` that is asked for says so."""
    wanted = {"invariant": invariant, "dependent_launch": dependent_launch, "prepack": prepack}
    names: dict[int, list[str]] = {}
    modules: dict[int, nn.Linear] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear):
            modules[id(module)] = module
            names.setdefault(id(module), []).append(name)
    return [_problems(tuple(names[key]), module, rows, **wanted) for key, module in modules.items()]


def _problems(
    names: tuple[str, ...],
    module: nn.Linear,
    rows: Sequence[int | Range],
    *,
    invariant: bool,
    dependent_launch: bool,
    prepack: bool,
) -> LinearProblems:
    already, act = type(module) is Linear, "none"
    reason = why_left_alone(module)
    if already:
        reason = reason or _other_settings(module, invariant=invariant, dependent_launch=dependent_launch)
        invariant, act = module.invariant, module.act
    if reason:
        return LinearProblems(names, module, (), None, reason, already)
    weight, bias = module.weight, module.bias
    tensors = [weight] if bias is None else [weight, bias]
    try:
        dtype = check_plain(tensors)
        if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):  # a shard, say
            raise NotServed(f"shapes {', '.join(str(tuple(tensor.shape)) for tensor in tensors)}")
        layout = layout_of(weight.mT.shape, weight.mT.stride(), "t")
        align = aligned(tensors, DTYPE_BYTES[dtype])
        n, k = weight.shape
        problem = partial(Gemm, n=n, k=k, dtype=dtype, layout=f"n{layout.letter}", ldb=layout.leading, align=align)
        gemms = tuple(problem(m, bias=bias is not None, act=act, invariant=invariant) for m in rows)
        if already:
            unpacked = prepack and weight.device.type == "cpu" and not module._prepack
            reason = f"{_ALREADY}, without prepack=True" if unpacked else _ALREADY
        return LinearProblems(names, module, gemms, device_of(weight.device), reason, already)
    except NotServed as error:
        reason = f"its parameters are not for kernels: {error}"
    except (InvalidGemm, InvalidDevice, DeviceUnavailable) as error:
        reason = str(error)
    return LinearProblems(names, module, (), None, reason, already)


def _other_settings(module: Linear, *, invariant: bool, dependent_launch: bool) -> str:
    """Why kernels as they are wanted would not compute a Linear, or ""."""
    if invariant and not module.invariant:
        return f"{_ALREADY}, without invariant=True"
    if dependent_launch != module.dependent_launch:
        return f"{_ALREADY}, {'without' if dependent_launch else 'with'} dependent_launch=True"
    return ""


def why_left_alone(module: nn.Linear) -> str:
    """Why a linear must stay as it is, or ""."""
    kind = type(module)
    if kind not in (nn.Linear, Linear):
        return f"it is a {kind.__name__}, which may compute something else"
    if "forward" in module.__dict__:
        return _FORWARD
    own = module._parameters
    if own.get("weight") is None or "bias" not in own:
        return "its weight or its bias is no parameter"
    given = [parameter for parameter in own.values() if parameter is not None]
    if other := _other_type(*given):
        return f"one of its parameters is a {other}"
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in given):
        return (
            "its parameters require grad and gradients are recorded; call model.requires_grad_(False), or accelerate "
            "under torch.no_grad()"
        )
    return ""
