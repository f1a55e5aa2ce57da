"""Extraction of all memory accesses from a lowered TIR ``PrimFunc``, as a tree of its loops and branches.

The leaves are loads, stores, TMA copies and the shared-memory operands of MMA instructions. Each (``Site``) has its
address as an expression of thread and loop variables, its width in bytes and the conditions under which it runs. An
address that cannot be analysed contains an unknown symbol; a call that is not modelled is an ``Unknown`` leaf with a
name and a reason. The ``PrimFunc`` is the one that TVM's CUDA code generator takes.
"""

# Methods are named for the classes of TVM that they visit.
# ruff: noqa: N802

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tirgemm.analysis.ir import intrinsics
from tirgemm.analysis.ir.expressions import IrExpr, add, const, make, scale, symbol, under, unknown
from tirgemm.analysis.ir.inline_bindings import inlined
from tirgemm.analysis.ir.provenance import Provenance, read_by
from tirgemm.analysis.ir.sites import Assign, If, Loop, Op, Site, SiteSpace, Statement, Statements, Tree, Unknown, While
from tirgemm.analysis.ir.values import INTEGER, Values, element_bytes, fixed, is_integer, is_vector, operator, space_of

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

WIDEST = 16
# What marks a loop that the compiler of the CUDA source unrolls whole, where it is True.
_UNROLLED = "pragma_unroll"


def access_tree(
    function: PrimFunc, extents: Mapping[str, int], sizes: Mapping[str, int], names: Mapping[str, str]
) -> Tree:
    """The tree of the accesses of ``function``.

    ``extents``: of every ``threadIdx``, ``blockIdx`` and ``clusterCtaIdx`` axis of the launch; ``sizes``: the values of
    the function's integer parameters; ``names``: its pointer and tensor map parameters -> the launch's tensors.
    """
    return _AccessVisitor(function, extents, sizes, names).tree()


_Conditions: TypeAlias = "tuple[IrExpr, ...]"
_Access: TypeAlias = "tuple[Any, Op, int, IrExpr]"
"""What equal accesses have in common: buffer, operation, width and address."""


@dataclass(frozen=True, slots=True)
class _Guard:
    """The condition of one value of a choice. ``condition_reads``: what is accessed to evaluate it, and each time under
    which guards."""

    condition: IrExpr
    condition_reads: Mapping[_Access, Sequence[_Conditions]]


class _AccessVisitor(Values):
    """One visit of a PrimFunc: the statements so far, and where data flows."""

    def __init__(
        self, function: PrimFunc, extents: Mapping[str, int], sizes: Mapping[str, int], names: Mapping[str, str]
    ) -> None:
        super().__init__(function, extents, sizes, names)
        self.function = function
        self.unknown: dict[str, Unknown] = {}
        self.provenance = Provenance()
        self.descriptors: dict[Any, str] = {}
        self.guards: list[_Guard] = []
        self.accesses: list[tuple[_Access, _Conditions]] = []
        self.out: list[Statement] = []
        self.count = self.loops = 0

    def tree(self) -> Tree:
        body = self.block(self.function.body)
        return Tree(inlined(self.provenance.named(body)), tuple(self.unknown.values()))

    # Statements

    @contextmanager
    def inside(self) -> Iterator[list[Statement]]:
        """Statements found meanwhile go into the list given."""
        outer, self.out = self.out, []
        try:
            yield self.out
        finally:
            self.out = outer

    def block(self, node: Any) -> Statements:
        with self.inside() as statements:
            if node is not None:
                self.statement(node)
        return tuple(statements)

    def statement(self, node: Any) -> None:
        kind = type(node).__name__
        method = getattr(self, f"on_{kind}", None)
        if method is None:
            self.unmodelled(
                kind, "a statement of a kind that this analysis does not know; what is in it is not counted"
            )
        else:
            method(node)

    def on_SeqStmt(self, node: Any) -> None:
        for statement in node.seq:
            self.statement(statement)

    def on_AttrStmt(self, node: Any) -> None:
        if str(node.attr_key) in ("thread_extent", "virtual_thread"):
            self.values[node.node.var] = self.index(str(node.node.thread_tag))
        self.statement(node.body)

    def on_AllocBuffer(self, node: Any) -> None:
        pass

    def on_DeclBuffer(self, node: Any) -> None:
        offset, base = (const(0), node.data) if node.data is None else self.pointing(node.data)
        tensor = self.maps.get(base) or self.provenance.tensors.get(base)
        self.provenance.alias(node.buffer, tensor)
        if offset.kind != "const" or offset.value:
            self.bases[node.buffer] = offset
        if base is not None and tensor is None and space_of(node.buffer) is None:
            # Another view of the same registers.
            self.provenance.move(node.buffer, [base])
            self.provenance.move(base, [node.buffer])

    def on_AssertStmt(self, node: Any) -> None:
        pass

    def on_Evaluate(self, node: Any) -> None:
        self.loads(node.value)

    def on_Bind(self, node: Any) -> None:
        self.loads(node.value)
        if not is_integer(node.var):
            self.provenance.flow(node.var, node.value)
            self.values[node.var] = unknown(f"{node.var.name} is computed from data")
            return
        value, buffers = self.pointing(node.value)
        if any(not fixed(name) for name in value.symbols):
            register = f"{node.var.name}%{self.number(node.var)}"
            self.out.append(Assign(register, value))
            value = symbol(register)
            if buffers is not None:
                self.pointees[register] = buffers
        self.values[node.var] = value

    def on_For(self, node: Any) -> None:
        self.loads(node.extent)
        first, extent = self.integer(node.min), self.integer(node.extent)
        if node.annotations.get(_UNROLLED) is True and first.kind == extent.kind == "const":
            # Unrolled, as NVRTC does, so that indices of registers are constants.
            for turn in range(extent.value):
                self.values[node.loop_var] = const(first.value + turn)
                self.statement(node.body)
            return
        self.loops += 1
        name = f"loop%{self.loops}:{node.loop_var.name}"
        self.values[node.loop_var] = make("add", symbol(name), first)
        self.out.append(Loop(name, extent, self.block(node.body)))

    def on_While(self, node: Any) -> None:
        self.loads(node.condition)
        condition = self.integer(node.condition)
        before = self.before_break(node.body)
        if before is None:
            self.out.append(While(condition, self.block(node.body)))
            return
        with self.inside() as body:
            for statement in before:
                self.statement(statement)
        # It runs once.
        self.out.append(If(condition, tuple(body), ()))

    def before_break(self, body: Any) -> list[Any] | None:
        """The statements of a loop before the one that always leaves it, None where there is none."""
        statements: list[Any] = []
        for statement in _flat(body):
            if type(statement).__name__ == "Evaluate" and operator(statement.value) == "break_loop":
                return statements
            statements.append(statement)
        return None

    def on_IfThenElse(self, node: Any) -> None:
        self.loads(node.condition)
        condition = self.integer(node.condition)
        then, otherwise = self.block(node.then_case), self.block(node.else_case)
        if then or otherwise:
            self.out.append(If(condition, then, otherwise))

    def on_BufferStore(self, node: Any) -> None:
        self.loads(node.value)
        for index in node.indices:
            self.loads(index)
        space = space_of(node.buffer)
        self.provenance.flow(node.buffer, node.value)
        if space is not None:
            # What a shared tile is given may be of one tensor where the memory holds several.
            owners = read_by(node.value) if space == "shared" else ()
            self.elements(node.buffer, node.indices, "store", space, owners=owners)
        elif INTEGER.fullmatch(str(node.buffer.dtype)):
            self.assign(node.buffer, node.indices, node.value)

    # Expressions

    def loads(self, node: Any) -> None:
        """The sites of an expression, in the order in which it is evaluated."""
        kind = type(node).__name__
        if kind in ("Var", "IntImm", "FloatImm", "StringImm"):
            return
        if kind == "TensorLoad":
            for index in node.indices:
                self.loads(index)
            space = space_of(node.source)
            if space is not None:
                self.elements(node.source, node.indices, "load", space)
        elif kind == "Call":
            self.call(node)
        elif kind == "Select":
            if is_vector(node.condition):
                # Elements are chosen from two whole vectors.
                for value in (node.condition, node.true_value, node.false_value):
                    self.loads(value)
            else:
                self.either(node.condition, node.true_value, node.false_value)
        elif kind == "Let":
            self.let(node)
            self.loads(node.value)
            self.loads(node.body)
        else:
            for name in ("a", "b", "value", "base"):
                child = getattr(node, name, None)
                if child is not None and hasattr(child, "ty"):
                    self.loads(child)

    def either(self, condition: Any, then: Any, otherwise: Any) -> None:
        """The condition of a choice, and both values, each under it."""
        first = len(self.accesses)
        self.loads(condition)
        condition_reads: dict[_Access, list[_Conditions]] = {}
        for access, guards in self.accesses[first:]:
            condition_reads.setdefault(access, []).append(guards)
        holds = self.integer(condition)
        for value, guard in ((then, holds), (otherwise, make("not", holds))):
            self.guards.append(_Guard(guard, condition_reads))
            self.loads(value)
            self.guards.pop()

    def call(self, node: Any) -> None:
        name = operator(node)
        if name == "if_then_else":
            self.either(*node.args)
            return
        if name != "address_of":
            for argument in node.args:
                self.loads(argument)
        intrinsics.visit(self, name, node)

    def assign(self, buffer: Any, indices: Any, value: Any) -> None:
        index = self.place(buffer, indices)
        if index.kind != "const":
            self.unmodelled(
                f"{buffer.name}[{index!r}]", "a register chosen as the kernel runs; what depends on it is not known"
            )
            return
        name = self.register_name(buffer, index)
        held, pointee = self.pointing(value)
        if pointee is not None:
            self.pointees[name] = pointee
        self.out.append(Assign(name, held))

    def filled(self, target: Any, buffer: Any) -> None:
        """An instruction has put data of ``buffer`` into a register: what it is, nobody knows."""
        if type(target).__name__ == "TensorLoad" and INTEGER.fullmatch(str(target.source.dtype)):
            index = self.place(target.source, target.indices)
            if index.kind == "const":
                reason = f"a value read from {buffer.name}" if buffer is not None else "a value read from memory"
                self.out.append(Assign(self.register_name(target.source, index), unknown(reason)))

    # Sites

    def elements(self, buffer: Any, indices: Any, op: Op, space: SiteSpace, **more: Any) -> None:
        """The accesses that an indexed load or store is: one of a vector without gaps, else one an element."""
        size = element_bytes(buffer.dtype)
        *outer, last = indices
        ramp = type(last).__name__ == "Ramp"
        base = last.base if ramp else last
        address = self.place(buffer, [*outer, base])
        lanes = int(last.lanes) if ramp else 1
        stride = self.integer(last.stride) if ramp else const(1)
        if ramp and stride.kind == "const" and stride.value == 1:
            width = min(WIDEST, lanes * size)
            for start in range(0, lanes * size, width):
                self.site(buffer, add(address, start), op, space, width, **more)
        else:
            for lane in range(lanes):
                self.site(buffer, add(address, scale(stride, lane * size)), op, space, size, **more)

    def site(self, buffer: Any, address: IrExpr, op: Op, space: SiteSpace, width: int, **more: Any) -> None:
        """Add an access of one instruction; ``owners``: whose data it moves, where that is not all that is in the
        buffer."""
        self.count += 1
        guards = (*(g.condition for g in self.guards), *more.pop("guards", ()))
        address = under(address, guards)
        access = (buffer, op, width, address)
        guards = self.without_implied(access, guards)
        self.accesses.append((access, guards))
        owners = more.pop("owners", ())
        name = str(buffer.name) if buffer is not None else ""
        made = Site(self.count, name, "", space, op, width, address, guards, **more)
        self.provenance.touch(made, buffer, owners)
        self.out.append(made)

    def without_implied(self, access: _Access, guards: _Conditions) -> _Conditions:
        """``guards`` but for those by data whose condition makes the same access: relu loads the parts of its sum for
        every lane, and those of the value are the same loads."""
        for guard in self.guards:
            for of_condition in guard.condition_reads.get(access, ()):
                if set(of_condition) <= set(guards):
                    guards = tuple(g for g in guards if not g.unknown or g in of_condition)
        return guards

    def unmodelled(self, name: str, reason: str) -> None:
        self.unknown.setdefault(name, Unknown(name, reason))


def _flat(body: Any) -> Iterator[Any]:
    if type(body).__name__ == "SeqStmt":
        for statement in body.seq:
            yield from _flat(statement)
    else:
        yield body
