"""Consistency checks of lowered kernels against the family's ``Launch``.

TVM orders a device kernel's parameters itself, and passes parts of index expressions as parameters of their own. The
lowered host function holds the truth: one ``call_ffi_kernel`` with every argument and every extent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tirgemm import expr
from tirgemm.errors import BuildFailed
from tirgemm.expr import Dim
from tirgemm.launch import KernelLaunch, Param, Pointer, Scalar, Size, TensorMap

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.tirx import PrimFunc

_AXES = {"x": 0, "y": 1, "z": 2}
_BINARY = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "FloorDiv": "floordiv",
    "FloorMod": "mod",
    "Min": "min",
    "Max": "max",
    # Sizes are never negative, so that C's division is the floor.
    "Div": "floordiv",
    "Mod": "mod",
}
# Where two expressions in m must agree: around every power of two that a tile could be, and off them.
_PROBES = sorted({max(1, 2**p + d) for p in range(14) for d in (-1, 0, 1)} | {77, 1000, 4095, 10007})


def check_kernel(kernel: KernelLaunch, scheduled: IRModule, host: IRModule) -> KernelLaunch:
    """``kernel`` with the symbol and the parameter order of the device kernel.

    ``scheduled`` is the module as the family made it, ``host`` the lowered one. Raises BuildFailed where they disagree.
    """
    declared = [str(param.name) for param in _function(scheduled, kernel.symbol).params]
    if len(declared) != len(kernel.params):
        raise BuildFailed(f"kernel {kernel.symbol} has {len(declared)} parameters, its launch {len(kernel.params)}")
    calls, bindings = _survey(_function(host, kernel.symbol))
    if len(calls) != 1:
        raise BuildFailed(f"kernel {kernel.symbol} lowers to {len(calls)} launches; a PrimFunc must be exactly one")
    reader = _Reader(kernel.symbol, dict(zip(declared, kernel.params, strict=True)), bindings)
    args = list(calls[0].args)
    tags = [str(tag) for tag in calls[0].attrs.launch_params]
    values, extents = args[1 : len(args) - len(tags)], args[len(args) - len(tags) :]
    _check_extents(kernel, {tag: reader.dim(value) for tag, value in zip(tags, extents, strict=True)})
    params = tuple(reader.param(value) for value in values)
    # A size may be folded away or spread over several; a tensor or scalar that the device never takes is a mistake.
    lost = [p for p in kernel.params if isinstance(p, (Pointer, Scalar, TensorMap)) and p not in params]
    if lost:
        raise BuildFailed(f"kernel {kernel.symbol}: the lowered kernel does not take {lost[0].name}")
    return replace(kernel, symbol=str(args[0].value), params=params)


@dataclass
class _Reader:
    """Reads the host function's expressions; ``names`` are the PrimFunc's own parameters."""

    symbol: str
    names: dict[str, Param]
    bindings: dict[str, Any]

    def param(self, value: Any) -> Param:
        """The parameter that a launch argument is."""
        if type(value).__name__ == "Call" and str(value).endswith(".data"):
            pointer = self.names.get(str(value).removesuffix(".data"))
            if isinstance(pointer, Pointer):
                return pointer
        if type(value).__name__ == "Var" and isinstance(self.names.get(value.name), (Scalar, TensorMap, Pointer)):
            return self.names[value.name]
        dtype = str(value.ty.dtype)
        if dtype not in ("int32", "int64"):
            raise BuildFailed(f"kernel {self.symbol}: launch argument {value} is no parameter of the launch")
        return Size(self.dim(value), "i32" if dtype == "int32" else "i64")

    def dim(self, value: Any) -> Dim:
        """An integer expression of the host function as a Dim."""
        kind = type(value).__name__
        if kind == "IntImm":
            return int(value.value)
        if kind == "Var":
            known = self.names.get(value.name)
            if isinstance(known, Size):
                return known.value
            if value.name in self.bindings:
                return self.dim(self.bindings[value.name])
        if kind == "Cast":
            return self.dim(value.value)
        if kind in _BINARY:
            return expr.make(_BINARY[kind], self.dim(value.a), self.dim(value.b))
        raise BuildFailed(f"kernel {self.symbol}: {value} is not an integer expression in the launch's sizes")


def _function(host: IRModule, symbol: str) -> PrimFunc:
    for var, function in host.functions.items():
        if var.name_hint == symbol or str(function.attrs["global_symbol"]) in (symbol, f"__tvm_ffi_{symbol}"):
            return function
    known = ", ".join(var.name_hint for var in host.functions)
    raise BuildFailed(f"kernel {symbol} of the launch is not a function of the module, which has {known}")


def _survey(function: PrimFunc) -> tuple[list[Any], dict[str, Any]]:
    """The kernel launches of a host function, and what its variables are bound to."""
    from tvm_ffi.structural import structural_walk

    calls: list[Any] = []
    bindings: dict[str, Any] = {}

    def visit(node: Any) -> None:
        kind = type(node).__name__
        if kind == "Call" and getattr(node.op, "name", "") == "tirx.call_ffi_kernel":
            calls.append(node)
        elif kind == "Bind":
            bindings[node.var.name] = node.value

    structural_walk(function.body, visit)
    return calls, bindings


def _check_extents(kernel: KernelLaunch, lowered: dict[str, Dim]) -> None:
    extents: dict[str, list[Dim]] = {name: [1, 1, 1] for name in ("grid", "block", "cluster")}
    shared: Dim = 0
    for tag, value in lowered.items():
        name, _, axis = tag.partition(".")
        if tag == "tirx.use_dyn_shared_memory":
            shared = value
        elif name in ("blockIdx", "threadIdx", "clusterCtaIdx") and axis in _AXES:
            extents[{"blockIdx": "grid", "threadIdx": "block", "clusterCtaIdx": "cluster"}[name]][_AXES[axis]] = value
        else:
            raise BuildFailed(
                f"kernel {kernel.symbol}: the lowered launch has the extent {tag}, which no launch describes"
            )
    for name, dims in extents.items():
        declared = getattr(kernel, name)
        if not all(_same(a, b) for a, b in zip(dims, declared, strict=True)):
            raise BuildFailed(
                f"kernel {kernel.symbol}: {name} is lowered as {_shown(dims)}, the launch says {_shown(declared)}"
            )
    if not _same(shared, kernel.shared_bytes):
        raise BuildFailed(
            f"kernel {kernel.symbol}: dynamic shared memory is lowered as {_shown([shared])} bytes, "
            f"the launch says {kernel.shared_bytes}"
        )


def _same(left: Dim, right: Dim) -> bool:
    return all(expr.evaluate(left, m) == expr.evaluate(right, m) for m in _PROBES)


def _shown(dims: Any) -> str:
    return " x ".join(str(expr.to_json(d)) for d in dims)
