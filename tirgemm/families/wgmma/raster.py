# mypy: ignore-errors
# ruff: noqa: N812
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""Which tiles a block computes, in which order, and which steps of k of each."""

from __future__ import annotations

from tvm.script import tirx as T

from tirgemm.families.wgmma.names import HILBERT


@T.meta_class
class Tiles:
    """The tiles of one warpgroup: every so many in an order that lets neighbours in time share rows or columns.

    Slices (parts of k that a second kernel adds, then matrices of the batch) follow each other; within one, groups of
    ``group`` tiles along ``order`` are crossed along the other dimension, or squares of ``group`` by ``group`` along
    Hilbert's curve. ``row0``, ``column0``: the tile's first row and column, of D or, swapped, of D transposed.
    """

    def __init__(self, plan, block, rank, rows, columns, clusters):
        self.plan, self.block, self.rank = plan, block, rank
        self.rank_m = rank if plan.cluster_m > 1 else 0
        self.rank_n = rank if plan.cluster_n > 1 else 0
        # Parts of a tile are neighbouring blocks, so that a block waits for lower ones only.
        self.first_tile = T.truncdiv(block, plan.split) if plan.in_memory else block
        self.clusters = clusters
        self.slice_tiles = rows * columns
        self.total = self.slice_tiles * plan.slices
        self.along, self.across = (columns, rows) if plan.order == "n" else (rows, columns)
        self.whole = isinstance(self.along, int) and self.along % plan.group == 0
        self.work = T.local_scalar("int32")
        self.row0 = T.local_scalar("int32")
        self.column0 = T.local_scalar("int32")
        self.slice = T.local_scalar("int32")
        self.a = T.local_scalar("int32")
        self.b = T.local_scalar("int32")

    def valid(self):
        return self.work < self.total

    @property
    def matrix(self):
        """Which matrix of the batch."""
        return T.truncmod(self.slice, self.plan.gemm.batch) if self.plan.partials else self.slice

    @property
    def part(self):
        """Which part of k."""
        if self.plan.in_memory:
            return T.truncmod(self.block, self.plan.split)
        return self.rank if self.plan.in_cluster else T.truncdiv(self.slice, self.plan.gemm.batch)

    @property
    def ends(self):
        """Whether this block has the tile's last step, and so stores it."""
        return self.part == self.plan.split - 1

    @property
    def adds(self):
        """Whether other blocks have steps of the tile."""
        return self.part > 0

    @property
    def lowest(self):
        """The block that has the tile's first step."""
        return self.block - (self.plan.split - 1)

    def first_k(self):
        """Where this part of k starts."""
        if self.plan.split == 1:
            return 0
        return self.part * (self.plan.split_steps * self.plan.tile_k)

    def steps(self):
        """Steps of k in this part."""
        plan = self.plan
        if plan.split == 1:
            return plan.steps
        if plan.split_steps * plan.split == plan.steps:
            return plan.split_steps
        return T.min(plan.split_steps, plan.steps - self.part * plan.split_steps)

    @T.inline
    def start(self, first):
        self.work = self.first_tile + first
        self.locate()

    @T.inline
    def advance(self, count):
        self.work = self.work + count * self.clusters
        self.locate()

    @T.inline
    def locate(self):
        plan = T.meta_var(self.plan)
        if plan.slices > 1:
            self.slice = T.truncdiv(self.work, self.slice_tiles)
        else:
            self.slice = 0
        tile: T.let = T.truncmod(self.work, self.slice_tiles) if plan.slices > 1 else self.work
        first: T.let = T.truncdiv(tile, self.across * plan.group) * plan.group
        inside: T.let = tile - first * self.across
        # The last group may be lower.
        height = T.meta_var(plan.group if self.whole else T.min(self.along - first, plan.group))
        if plan.order == HILBERT:
            self.curve(first, inside, height)
        else:
            self.a = first + T.truncmod(inside, height)
            self.b = T.truncdiv(inside, height)
        row = T.meta_var(self.b if plan.order == "n" else self.a)
        column = T.meta_var(self.a if plan.order == "n" else self.b)
        self.row0 = (row * plan.cluster_m + self.rank_m) * plan.tile_m
        self.column0 = (column * plan.cluster_n + self.rank_n) * plan.tile_n

    @T.inline
    def curve(self, first, inside, height):
        """Along a strip of squares: inside a whole square along Hilbert's curve, inside a cut one by columns.

        Level by level, two bits of the index choose a quadrant, in which the curve so far is turned.
        """
        side = T.meta_var(self.plan.group)
        square: T.let = T.truncdiv(inside, height * side)
        number: T.let = inside - square * height * side
        x: T.int32
        y: T.int32
        x = T.truncdiv(number, height)
        y = T.truncmod(number, height)
        if T.And(height == side, (square + 1) * side <= self.across):
            x = 0
            y = 0
            for level in T.unroll(side.bit_length() - 1):
                step: T.let = T.shift_right(number, 2 * level)
                right: T.let = T.bitwise_and(T.shift_right(step, 1), 1)
                up: T.let = T.bitwise_and(T.bitwise_xor(step, right), 1)
                if up == 0:
                    if right == 1:
                        x = T.shift_left(1, level) - 1 - x
                        y = T.shift_left(1, level) - 1 - y
                    other: T.let = x
                    turned: T.let = y
                    x = turned
                    y = other
                x = x + T.shift_left(right, level)
                y = y + T.shift_left(up, level)
        self.a = first + y
        self.b = square * side + x


@T.meta_class
class Stream(Tiles):
    """The tiles of one warpgroup where blocks take equal shares of the steps of k: stream-K.

    The first tiles' steps, numbered on from tile to tile, are cut into one range a block; the last tiles, whole waves of
    them, follow one a block. A block goes through its range from the end. Where a range ends inside a tile, the block
    leaves its sums to the block of the next range, which has that tile's last step: what a block waits for is the first
    that lower blocks compute. Source: Osama et al., Stream-K, PPoPP 2023 (arXiv:2301.03598).
    """

    def __init__(self, plan, block, rank, rows, columns, clusters, streamed):
        Tiles.__init__(self, plan, block, rank, rows, columns, clusters)
        self.streamed = streamed
        self.share = T.truncdiv(streamed * plan.steps + (plan.slots - 1), plan.slots)
        self.begin = T.local_scalar("int32")
        self.cursor = T.local_scalar("int32")
        self.next = T.local_scalar("int32")
        self.first_step = T.local_scalar("int32")
        self.count = T.local_scalar("int32")

    def first_k(self):
        return self.first_step * self.plan.tile_k

    def steps(self):
        return self.count

    @property
    def ends(self):
        return self.first_step + self.count == self.plan.steps

    @property
    def adds(self):
        return self.first_step > 0

    @property
    def lowest(self):
        return T.truncdiv(self.work * self.plan.steps, self.share)

    @T.inline
    def start(self, first):
        self.begin = T.min(self.block * self.share, self.streamed * self.plan.steps)
        self.cursor = T.min(self.begin + self.share, self.streamed * self.plan.steps)
        self.next = self.streamed + self.block + first
        self.take()

    @T.inline
    def advance(self, count):  # noqa: ARG002
        self.take()

    @T.inline
    def take(self):
        steps = T.meta_var(self.plan.steps)
        if self.cursor > self.begin:
            self.work = T.truncdiv(self.cursor - 1, steps)
            self.first_step = T.max(self.begin - self.work * steps, 0)
            self.count = self.cursor - self.work * steps - self.first_step
            self.cursor = self.work * steps + self.first_step
        else:
            self.work = self.next
            self.next = self.next + self.plan.slots
            self.first_step = 0
            self.count = steps
        self.locate()
