"""Translation of TVM's integer expressions, indices and pointers to ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from tirgemm.analysis.ir import intrinsics
from tirgemm.analysis.ir.expressions import LANE, IrExpr, add, const, make, scale, symbol, thread_index, unknown
from tirgemm.analysis.ir.sites import SiteSpace

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_BINARY = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "FloorDiv": "floordiv",
    "FloorMod": "floormod",
    "Div": "truncdiv",
    "Mod": "truncmod",
    "Min": "min",
    "Max": "max",
    "LT": "lt",
    "LE": "le",
    "EQ": "eq",
    "NE": "ne",
    "And": "both",
    "Or": "either",
    "BitwiseAnd": "and",
    "BitwiseOr": "or",
    "BitwiseXor": "xor",
    "LShift": "shl",
    "RShift": "shr",
}
_CALLED = {
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "bitwise_not": "invert",
    "shift_left": "shl",
    "shift_right": "shr",
}
_SWAPPED = {"GT": "lt", "GE": "le"}
INTEGER = re.compile(r"u?int(\d+)|bool")


class Values:
    """What the variables and registers of one device function stand for.

    ``extents``: of every ``threadIdx``, ``blockIdx`` and ``clusterCtaIdx`` axis of the launch; ``sizes``: the values of
    the function's integer parameters; ``names``: its pointer and tensor map parameters -> the launch's tensors.
    """

    def __init__(
        self, function: PrimFunc, extents: Mapping[str, int], sizes: Mapping[str, int], names: Mapping[str, str]
    ) -> None:
        self.extents = extents
        self.values: dict[Any, IrExpr] = {}
        self.maps: dict[Any, str] = {}
        self.numbers: dict[Any, int] = {}
        self.pointees: dict[str, Any] = {}
        self.bases: dict[Any, IrExpr] = {}
        for param in function.params:
            name = str(param.name)
            if name in sizes:
                self.values[param] = const(sizes[name])
            elif name in names:
                self.maps[param] = names[name]

    def integer(self, node: Any) -> IrExpr:
        """An integer expression; addresses in shared memory and of tensors count from their start."""
        return self.pointing(node)[0]

    def pointing(self, node: Any) -> tuple[IrExpr, Any]:
        """An integer expression, and the buffer to which it points, if it does."""
        kind = type(node).__name__
        if kind == "IntImm":
            return const(int(node.value)), None
        if kind == "Var":
            if node in self.values:
                value = self.values[node]
                return value, self.pointees.get(value.value) if value.kind == "symbol" else None
            if "handle" not in str(node.ty) and re.match(r"u?int|bool", _dtype(node)):
                return unknown(f"{node.name}, which the launch does not give"), None
            return const(0), node
        if kind in _BINARY or kind in _SWAPPED:
            (a, left), (b, right) = self.pointing(node.a), self.pointing(node.b)
            value = make(_SWAPPED[kind], b, a) if kind in _SWAPPED else make(_BINARY[kind], a, b)
            return value, left if left is not None else right
        if kind == "Cast":
            if not is_integer(node.value):
                return unknown("an integer made of a number with a fraction"), None
            return self.pointing(node.value)
        if kind == "Not":
            return make("not", self.integer(node.a)), None
        if kind == "Select":
            return self.choice(node.condition, node.true_value, node.false_value)
        if kind == "TensorLoad":
            return self.register(node.source, node.indices)
        if kind == "Ramp":
            return self.pointing(node.base)
        if kind == "Broadcast":
            return self.pointing(node.value)
        if kind == "Call":
            return self.called(node)
        if kind == "Let":
            self.let(node)
            return self.pointing(node.body)
        return unknown(f"a {kind}, an expression of a kind that this analysis does not know"), None

    def let(self, node: Any) -> None:
        """Note what the name stands for that a Let gives a value in its body."""
        whole = is_integer(node.var)
        self.values[node.var] = self.integer(node.value) if whole else unknown(f"{node.var.name} is computed from data")

    def choice(self, condition: Any, then: Any, otherwise: Any) -> tuple[IrExpr, Any]:
        (a, left), (b, right) = self.pointing(then), self.pointing(otherwise)
        return make("select", self.integer(condition), a, b), left if left is not None else right

    def called(self, node: Any) -> tuple[IrExpr, Any]:
        """What a call that yields an integer or an address is."""
        name, args = operator(node), node.args
        if name == "if_then_else":
            return self.choice(*args)
        if name in _CALLED:
            return make(_CALLED[name], *(self.integer(a) for a in args)), None
        if name == "address_of":
            if type(args[0]).__name__ != "TensorLoad":
                return const(0), args[0]
            return self.place(args[0].source, args[0].indices), args[0].source
        if name == "buffer_data":
            return scale(self.integer(args[0].elem_offset), element_bytes(args[0].dtype)), args[0]
        if name in ("tvm_access_ptr", "ptr_byte_offset"):
            base, buffer = self.pointing(args[1] if name == "tvm_access_ptr" else args[0])
            if name == "ptr_byte_offset":
                return add(base, self.integer(args[1])), buffer
            return add(base, scale(self.integer(args[2]), element_bytes(_dtype(args[0])))), buffer
        if name in ("cuda.cvta_generic_to_shared", "reinterpret"):
            return self.pointing(args[0])
        if name == "ptx.addr":
            base, buffer = self.pointing(args[0])
            return add(base, self.integer(args[1])), buffer
        if name == "cuda.thread_rank":
            return thread_index((prod(self.threads), 1, 1), 0), None
        if name == "cuda.__shfl_sync":
            value = self.integer(args[1])
            return value if LANE not in value.symbols else unknown("a shuffle between lanes"), None
        if name == "cuda.func_call":
            return intrinsics.function_value(self, node)
        return unknown(f"what {name} returns"), None

    def register(self, buffer: Any, indices: Any) -> tuple[IrExpr, Any]:
        """The value of a thread's own integer; of memory that others share it is data."""
        if space_of(buffer) is not None:
            return unknown(f"a value read from {buffer.name}"), None
        index = self.place(buffer, indices)
        if not INTEGER.fullmatch(str(buffer.dtype)):
            return unknown(f"data in {buffer.name}"), None
        if index.kind != "const":
            return unknown(f"an element of {buffer.name} that is chosen as the kernel runs"), None
        name = self.register_name(buffer, index)
        return symbol(name), self.pointees.get(name)

    def register_name(self, buffer: Any, index: IrExpr) -> str:
        return f"{buffer.name}%{self.number(buffer)}[{int(index.value) // element_bytes(buffer.dtype)}]"

    def place(self, buffer: Any, indices: Any) -> IrExpr:
        """The byte at which an element lies, from the start of the memory that its buffer is in."""
        index = const(0)
        for position, (at, extent) in enumerate(zip(indices, buffer.shape, strict=False)):
            if position:
                index = make("mul", index, self.integer(extent))
            index = make("add", index, self.integer(at))
        offset = self.integer(buffer.elem_offset) if buffer.elem_offset is not None else const(0)
        place = scale(make("add", index, offset), element_bytes(buffer.dtype))
        return add(place, self.bases[buffer]) if buffer in self.bases else place

    # The launch

    def index(self, tag: str) -> IrExpr:
        """threadIdx, blockIdx or clusterCtaIdx along an axis."""
        name, _, axis = tag.partition(".")
        number = "xyz".index(axis)
        if name == "threadIdx":
            return thread_index(self.threads, number)
        if name == "clusterCtaIdx":
            return make("floormod", symbol(f"blockIdx.{axis}"), const(self.extents.get(tag, 1)))
        return symbol(tag) if self.extents.get(tag, 1) > 1 else const(0)

    @property
    def threads(self) -> tuple[int, int, int]:
        x, y, z = (self.extents.get(f"threadIdx.{axis}", 1) for axis in "xyz")
        return x, y, z

    def space_of(self, buffer: Any) -> SiteSpace | None:
        return space_of(buffer)

    def number(self, variable: Any) -> int:
        return self.numbers.setdefault(variable, len(self.numbers))


def space_of(buffer: Any) -> SiteSpace | None:
    """The memory that a buffer lies in, None for a thread's own."""
    scope = str(buffer.scope())
    return "shared" if scope.startswith("shared") else "global" if scope in ("global", "") else None


def element_bytes(dtype: Any) -> int:
    """Bytes of an element, of all the elements of a vector type."""
    match = re.fullmatch(r"(?:[a-z]+?)(\d+)?(?:_\w+?)?(?:x(\d+))?", str(dtype))
    bits = int(match[1] or 8) if match else 8
    return max(1, bits // 8) * int((match and match[2]) or 1)


def operator(node: Any) -> str:
    op = getattr(node, "op", None)
    name = str(getattr(op, "name", op))
    for prefix in ("tirx.", "prim."):
        name = name.removeprefix(prefix)
    return name


def _dtype(node: Any) -> str:
    return str(getattr(getattr(node, "ty", None), "dtype", ""))


def is_integer(node: Any) -> bool:
    return bool(re.fullmatch(r"(u?int\d+|bool)(x\d+)?", _dtype(node))) or "handle" in str(getattr(node, "ty", ""))


def is_vector(node: Any) -> bool:
    """Whether an expression has a value for each of several lanes of a vector."""
    return bool(re.search(r"x\d+$", _dtype(node)))


def fixed(name: str) -> bool:
    """Whether a symbol keeps its value while a statement's variables live: all but registers do."""
    return "%" not in name or name.startswith("loop%")
