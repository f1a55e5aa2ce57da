"""``LinearProblems``: the linears of a model with the problems of their calls, or why they are left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, InvalidDevice, InvalidGemm
from tirgemm.gemm import DTYPE_BYTES, Gemm, Range
from tirgemm.torch.kernel_table import KernelTable, device_of
from tirgemm.torch.linear_call import PLAIN
from tirgemm.torch.linear_module import Linear
from tirgemm.torch.problems import MatrixLayout, NotServed, aligned, check_plain, layout_of


@dataclass(frozen=True, slots=True)
class LinearProblems:
    """A linear with all its ``names`` in the model, its problems, one a number of rows, and the device of its weight.

    ``reason`` says why it is left alone; empty where it need not be.
    """

    names: tuple[str, ...]
    module: nn.Linear
    gemms: tuple[Gemm, ...]
    device: Device | None
    reason: str

    def left_to_pytorch(self, table: KernelTable) -> bool:
        """Whether PyTorch is left all rows of all its problems."""
        return self.device is not None and all(table.excludes(gemm, self.device) for gemm in self.gemms)


def linears_of(model: nn.Module, rows: Sequence[int | Range], *, invariant: bool = False) -> list[LinearProblems]:
    """Every linear of ``model``, in the order of its modules; of one that occurs twice the names together. Problems are
    ``invariant`` where that is asked for."""
    names: dict[int, list[str]] = {}
    modules: dict[int, nn.Linear] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear):
            modules[id(module)] = module
            names.setdefault(id(module), []).append(name)
    return [_problems(tuple(names[key]), module, rows, invariant) for key, module in modules.items()]


def _problems(
    names: tuple[str, ...], module: nn.Linear, rows: Sequence[int | Range], invariant: bool
) -> LinearProblems:
    reason = _left_alone(module)
    weight, bias = module.weight, module.bias
    if reason:
        return LinearProblems(names, module, (), None, reason)
    tensors = [weight] if bias is None else [weight, bias]
    try:
        dtype = check_plain(tensors)
        layout = layout_of(weight.mT.shape, weight.mT.stride(), "t")
        align = aligned(tensors, DTYPE_BYTES[dtype])
        gemms = tuple(_gemm(m, module, dtype, layout, align).with_(invariant=invariant) for m in rows)
        return LinearProblems(names, module, gemms, device_of(weight.device), "")
    except NotServed as error:
        return LinearProblems(names, module, (), None, f"its parameters are not for kernels: {error}")
    except (InvalidGemm, InvalidDevice, DeviceUnavailable) as error:
        return LinearProblems(names, module, (), None, str(error))


def _gemm(m: int | Range, module: nn.Linear, dtype: str, layout: MatrixLayout, align: int) -> Gemm:
    return Gemm(
        m=m,
        n=module.out_features,
        k=module.in_features,
        dtype=dtype,
        layout=f"n{layout.letter}",
        ldb=layout.leading,
        align=align,
        bias=module.bias is not None,
    )


def _left_alone(module: nn.Linear) -> str:
    """Why a linear must stay as it is, or ""."""
    kind = type(module)
    if kind is Linear:
        return "it is a tirgemm.torch.Linear already"
    if kind is not nn.Linear:
        return f"it is a {kind.__name__}, which may compute something else"
    if "forward" in module.__dict__:
        return "its forward was replaced"
    own = module._parameters
    if own.get("weight") is None or "bias" not in own:
        return "its weight or its bias is no parameter"
    given = [parameter for parameter in own.values() if parameter is not None]
    other = next((type(parameter).__name__ for parameter in given if type(parameter) not in PLAIN), None)
    if other is not None:
        return f"one of its parameters is a {other}"
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in given):
        return (
            "its parameters require grad and gradients are recorded; call model.requires_grad_(False), or accelerate "
            "under torch.no_grad()"
        )
    return ""
