"""Everything that the host must do to run a kernel, as data: the ``Launch``.

One description for both device kinds. On a GPU a KernelLaunch is one cuLaunchKernelEx. On a CPU it is a function
of the shared object called once for each block index of ``grid[0]`` (``grid[1] == grid[2] == 1``, block and cluster
all 1), spread over the launcher's threads; the index is passed as the last argument. Kernels run in order.
Dims are integers or expressions in m (``tirgemm.expr``).

A CPU kernel ``pack_b`` that takes tensor ``b`` and workspace ``packed_b`` alone writes what depends on B alone, which
the kernels behind it only read: a caller whose B stays the same may keep it, and leave that kernel out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tirgemm import expr
from tirgemm.errors import CorruptArtifact
from tirgemm.expr import Dim
from tirgemm.gemm import Gemm

Dim3: TypeAlias = "tuple[Dim, Dim, Dim]"


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor of the call: dtype in short form, shape and strides in elements, base alignment in bytes."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    align: int
    output: bool = False


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A scalar of the call (alpha, beta), passed to kernels by value."""

    name: str
    dtype: str = "f32"


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory of one call, on the device, in bytes; ``init`` says what is in it when the first kernel starts."""

    name: str
    nbytes: Dim
    init: Literal["none", "zero"] = "none"


@dataclass(frozen=True, slots=True)
class Pointer:
    """Kernel parameter: the base address of a tensor or a workspace."""

    name: str


@dataclass(frozen=True, slots=True)
class Scalar:
    """Kernel parameter: a scalar of the call."""

    name: str


@dataclass(frozen=True, slots=True)
class Size:
    """Kernel parameter: an integer evaluated at the call."""

    value: Dim
    dtype: Literal["i32", "i64"] = "i32"


@dataclass(frozen=True, slots=True)
class TensorMap:
    """Kernel parameter: a TMA descriptor, by value. Dims and the box's sides inner first, in elements; strides in
    bytes, without the innermost.

    The enumerations are the driver's (CUtensorMapSwizzle and so on); ``dtype`` is the short form.
    """

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    box: tuple[Dim, ...]
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    oob_fill: int = 0

    def box_at(self, m: int) -> tuple[int, ...]:
        """The box's sides for one m."""
        return tuple(expr.evaluate(side, m) for side in self.box)


Param: TypeAlias = "Pointer | Scalar | Size | TensorMap"


# A launch that begins before the kernel ahead of it in the stream has ended: the kernel waits by griddepcontrol.
DEPENDENT_LAUNCH = ("programmatic_dependent_launch", 1)


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One kernel: its symbol, extents, dynamic shared memory in bytes, and parameters in order.

    ``attributes``: ``("threads", n)`` on a CPU caps the threads of the launcher (0: all);
    ``("programmatic_dependent_launch", 1)`` on a GPU sets that launch attribute.
    """

    symbol: str
    params: tuple[Param, ...]
    grid: Dim3 = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    attributes: tuple[tuple[str, int], ...] = ()

    @property
    def is_dependent(self) -> bool:
        """Whether the launcher lets it begin before what is ahead of it in the stream has ended."""
        name, _ = DEPENDENT_LAUNCH
        return any(attribute[0] == name and attribute[1] != 0 for attribute in self.attributes)


@dataclass(frozen=True, slots=True)
class Launch:
    """The whole host side of one call, in order."""

    tensors: tuple[TensorArg, ...]
    scalars: tuple[ScalarArg, ...]
    kernels: tuple[KernelLaunch, ...]
    workspaces: tuple[Workspace, ...] = ()

    def workspace_bytes(self, m: int) -> int:
        return sum(expr.evaluate(w.nbytes, m) for w in self.workspaces)

    def to_json(self) -> dict[str, Any]:
        return {
            "tensors": [_plain(t) for t in self.tensors],
            "scalars": [_plain(s) for s in self.scalars],
            "workspaces": [_plain(w) for w in self.workspaces],
            "kernels": [_plain(k) | {"params": [_param(p) for p in k.params]} for k in self.kernels],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Launch:
        """The Launch that ``to_json`` wrote. Raises CorruptArtifact."""
        try:
            return cls(
                tensors=tuple(TensorArg(**_dims(t, "shape", "strides")) for t in value["tensors"]),
                scalars=tuple(ScalarArg(**s) for s in value["scalars"]),
                workspaces=tuple(Workspace(**w | {"nbytes": expr.from_json(w["nbytes"])}) for w in value["workspaces"]),
                kernels=tuple(_kernel(k) for k in value["kernels"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptArtifact(f"the manifest's launch description is malformed: {error!r}") from error


def tensor_args(gemm: Gemm) -> tuple[TensorArg, ...]:
    """The tensors of a call of ``gemm``, in call order: inputs (a, b, c, bias), then d."""
    args = []
    for name in (*gemm.inputs, "d"):
        if name == "bias":
            args.append(TensorArg("bias", gemm.out, (gemm.n,), (1,), gemm.align))
        else:
            op: Any = name
            args.append(
                TensorArg(name, gemm.operand_dtype(op), gemm.shape(op), gemm.strides(op), gemm.align, name == "d")
            )
    return tuple(args)


def scalar_args(gemm: Gemm) -> tuple[ScalarArg, ...]:
    """The scalars of a call of ``gemm``, in call order: alpha, beta."""
    return tuple(ScalarArg(name) for name in gemm.scalars)


_PARAMS: dict[str, type[Any]] = {"pointer": Pointer, "scalar": Scalar, "size": Size, "tensor_map": TensorMap}
_KINDS = {cls: kind for kind, cls in _PARAMS.items()}


def _plain(value: Any) -> dict[str, Any]:
    return {name: _json(getattr(value, name)) for name in value.__slots__ if name != "params"}


def _json(value: Any) -> Any:
    if isinstance(value, expr.Expr):
        return expr.to_json(value)
    if isinstance(value, tuple):
        return [_json(v) for v in value]
    return value


def _param(param: Param) -> dict[str, Any]:
    return {"kind": _KINDS[type(param)]} | _plain(param)


def _dims(value: dict[str, Any], *names: str) -> dict[str, Any]:
    return value | {name: tuple(expr.from_json(d) for d in value[name]) for name in names}


def _kernel(value: dict[str, Any]) -> KernelLaunch:
    params: list[Param] = []
    for entry in value["params"]:
        fields = {k: v for k, v in entry.items() if k != "kind"}
        kind = _PARAMS[entry["kind"]]
        if kind is Size:
            fields["value"] = expr.from_json(fields["value"])
        elif kind is TensorMap:
            fields = _dims(fields, "dims", "strides", "box") | {"element_strides": tuple(fields["element_strides"])}
        params.append(kind(**fields))
    grid = _dims(value, "grid")["grid"]
    attributes = tuple((str(name), int(number)) for name, number in value["attributes"])
    extents = {k: tuple(value[k]) for k in ("block", "cluster")}
    types = [type(each) for each in (value["symbol"], value["shared_bytes"], *extents["block"], *extents["cluster"])]
    if types != [str] + [int] * 7 or len(extents["block"]) != 3:
        raise ValueError("a kernel's symbol, shared_bytes, block or cluster is of another form")
    return KernelLaunch(**value | extents | {"params": tuple(params), "grid": grid, "attributes": attributes})
