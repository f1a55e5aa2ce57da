# mypy: ignore-errors
# ruff: noqa: N812, SIM102
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""Epilogue, from accumulators to D: by TMA out of shared memory, by rows out of shared memory, or straight from the
registers.

Where operands are swapped a tile's rows are D's columns, and D's rows its columns. A thread's accumulators are pairs of
neighbouring columns: of every eight columns, two in row ``lane / 4`` of its warp's sixteen and two in the row eight
below (PTX ISA, "Register Fragments and Shared Memory Matrix Layouts").
"""

from __future__ import annotations

from tvm.script import tirx as T

from tirgemm.families.common.cuda_maths import CUDA_BEFORE_ACTIVATION, cuda_activation
from tirgemm.families.wgmma.device.arguments import WORDS
from tirgemm.families.wgmma.device.producer import HINT, POLICIES
from tirgemm.families.wgmma.planning.names import EVICT_FIRST, TMA
from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES, SLAB_BYTES, permuted
from tirgemm.families.wgmma.planning.warpgroups import MMA_M, WARPGROUP
from tirgemm.gemm import DTYPE_BYTES, DTYPE_NAMES
from tirgemm.workload import combine

_STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
_STMATRIX = "stmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16"
_COPY = """
__forceinline__ __device__ void tirgemm_copy_{nbytes}(void* to, const void* from) {{
    *reinterpret_cast<{word}*>(to) = *reinterpret_cast<const {word}*>(from);
}}
"""
# Words that threads copy from shared memory to D, by their bytes.
_WORDS = {4: "unsigned", 8: "uint2", 16: "uint4"}
_CONVERT = {"f16": "cvt.rn.f16x2.f32", "bf16": "cvt.rn.bf16x2.f32"}
# How many of a thread's stores of so many elements are in flight together: what was fastest on an H200.
_UNROLL = {1: 16, 2: 8, 4: 8, 8: 4}
# Columns that one stmatrix stores at most, and columns of a fragment.
_STMATRIX_COLUMNS = 16
_FRAGMENT = 8
# How threads write outputs of four bytes to shared memory: two neighbours of a row of D, or one.
_PAIR_TO_SHARED, _ONE_TO_SHARED = "st.shared.v2.f32", "st.shared.f32"


@T.meta_class
class Epilogue:
    """One consumer's way from accumulators to memory, for the tile that ``tiles`` is at.

    ``place``: its first row and column within the tile; ``threads``: the consumer, and the warp, the lane and the
    thread in it.
    """

    def __init__(self, plan, args, shared, tiles, place, threads):
        row, column = place
        consumer, warp, lane, thread = threads
        self.plan, self.gemm, self.args = plan, plan.gemm, args
        self.staging, self.tiles, self.sums = shared.staging, tiles, None
        # The first row and column of D, or of D transposed, that this consumer stores.
        self.row0, self.column0 = tiles.row0 + row, tiles.column0 + column
        self.consumer, self.warp, self.lane, self.thread = consumer, warp, lane, thread
        self.pair = T.alloc_local([2], "float32")
        self.wide = plan.staging.size > ELEMENT_BYTES
        # What goes to shared memory next: two outputs of 16 bits in each of a matrix's words, or two fragments.
        self.packed = None
        if plan.staging.used:
            self.packed = T.alloc_local([8], "float32") if self.wide else T.alloc_local([4], "uint32")
        self.buffer = T.local_scalar("int32") if plan.staging.used else None
        if plan.staging.used:
            T.buffer_store(self.buffer.source, 0, [0])
        # Partial sums are fp32, whatever D is.
        self.out = "f32" if plan.cluster.writes_partials else plan.gemm.out
        word = WORDS[DTYPE_BYTES[self.out]]
        self.word = T.alloc_local([1], word)
        paired = plan.gemm.beta and plan.pairs and not plan.cluster.writes_partials and not plan.orientation.swapped
        self.c_word = T.alloc_local([1], word) if paired else None
        # The bias of what is finished: of two neighbouring columns or, where D is transposed, of the thread's two rows.
        biased = plan.gemm.bias and not plan.cluster.writes_partials
        self.bias = T.alloc_local([2], DTYPE_NAMES[self.out]) if biased else None
        self.bias_word = T.alloc_local([1], word) if biased and plan.pairs and not plan.orientation.swapped else None

    def synchronise(self):
        """Wait for the threads of this warpgroup."""
        T.evaluate(T.cuda.warpgroup_sync(1 + self.consumer))

    def drain(self):
        """Let no thread leave while TMA reads its shared memory."""
        if self.plan.staging.used and self.plan.epilogue == TMA:
            with T.If(self.thread == 0), T.Then():
                T.evaluate(T.ptx.cp.async_.bulk.wait_group.read(0))

    def finish(self, index, half, row, column):
        """Put the finished outputs of accumulators ``index`` and ``index + 1``, of a thread's upper or lower row, into
        ``pair``. The caller has loaded their bias."""
        gemm = self.gemm
        sums = self.sums.value(index), self.sums.value(index + 1)
        plain = not (gemm.alpha or gemm.beta or gemm.bias) and gemm.act == "none"
        if plain or self.plan.cluster.writes_partials:
            return sums
        if self.c_word is not None:
            # n is even: where the first column is inside, so is the second.
            word = self.loaded("c", self.offset("c", row, column) // 2, row, column, self.c_word.ty.dtype)
            T.buffer_store(self.c_word, word, [0])
        dtype = DTYPE_NAMES[gemm.out]
        for e in range(2):
            m, n = self.place(row, column + e)
            bias = None if self.bias is None else self.bias[half if self.plan.orientation.swapped else e]
            c = None
            if gemm.beta and self.c_word is not None:
                c = self.c_word.view(dtype)[e]
            elif gemm.beta:
                # The buffer is of words where pairs along n are aligned, whichever way the tile lies.
                c = T.if_then_else(
                    self.inside(m, n), self.args.elements_of("c")[self.offset("c", m, n)], T.cast(0, dtype)
                )
            scalars = self.args.scalars
            value = combine(
                gemm, sums[e], c, bias, scalars.get("alpha"), scalars.get("beta"), maths=CUDA_BEFORE_ACTIVATION
            )
            T.buffer_store(self.pair, value, [e])
            if gemm.act != "none":
                T.buffer_store(self.pair, cuda_activation(gemm, self.pair[e]), [e])
        return self.pair[0], self.pair[1]

    def load_bias_of_rows(self, row):
        """The bias of the thread's rows of a block, where D is transposed."""
        if self.bias is not None and self.plan.orientation.swapped:
            for half in range(2):
                self.load_bias(half, row + half * 8)

    def load_bias_of_columns(self, column):
        """The bias of two neighbouring columns, where D is not transposed."""
        if self.bias is None or self.plan.orientation.swapped:
            return
        if self.bias_word is None:
            for e in range(2):
                self.load_bias(e, column + e)
            return
        T.buffer_store(
            self.bias_word, self.biased(self.args.memory["bias"][column // 2], column, self.bias_word.ty.dtype), [0]
        )
        for e in range(2):
            T.buffer_store(self.bias, self.bias_word.view(DTYPE_NAMES[self.out])[e], [e])

    def load_bias(self, place, n):
        T.buffer_store(self.bias, self.biased(self.args.elements_of("bias")[n], n, self.bias.ty.dtype), [place])

    def biased(self, value, n, dtype):
        """``value``, but 0 of that dtype beyond D's last column. What lies beyond D's last row has a bias, too:
        rows share what is loaded."""
        plan = self.plan
        tile = plan.tile_m * plan.cluster_m if plan.orientation.swapped else plan.tile_n * plan.cluster_n
        return value if self.gemm.n % tile == 0 else T.if_then_else(n < self.gemm.n, value, T.cast(0, dtype))

    def place(self, row, column):
        """The m and n of a place of the tile."""
        return (column, row) if self.plan.orientation.swapped else (row, column)

    def inside(self, m, n):
        return T.And(m < self.args.m, n < self.gemm.n)

    def loaded(self, name, at, m, n, dtype):
        """What belongs to an output; beyond D's edges nothing is read. Not clamped: clamped columns fill registers."""
        return T.if_then_else(self.inside(m, n), self.args.memory[name][at], T.cast(0, dtype))

    def offset(self, name, row, column):
        """The place of an element in C, D or the partial sums."""
        if name == "partials":
            return self.args.partial(self.tiles.slice, row, column)
        return self.args.element(name, self.tiles.matrix, row, column)


# -- through shared memory -------------------------------------------------------------------------


def staged_at(plan, row, column):
    """Where an element of a staged chunk lies in its box of the buffer."""
    width, count = plan.staging.shape[1], plan.staging.unit
    unit = permuted(row, column // count, width // count)
    return row * width + unit * count + column % count


def write_chunk(e, index, row, column):
    """Convert and write this thread's fragments: two or four 8x8 matrices by one stmatrix, turned where swapped."""
    plan = e.plan
    convert = T.ptx[_CONVERT[e.gemm.out]]
    width = min(plan.staging.chunk, _STMATRIX_COLUMNS)
    count = width // _FRAGMENT * 2
    stmatrix = T.ptx[_STMATRIX.format(count=count, turned=".trans" if plan.orientation.swapped else "")]
    # Of the matrices that lie side by side in the tile, the one whose rows this lane's addresses are.
    beside = e.lane // 16 if count == 4 else 0
    at_row = e.row0 + row + e.warp * 16 + e.lane // 4
    at_column = e.column0 + column + e.lane % 4 * 2
    for part in range(plan.staging.chunk // width):
        for q in range(count):
            half, right = q % 2, part * width + q // 2 * 8
            if half == 0:
                e.load_bias_of_columns(at_column + right)
            low, high = e.finish(index + part * width // 2 + q * 2, half, at_row + half * 8, at_column + right)
            T.evaluate(convert(e.packed[q], high, low))
        if plan.orientation.swapped:
            to_row, unit = part * width + beside * 8 + e.lane % 8, e.warp * 2 + e.lane // 8 % 2
        else:
            to_row, unit = e.warp * 16 + e.lane % 16, part * 2 + beside
        to = e.staging.ptr_to([e.consumer, e.buffer, staged_at(plan, to_row, unit * plan.staging.unit)])
        T.evaluate(stmatrix(to, *[e.packed[q] for q in range(count)]))


def write_wide_chunk(e, index, row, column):
    """The same of outputs of four bytes, where a thread stores its pairs of neighbours.

    Rows that lie in the same banks store different fragments at a time: with the swizzle the sixteen lanes that are
    served together then write to different banks.
    """
    staging, at_row = e.plan.staging, e.row0 + row + e.warp * 16 + e.lane // 4
    at_column = e.column0 + column + e.lane % 4 * 2
    apart = staging.chunk // _FRAGMENT // 2
    # Rows of a chunk in 128 bytes, of which the swizzle makes no difference.
    turned = e.lane // 4 // (SLAB_BYTES // (staging.chunk * staging.size)) % 2
    first = staged_at(e.plan, e.warp * 16 + e.lane // 4, e.lane % 4 * 2) ^ turned * (apart * _FRAGMENT)
    for fragment in range(max(1, apart)):
        together = (fragment, fragment + apart) if apart else (fragment,)
        for place, number in enumerate(together):
            e.load_bias_of_columns(at_column + number * _FRAGMENT)
            for half in range(2):
                values = e.finish(
                    index + number * 4 + half * 2, half, at_row + half * 8, at_column + number * _FRAGMENT
                )
                for i, value in enumerate(values):
                    T.buffer_store(e.packed, value, [place * 4 + half * 2 + i])
        for place, number in enumerate(together):
            for half in range(2):
                values = [e.packed[place * 4 + half * 2 + i] for i in range(2)]
                if apart:
                    other = (1 - place) * 4 + half * 2
                    values = [T.Select(turned == 1, e.packed[other + i], value) for i, value in enumerate(values)]
                to = half * 8 * staging.chunk + (first ^ number * _FRAGMENT)
                T.evaluate(T.ptx[_PAIR_TO_SHARED](e.staging.ptr_to([e.consumer, e.buffer, to]), *values))


def write_turned_chunk(e, index, row, column):
    """The same where D is transposed, so that a thread's neighbours lie in two rows of D. Eight lanes write two units
    of a row, and the swizzle puts those of four rows into different banks."""
    plan, (high, wide) = e.plan, e.plan.staging.shape
    at_row, at_column = e.row0 + row + e.warp * 16 + e.lane // 4, e.column0 + column + e.lane % 4 * 2
    # Each box has the rows of the tile of so many warps.
    warps = wide // 16
    box, to_column = e.warp // warps * (high * wide), e.warp % warps * 16 + e.lane // 4
    for right in range(0, plan.staging.chunk, _FRAGMENT):
        for half in range(2):
            values = e.finish(index + right // 2 + half * 2, half, at_row + half * 8, at_column + right)
            for i, value in enumerate(values):
                to = box + staged_at(plan, right + e.lane % 4 * 2 + i, to_column + half * 8)
                T.evaluate(T.ptx[_ONE_TO_SHARED](e.staging.ptr_to([e.consumer, e.buffer, to]), value))


def store_box(e, row, column):
    """TMA's stores of 64 rows of the tile, mostly one; what lies outside D is not written."""
    batched, (high, wide) = e.gemm.batch > 1, e.plan.staging.shape
    m, n = e.place(e.row0 + row, e.column0 + column)
    hint = (T.uint64(POLICIES[EVICT_FIRST]),) if e.plan.drops_d else ()
    store = T.ptx[_STORE.format(rank=3 if batched else 2) + (HINT if hint else "")]
    for box in range(e.plan.staging.boxes):
        beside = n + box * wide if box else n
        place = (beside, m, e.tiles.matrix) if batched else (beside, m)
        source = e.staging.ptr_to([e.consumer, e.buffer, box * high * wide])
        T.evaluate(store(T.address_of(e.args.maps["d"]), *place, source, *hint))


def store_element(e, value, m, n):
    """One element to D; where D is words of two, through a view of its elements."""
    T.buffer_store(e.args.elements_of("d"), value, [e.offset("d", m, n)])


def copy_staged(e, place, m, n):
    """Staged elements from ``place`` on to D at (m, n): one, or the word of as many as D's rows are aligned to."""
    count = e.plan.staging.vector
    source = [e.consumer, e.buffer, place]
    if count == 1:
        store_element(e, e.staging[source], m, n)
        return
    nbytes = count * DTYPE_BYTES[e.gemm.out]
    to = T.address_of(e.args.elements_of("d")[e.offset("d", m, n)])
    source_code = _COPY.format(nbytes=nbytes, word=_WORDS[nbytes])
    T.evaluate(T.cuda.func_call(f"tirgemm_copy_{nbytes}", to, e.staging.ptr_to(source), source_code=source_code))


@T.inline
def store_staged(e, number, row, column):
    """Neighbours of a staged row to D, those beside them by the next thread."""
    width = T.meta_var(e.plan.staging.shape[1] // e.plan.staging.vector)
    r: T.let = number // width
    c: T.let = number % width * e.plan.staging.vector
    first = T.meta_var(e.place(e.row0 + row, e.column0 + column))
    m: T.let = first[0] + r
    n: T.let = first[1] + c
    place = T.meta_var(staged_at(e.plan, r, c))
    if m < e.args.m:
        if n < e.gemm.n:
            copy_staged(e, place, m, n)


def stage_chunk(e, index, row, column):
    """Write this thread's part of a chunk to shared memory."""
    if not e.wide:
        write_chunk(e, index, row, column)
    elif e.plan.orientation.swapped:
        write_turned_chunk(e, index, row, column)
    else:
        write_wide_chunk(e, index, row, column)


@T.inline
def store_chunk(e, index, row, column):
    """64 rows of a chunk's columns through shared memory."""
    if e.plan.epilogue == TMA:
        if e.thread == 0:
            # The buffer's last store has been read; the other's may still be.
            T.ptx.cp.async_.bulk.wait_group.read(e.plan.staging.buffers - 1)
        e.synchronise()
    stage_chunk(e, index, row, column)
    if e.plan.epilogue == TMA:
        T.ptx.fence.proxy.async_.shared__cta()
        e.synchronise()
        if e.thread == 0:
            store_box(e, row, column)
            T.ptx.cp.async_.bulk.commit_group()
    else:
        # One wait is enough: who writes this buffer again has met all its readers at the other's.
        e.synchronise()
        accesses = T.meta_var(MMA_M * e.plan.staging.chunk // e.plan.staging.vector)
        for i in T.serial(-(-accesses // WARPGROUP), unroll=_UNROLL[e.plan.staging.vector]):
            if accesses % WARPGROUP == 0 or i * WARPGROUP + e.thread < accesses:
                store_staged(e, i * WARPGROUP + e.thread, row, column)
    e.buffer = e.buffer ^ 1


# -- from registers --------------------------------------------------------------------------------


def store_word(e, name, index, half, row, column):
    values = e.finish(index, half, row, column)
    halves = e.word.view(DTYPE_NAMES[e.out])
    for i, value in enumerate(values):
        T.buffer_store(halves, T.cast(value, DTYPE_NAMES[e.out]), [i])
    T.buffer_store(e.args.memory[name], e.word[0], [e.offset(name, row, column) // 2])


def store_elements(e, index, half, row, column):
    values = e.finish(index, half, row, column)
    for i, value in enumerate(values):
        m, n = e.place(row, column + i)
        with T.If(e.inside(m, n)), T.Then():
            store_element(e, T.cast(value, DTYPE_NAMES[e.out]), m, n)


def store_pair(e, index, half, row, column):
    """Two neighbouring outputs of a row of the tile, as one word where D is words along it."""
    e.load_bias_of_columns(column)
    if e.plan.cluster.writes_partials:
        store_word(e, "partials", index, half, row, column)
    elif e.plan.pairs and not e.plan.orientation.swapped:
        store_word(e, "d", index, half, row, column)
    else:
        store_elements(e, index, half, row, column)


def store_fragments(e, index, row):
    """64 rows of all the block's columns straight from the registers."""
    plan = e.plan
    at_row = e.row0 + row + e.warp * 16 + e.lane // 4
    at_column = e.column0 + e.lane % 4 * 2
    rows = e.gemm.n if plan.orientation.swapped else e.args.m
    # A row of partial sums is as wide as its words need.
    columns = plan.grid.pitch if plan.cluster.writes_partials else e.args.m if plan.orientation.swapped else e.gemm.n
    whole = isinstance(columns, int) and columns % (plan.tile_n * plan.cluster_n) == 0
    for half in range(2):
        with T.If(at_row + half * 8 < rows), T.Then():
            for group in range(plan.cluster.stored_columns // 8):
                pair = (e, index + group * 4 + half * 2, half, at_row + half * 8, at_column + group * 8)
                if whole:
                    store_pair(*pair)
                else:
                    with T.If(at_column + group * 8 < columns), T.Then():
                        store_pair(*pair)


def store_tile(e, sums):
    """Store the consumer's part of the tile."""
    plan = e.plan
    e.sums = sums
    for block in range(plan.warpgroups.blocks):
        first = block * plan.tile_n * MMA_M // WARPGROUP
        e.load_bias_of_rows(e.row0 + block * MMA_M + e.warp * 16 + e.lane // 4)
        if plan.staging.used:
            for chunk in plan.staging.chunks:
                store_chunk(e, first + chunk // 2, block * MMA_M, chunk)
        else:
            store_fragments(e, first, block * MMA_M)
