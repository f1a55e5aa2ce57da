"""Warpgroups of a block: one producer, and the consumers with their rows of the tile and their accumulators."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.errors import InvalidConfig
from tirgemm.families.wgmma.planning import names

WARPGROUP = 128
MMA_M = 64

# Consumer warpgroups of a cooperative tile. 192 rows are three: two would have one and a half wgmmas each.
CONSUMERS = {64: 1, 128: 2, 192: 3, 256: 2}


@dataclass(frozen=True, slots=True)
class Warpgroups:
    """Division of a tile among consumers: by rows, or in ping-pong whole tiles by turns. ``half``: sums are fp16, two
    of them in a register. Raises InvalidConfig for rows of a tile that consumers cannot divide."""

    tile_m: int
    tile_n: int
    schedule: str
    half: bool

    def __post_init__(self) -> None:
        if self.tile_m not in CONSUMERS:
            raise InvalidConfig(f"wgmma: tile_m={self.tile_m} is none of {', '.join(map(str, CONSUMERS))}")

    @property
    def pingpong(self) -> bool:
        return self.schedule == names.PINGPONG

    @property
    def consumers(self) -> int:
        return 2 if self.pingpong else CONSUMERS[self.tile_m]

    @property
    def threads(self) -> int:
        return WARPGROUP * (self.consumers + 1)

    @property
    def consumer_rows(self) -> int:
        """Rows of the tile that one consumer computes: in ping-pong each has tiles of its own."""
        return self.tile_m if self.pingpong else self.tile_m // self.consumers

    @property
    def blocks(self) -> int:
        """wgmmas of 64 rows that cover a consumer's rows."""
        return self.consumer_rows // MMA_M

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread."""
        return self.blocks * self.tile_n // 2

    @property
    def accumulator_registers(self) -> int:
        return self.accumulators // 2 if self.half else self.accumulators
