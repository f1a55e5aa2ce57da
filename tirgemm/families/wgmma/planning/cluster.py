"""Cluster of blocks: those that share tiles by multicast, or that add the parts of k of one tile."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.errors import InvalidConfig
from tirgemm.families.wgmma.planning import names

# Columns of a tile that one wgmma fragment of four accumulators a thread spans.
FRAGMENT_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Cluster:
    """Blocks of a cluster, and where parts of a split over k are added. Raises InvalidConfig for no blocks."""

    tile_n: int
    cluster_m: int
    cluster_n: int
    split: int
    reduction: str

    def __post_init__(self) -> None:
        for knob in ("cluster_m", "cluster_n", "split"):
            if getattr(self, knob) < 1:
                raise InvalidConfig(f"wgmma: {knob}={getattr(self, knob)} is less than 1")

    @property
    def adds_parts(self) -> bool:
        """Whether the blocks of a cluster compute parts of one tile and add them."""
        return self.split > 1 and self.reduction == names.CLUSTER

    @property
    def writes_partials(self) -> bool:
        """Whether partial sums leave for a second kernel."""
        return self.split > 1 and self.reduction == names.KERNEL

    @property
    def adds_in_turn(self) -> bool:
        """Whether one block computes all parts of a tile, one after the other, and adds them."""
        return self.split > 1 and self.reduction == names.BLOCK

    @property
    def parts(self) -> int:
        """Parts of a tile that different blocks compute side by side."""
        return 1 if self.adds_in_turn else self.split

    @property
    def size(self) -> int:
        return self.split if self.adds_parts else self.shared_by

    @property
    def shared_by(self) -> int:
        """Blocks of a cluster that shares tiles by multicast; 1 where none does."""
        return self.cluster_m * self.cluster_n

    @property
    def shares_both(self) -> bool:
        """Whether tiles of both operands are shared, each by a row or a column of the cluster's blocks."""
        return self.cluster_m > 1 and self.cluster_n > 1

    @property
    def readers(self) -> int:
        """Blocks of a cluster that read what one of them loads: itself, and those of its row and of its column."""
        return self.cluster_m + self.cluster_n - 1

    @property
    def reducers(self) -> int:
        """Blocks of a cluster that add the parts of a tile, each of an equal share of its columns."""
        return next(r for r in range(self.size, 0, -1) if self.tile_n % (r * FRAGMENT_COLUMNS) == 0)

    @property
    def stored_columns(self) -> int:
        """Columns of a tile that one block stores."""
        return self.tile_n // self.reducers if self.adds_parts else self.tile_n
