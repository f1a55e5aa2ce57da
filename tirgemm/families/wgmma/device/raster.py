# mypy: ignore-errors
# ruff: noqa: N812
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""Tile scheduler of a persistent block: its tiles, their raster order, and the range of k of each."""

from __future__ import annotations

from tvm.script import tirx as T


@T.meta_class
class Tiles:
    """The tiles of one warpgroup: every so many in an order that lets neighbours in time share rows or columns.

    Slices (parts of k that a second kernel adds, then matrices of the batch) follow each other; within one, groups of
    ``group`` tiles along ``order`` are crossed along the other dimension. ``row0``, ``column0``: the tile's first row
    and column, of D or, swapped, of D transposed.
    """

    def __init__(self, plan, block, rank, rows, columns, clusters):
        self.plan, self.block, self.rank = plan, block, rank
        # Blocks of a cluster are numbered down its columns of tiles first.
        both = plan.cluster.shares_both
        self.rank_m = (T.truncmod(rank, plan.cluster_m) if both else rank) if plan.cluster_m > 1 else 0
        self.rank_n = (T.truncdiv(rank, plan.cluster_m) if both else rank) if plan.cluster_n > 1 else 0
        grid = plan.grid
        rows, columns, self.clusters = (
            known if isinstance(known, int) else value
            for known, value in ((grid.tiles_m, rows), (grid.tiles_n, columns), (grid.clusters, clusters))
        )
        self.slice_tiles = rows * columns
        self.total = self.slice_tiles * plan.grid.slices
        self.along, self.across = (columns, rows) if plan.order == "n" else (rows, columns)
        self.whole = plan.group == 1 or (isinstance(self.along, int) and self.along % plan.group == 0)
        # Tiles along m, where that is known only at the call, and those along n then.
        self.along_m = not isinstance(self.along, int)
        self.at_the_call, self.line = (self.along, self.across) if self.along_m else (self.across, self.along)
        divides = not self.along_m or plan.group > 1 or plan.grid.slices > 1
        self.asks = divides and not isinstance(self.at_the_call, int)
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
        return T.truncmod(self.slice, self.plan.gemm.batch) if self.plan.cluster.writes_partials else self.slice

    @property
    def part(self):
        """Which part of k."""
        return self.rank if self.plan.cluster.adds_parts else T.truncdiv(self.slice, self.plan.gemm.batch)

    def first_k(self):
        """Where this part of k starts."""
        if self.plan.cluster.parts == 1:
            return 0
        return self.part * (self.plan.grid.split_steps * self.plan.tile_k)

    def steps(self):
        """Steps of k in this part."""
        plan = self.plan
        if plan.cluster.parts == 1:
            return plan.grid.steps
        if plan.grid.split_steps * plan.split == plan.grid.steps:
            return plan.grid.split_steps
        return T.min(plan.grid.split_steps, plan.grid.steps - self.part * plan.grid.split_steps)

    @T.inline
    def start(self, first):
        self.work = self.block + first
        self.locate()

    @T.inline
    def advance(self, count):
        self.work = self.work + count * self.clusters
        self.locate()

    @T.inline
    def locate(self):
        plan = T.meta_var(self.plan)
        if not self.asks:
            self.cross()
        # Where m fits one tile, no division by what is known only at the call: 200 clocks before the first load.
        elif self.at_the_call == 1:
            self.follow()
        else:
            self.cross()
        row = T.meta_var(self.b if plan.order == "n" else self.a)
        column = T.meta_var(self.a if plan.order == "n" else self.b)
        self.row0 = (row * plan.cluster_m + self.rank_m) * plan.tile_m
        self.column0 = (column * plan.cluster_n + self.rank_n) * plan.tile_n

    @T.inline
    def cross(self):
        """Groups of tiles along one dimension, crossed along the other."""
        plan = T.meta_var(self.plan)
        if plan.grid.slices > 1:
            self.slice = T.truncdiv(self.work, self.slice_tiles)
        else:
            self.slice = 0
        tile: T.let = T.truncmod(self.work, self.slice_tiles) if plan.grid.slices > 1 else self.work
        first: T.let = T.truncdiv(tile, self.across * plan.group) * plan.group
        inside: T.let = tile - first * self.across
        # The last group may be lower.
        height = T.meta_var(plan.group if self.whole else T.min(self.along - first, plan.group))
        self.a = first + T.truncmod(inside, height)
        self.b = T.truncdiv(inside, height)

    @T.inline
    def follow(self):
        """One tile behind the other along n."""
        plan = T.meta_var(self.plan)
        tile = T.meta_var(T.truncmod(self.work, self.line) if plan.grid.slices > 1 else self.work)
        self.slice = T.truncdiv(self.work, self.line) if plan.grid.slices > 1 else 0
        self.a = 0 if self.along_m else tile
        self.b = tile if self.along_m else 0
