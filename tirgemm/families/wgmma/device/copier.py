# mypy: ignore-errors
# ruff: noqa: N812
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""Copying producer, where TMA cannot load an operand: a warpgroup that fills stages, swizzled as TMA would.

It copies by cp.async or, where rows lie between words of 4 bytes, by loads of elements and stores of what was loaded.
The other operand, if TMA can load it, comes by TMA to the same stages. Copies are writes of the generic proxy:
consumers fence before wgmma, which reads by the asynchronous one. Source: PTX ISA, "cp.async" and
"cp.async.mbarrier.arrive".
"""

from __future__ import annotations

from tvm.backend.cuda.lang.pipeline import PipelineState
from tvm.script import tirx as T

from tirgemm.families.wgmma.device.producer import POLICIES, TilePart, bytes_of_stage, load, tile_part
from tirgemm.families.wgmma.device.recorder import recorder
from tirgemm.families.wgmma.planning.copies import Arithmetic, copies_of
from tirgemm.families.wgmma.planning.span_kinds import LOAD, WAIT
from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES

_COPY = "cp.async.ca.shared.global"
_HINT = ".L2::cache_hint"
# The driver's CUtensorMapL2promotion -> what cp.async asks L2 to fetch.
_FETCHES = {0: "", 2: ".L2::128B", 3: ".L2::256B"}
_ARRIVE = "cp.async.mbarrier.arrive.noinc.shared.b64"
_STORE = "st.shared.v2.b32"
# Copies of a thread whose elements are in flight together.
_TOGETHER = 8
# A value of which the compiler knows nothing: else it would keep the address of every copy over the steps, and spill.
_OPAQUE = """
__forceinline__ __device__ long long tirgemm_opaque(long long value) {
    asm volatile("" : "+l"(value));
    return value;
}
"""
_TIR = Arithmetic(T.Select)


@T.meta_class
class Copier:
    """One thread's copies of one operand, step after step of a tile.

    ``source``: elements from the operand's first to the thread's first of the step. ``rows``, ``columns``: those of the
    matrix from the step's first on, where tiles may reach beyond them.
    """

    def __init__(self, plan, operand, args, memory, thread):
        self.plan, self.operand, self.args, self.thread = plan, operand, args, thread
        self.copies = copies_of(plan, operand)
        self.tile = self.copies.tile
        policy = plan.loads.policy(operand)
        self.hint = (T.uint64(POLICIES[policy]),) if policy else ()
        self.name = _COPY + (_HINT if policy else "") + _FETCHES[plan.l2_promotion]
        self.source = T.local_scalar("int64")
        self.here = T.local_scalar("int64")
        self.rows = T.local_scalar("int32")
        self.columns = T.local_scalar("int32")
        self.to = T.alloc_local([self.copies.phases], "uint32")
        if self.copies.by_elements:
            self.read = T.alloc_local([_TOGETHER * self.copies.nbytes // 4], "uint32")
        base = T.cuda.cvta_generic_to_shared(memory.ptr_to([0, 0]))
        for phase in range(self.copies.phases):
            T.buffer_store(self.to, base + T.Cast("uint32", self.copies.to(thread, phase)), [phase])

    def begin(self, k, mn, matrix):
        """Go to the first step of a tile."""
        row, column = (mn, k) if self.tile.k_major else (k, mn)
        self.begin_at(row, column, matrix)

    @T.inline
    def begin_at(self, row, column, matrix):
        shape = T.meta_var(self.copies)
        sizes = T.meta_var(self.plan.gemm.matrix(self.operand))
        self.source = self.args.place_of(
            self.operand, matrix, row + shape.row(self.thread), column + shape.column(self.thread)
        )
        if self.copies.beyond_rows:
            self.rows = self.args.dim(sizes[0]) - row
        if self.copies.beyond_columns:
            self.columns = self.args.dim(sizes[1]) - column

    @T.inline
    def advance(self):
        """Go to the next step."""
        if self.tile.k_major:
            self.source = self.source + T.int64(self.tile.tile_k)
            if self.copies.beyond_columns:
                self.columns = self.columns - self.tile.tile_k
        else:
            self.source = self.source + T.int64(self.tile.tile_k * self.plan.gemm.leading(self.operand))
            if self.copies.beyond_rows:
                self.rows = self.rows - self.tile.tile_k

    def inside(self):
        """Whether all of the step's tile lies inside the matrix."""
        tile = self.tile
        rows = self.rows >= tile.rows if self.copies.beyond_rows else T.bool(True)
        columns = self.columns >= tile.slabs * tile.width if self.copies.beyond_columns else T.bool(True)
        return T.And(rows, columns)

    def copy(self, stage, slab, number, *size):
        """Issue one copy: of all its bytes, or of the first ``size`` and zeros."""
        shape = self.copies
        place = self.here + T.int64(shape.source(slab, number, self.plan.gemm.leading(self.operand)))
        # A copy of nothing is from the operand's start: the address counts even where no byte is read.
        place = T.Select(size[0] > T.uint32(0), place, T.int64(0)) if size else place
        source = self.args.memory[self.operand].ptr_to([place])
        T.evaluate(T.ptx[self.name](self.place(stage, slab, number), source, shape.nbytes, *size, *self.hint))

    def place(self, stage, slab, number):
        """Where copy ``number`` of a slab goes."""
        shape = self.copies
        stages = T.Cast("uint32", stage) * T.uint32(self.tile.nbytes)
        return T.ptx.addr(self.to[number % shape.phases] + stages, shape.further(slab, number))

    def load_elements(self, index, slab, number, *size):
        """Load the elements of a copy, as the thread's number ``index`` of those in flight; zeros beyond ``size``."""
        shape, halves = self.copies, self.read.view("uint16")
        memory = self.args.memory[self.operand].view("uint16")
        first = self.here + T.int64(shape.source(slab, number, self.plan.gemm.leading(self.operand)))
        for e in range(shape.elements):
            value = memory[first + T.int64(e)]
            if size:
                value = T.if_then_else(size[0] > e * ELEMENT_BYTES, value, T.uint16(0))
            T.buffer_store(halves, value, [index * shape.elements + e])

    def copy_slabs(self, stage, *left):
        """Copy all slabs; ``left``, at an edge: rows and columns of the matrix from the thread's own on. What lies
        outside it becomes zero, as TMA has it."""
        shape = self.copies
        # Slabs innermost: they share the address of a row.
        pieces = [(slab, number) for number in range(shape.passes) for slab in range(self.tile.slabs)]
        sizes = {piece: (shape.size(*left, *piece, _TIR),) if left else () for piece in pieces}
        if not shape.by_elements:
            for slab, number in pieces:
                self.copy(stage, slab, number, *(T.Cast("uint32", size) for size in sizes[slab, number]))
            return
        for first in range(0, len(pieces), _TOGETHER):
            together = pieces[first : first + _TOGETHER]
            for index, piece in enumerate(together):
                self.load_elements(index, *piece, *sizes[piece])
            for index, piece in enumerate(together):
                words = [self.read[index * shape.nbytes // 4 + word] for word in range(shape.nbytes // 4)]
                T.evaluate(T.ptx[_STORE](self.place(stage, *piece), *words))

    @T.inline
    def locate(self):
        self.here = T.cuda.func_call("tirgemm_opaque", self.source, source_code=_OPAQUE, return_type="int64")

    @T.inline
    def fill(self, stage):
        """Copy the step's tile to a stage."""
        if self.copies.beyond_rows or self.copies.beyond_columns:
            if self.inside():
                self.locate()
                self.copy_slabs(stage)
            else:
                self.locate()
                shape = T.meta_var(self.copies)
                rows: T.let = self.rows - shape.row(self.thread) if self.copies.beyond_rows else 0
                columns: T.let = self.columns - shape.column(self.thread) if self.copies.beyond_columns else 0
                self.copy_slabs(stage, rows, columns)
        else:
            self.locate()
            self.copy_slabs(stage)


def _way(plan, args, shared, tiles, side, thread):
    """What copies an operand, or the part of its tile that is loaded by TMA."""
    part = tile_part(plan, args, shared, tiles, side)
    return Copier(plan, part.operand, args, part.memory, thread) if plan.loads.copied[part.operand] else part


def _by_tma(left, right, tiles):
    """The operand that is loaded by TMA beside one that is copied, with its tile's first row or column."""
    return [(part, mn) for part, mn in ((left, tiles.row0), (right, tiles.column0)) if isinstance(part, TilePart)]


@T.inline
def produce_by_copies(plan, args, shared, tiles, thread):
    """One warpgroup: fill stage after stage, tile after tile."""
    left = T.meta_var(_way(plan, args, shared, tiles, "left", thread))
    right = T.meta_var(_way(plan, args, shared, tiles, "right", thread))
    record = T.meta_var(recorder(args, tiles, 0, thread == 0))
    at = PipelineState(plan.stages, 1)
    while tiles.valid():
        record.begin_tile()
        if plan.loads.copied[plan.orientation.left_operand] > 0:
            left.begin(tiles.first_k(), tiles.row0, tiles.matrix)
        if plan.loads.copied[plan.orientation.right_operand] > 0:
            right.begin(tiles.first_k(), tiles.column0, tiles.matrix)
        for step in T.serial(tiles.steps(), unroll=False):
            shared.ring.empty.wait(at.stage, at.phase)
            record.lap(WAIT, step)
            if plan.loads.uses_tma:
                if thread == 0:
                    by_tma = T.meta_var(_by_tma(left, right, tiles))
                    shared.ring.full.arrive(at.stage, bytes_of_stage(plan, *by_tma))
                    k = T.meta_var(tiles.first_k() + step * plan.tile_k)
                    if plan.loads.copied[plan.orientation.left_operand] == 0:
                        load(plan, left, at.stage, k, tiles.row0, tiles.matrix)
                    if plan.loads.copied[plan.orientation.right_operand] == 0:
                        load(plan, right, at.stage, k, tiles.column0, tiles.matrix)
                T.cuda.warp_sync()
            if plan.loads.copied[plan.orientation.left_operand] > 0:
                left.fill(at.stage)
                left.advance()
            if plan.loads.copied[plan.orientation.right_operand] > 0:
                right.fill(at.stage)
                right.advance()
            if plan.loads.by_elements:
                shared.ring.full.arrive(at.stage)
            else:
                T.ptx[_ARRIVE](shared.ring.full.ptr_to([at.stage]))
            record.lap(LOAD, step)
            at.advance()
        record.end_tile()
        tiles.advance(1)
    record.end()
