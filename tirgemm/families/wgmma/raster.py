# mypy: ignore-errors
# ruff: noqa: N812
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""Which tiles a block computes, in which order."""

from __future__ import annotations

from tvm.script import tirx as T


@T.meta_class
class Tiles:
    """The tiles of one warpgroup: every so many in an order that lets neighbours in time share rows or columns.

    Slices (parts of k, then matrices of the batch) follow each other; within one, groups of ``group`` tiles along
    ``order`` are crossed along the other dimension. ``m0``, ``n0``: the tile's first row and column.
    """

    def __init__(self, plan, rank, rows, clusters):
        self.plan = plan
        self.rank_m = rank if plan.cluster_m > 1 else 0
        self.rank_n = rank if plan.cluster_n > 1 else 0
        columns = plan.tiles_n
        self.clusters = clusters
        self.total = rows * (columns * plan.slices)
        self.along, self.across = (rows, columns) if plan.order == "m" else (columns, rows)
        self.whole = isinstance(self.along, int) and self.along % plan.group == 0
        self.work = T.local_scalar("int32")
        self.m0 = T.local_scalar("int32")
        self.n0 = T.local_scalar("int32")
        self.slice = T.local_scalar("int32")

    def valid(self):
        return self.work < self.total

    @property
    def matrix(self):
        """Which matrix of the batch."""
        return T.truncmod(self.slice, self.plan.gemm.batch) if self.plan.split > 1 else self.slice

    def first_k(self):
        """Where this part of k starts."""
        if self.plan.split == 1:
            return 0
        return T.truncdiv(self.slice, self.plan.gemm.batch) * (self.plan.split_steps * self.plan.tile_k)

    def steps(self):
        """Steps of k in this part."""
        plan = self.plan
        if plan.split == 1:
            return plan.steps
        if plan.split_steps * plan.split == plan.steps:
            return plan.split_steps
        return T.min(plan.split_steps, plan.steps - T.truncdiv(self.slice, plan.gemm.batch) * plan.split_steps)

    @T.inline
    def start(self, first):
        self.work = first
        self.locate()

    @T.inline
    def advance(self, count):
        self.work = self.work + count * self.clusters
        self.locate()

    @T.inline
    def locate(self):
        plan = T.meta_var(self.plan)
        slice_tiles = T.meta_var(self.along * self.across)
        if plan.slices > 1:
            self.slice = T.truncdiv(self.work, slice_tiles)
        else:
            self.slice = 0
        tile: T.let = T.truncmod(self.work, slice_tiles) if plan.slices > 1 else self.work
        first: T.let = T.truncdiv(tile, self.across * plan.group) * plan.group
        inside: T.let = tile - first * self.across
        # The last group may be lower.
        height = T.meta_var(plan.group if self.whole else T.min(self.along - first, plan.group))
        a: T.let = first + T.truncmod(inside, height)
        b: T.let = T.truncdiv(inside, height)
        row = T.meta_var(a if plan.order == "m" else b)
        column = T.meta_var(b if plan.order == "m" else a)
        self.m0 = (row * plan.cluster_m + self.rank_m) * plan.tile_m
        self.n0 = (column * plan.cluster_n + self.rank_n) * plan.tile_n
