"""Grid of tiles: steps of k, tiles of all outputs, and the persistent blocks that compute them in waves."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm import expr
from tirgemm.errors import InvalidConfig
from tirgemm.expr import Dim
from tirgemm.families.wgmma.planning import names
from tirgemm.families.wgmma.planning.cluster import Cluster
from tirgemm.families.wgmma.planning.orientation import Orientation
from tirgemm.hardware import clusters_at_once

_WORD = 4


@dataclass(frozen=True, slots=True)
class TileGrid:
    """Work of a launch. ``slots``: blocks that run at once. Raises InvalidConfig for sides of a tile below 1."""

    orientation: Orientation
    cluster: Cluster
    tile_m: int
    tile_k: int
    slots: int

    def __post_init__(self) -> None:
        for name, value in (("tile_m", self.tile_m), ("tile_n", self.cluster.tile_n), ("tile_k", self.tile_k)):
            if value < 1:
                raise InvalidConfig(f"wgmma: {name}={value} is less than 1")

    @property
    def steps(self) -> int:
        """Steps of k in all."""
        return -(-self.orientation.gemm.k // self.tile_k)

    @property
    def split_steps(self) -> int:
        """Steps of k in one part of a split; the last part may have fewer."""
        return -(-self.steps // self.cluster.split)

    @property
    def tile_steps(self) -> int:
        """Steps of k that a block takes for a tile."""
        return self.split_steps if self.cluster.parts > 1 else self.steps

    @property
    def tiles_m(self) -> Dim:
        """Rows of clusters of tiles."""
        return expr.ceildiv(self.orientation.rows, self.tile_m * self.cluster.cluster_m)

    @property
    def tiles_n(self) -> Dim:
        """Columns of clusters of tiles."""
        return expr.ceildiv(self.orientation.columns, self.cluster.tile_n * self.cluster.cluster_n)

    @property
    def slices(self) -> int:
        """Times that the tiles of a matrix follow each other: for each of the batch, and of the parts of k."""
        return self.orientation.gemm.batch * (self.cluster.split if self.cluster.writes_partials else 1)

    @property
    def work(self) -> Dim:
        """Clusters' tiles in all."""
        return expr.make("mul", expr.make("mul", self.tiles_m, self.tiles_n), self.slices)

    @property
    def waves(self) -> Dim:
        """Tiles that the busiest cluster computes."""
        return expr.ceildiv(self.work, max(1, clusters_at_once(self.slots, min(self.cluster.size, names.MAX_CLUSTER))))

    @property
    def clusters(self) -> Dim:
        """Clusters launched: as few as give the same waves, which leaves power to those that compute."""
        return self.work if self.cluster.adds_parts else expr.ceildiv(self.work, self.waves)

    @property
    def blocks(self) -> Dim:
        return expr.make("mul", self.clusters, self.cluster.size)

    @property
    def pitch(self) -> int:
        """Columns of a row of the partial sums."""
        return -(-self.orientation.gemm.n // _WORD) * _WORD

    @property
    def partial_elements(self) -> Dim:
        """fp32 numbers of the partial sums of every part: (split, batch, m, pitch)."""
        return expr.make("mul", self.orientation.gemm.m_dim, self.slices * self.pitch)
