"""Kernel plan of a config: tiles, warpgroups, cluster, shared memory, loads and grid. Integers only, no TVM."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from tirgemm.config import Config
from tirgemm.errors import InvalidConfig
from tirgemm.families.common.alignment import access_width
from tirgemm.families.wgmma.planning import names
from tirgemm.families.wgmma.planning.alignment import pairs
from tirgemm.families.wgmma.planning.cluster import Cluster
from tirgemm.families.wgmma.planning.memory import SharedMemory, block_bytes
from tirgemm.families.wgmma.planning.operand_loads import OperandLoads
from tirgemm.families.wgmma.planning.orientation import Orientation
from tirgemm.families.wgmma.planning.staging import Staging
from tirgemm.families.wgmma.planning.tile import CORE_ROWS, Tile
from tirgemm.families.wgmma.planning.tile_grid import TileGrid
from tirgemm.families.wgmma.planning.warpgroups import MMA_M, Warpgroups
from tirgemm.gemm import DTYPE_BYTES, Gemm

_FLOAT_BYTES = 4
# What L2 holds: an H200's, the larger of Hopper's.
_L2_BYTES = 60 * 2**20
# Longest k of which stores are what bounds.
_SHORT_K = 256


@dataclass(frozen=True)
class Plan:
    """One config of one problem on ``units`` SMs, as the values that rules, device code and launch ask.

    Raises InvalidConfig for words and numbers that no kernel can have. What a kernel could have and this device or
    problem cannot is for the rules to say.
    """

    gemm: Gemm
    units: int
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    schedule: str
    resident: int
    cluster_m: int
    cluster_n: int
    swap: int
    split: int
    reduction: str
    load: str
    epilogue: str
    order: str
    group: int
    l2_promotion: int
    eviction: str

    def __post_init__(self) -> None:
        for knob in names.WORDS:
            reason = names.unknown_word(knob, getattr(self, knob))
            if reason:
                raise InvalidConfig(f"wgmma: {reason}")

    @property
    def config(self) -> Config:
        """The config that this is the plan of."""
        return Config("wgmma", tuple((name, getattr(self, name)) for name in KNOBS))

    @cached_property
    def orientation(self) -> Orientation:
        return Orientation(self.gemm, bool(self.swap))

    @cached_property
    def warpgroups(self) -> Warpgroups:
        return Warpgroups(self.tile_m, self.tile_n, self.schedule, self.gemm.acc == "f16")

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster(self.tile_n, self.cluster_m, self.cluster_n, self.split, self.reduction)

    @cached_property
    def left(self) -> Tile:
        """The left operand's tile. With few rows of it in all, only those are loaded: the rest of a wgmma reads what
        lies behind them."""
        k_major = self.orientation.k_major(self.orientation.left_operand)
        rows = self.tile_m
        if k_major and rows == MMA_M and self.cluster_n == 1:
            rows = min(rows, -(-self.orientation.most_rows // CORE_ROWS) * CORE_ROWS)
        return Tile(k_major, rows, self.tile_k, self.cluster_n)

    @cached_property
    def right(self) -> Tile:
        k_major = self.orientation.k_major(self.orientation.right_operand)
        return Tile(k_major, self.tile_n, self.tile_k, self.cluster_m)

    @cached_property
    def staging(self) -> Staging:
        used = not self.cluster.writes_partials and self.epilogue != names.DIRECT
        columns, consumers, vector = (
            self.cluster.stored_columns,
            self.warpgroups.consumers,
            access_width(self.gemm, "d"),
        )
        room = int(block_bytes(max(self.resident, 1))) - self._memory_with(0).nbytes
        size = DTYPE_BYTES[self.gemm.out]
        return Staging(columns, consumers, self.orientation.swapped, used, self.gemm.beta, vector, room, size)

    @cached_property
    def memory(self) -> SharedMemory:
        return self._memory_with(self.staging.nbytes)

    def _memory_with(self, staging_bytes: int) -> SharedMemory:
        exchanged = self.tile_m * self.tile_n * _FLOAT_BYTES if self.cluster.adds_parts else 0
        return SharedMemory(self.left, self.right, self.stages, staging_bytes, exchanged, self.warpgroups.pingpong)

    @cached_property
    def loads(self) -> OperandLoads:
        return OperandLoads(self.orientation, self.left, self.right, self.load, self.eviction)

    @cached_property
    def grid(self) -> TileGrid:
        return TileGrid(self.orientation, self.cluster, self.tile_m, self.tile_k, self.units * self.resident)

    @property
    def drops_d(self) -> bool:
        """Whether L2 drops D's lines first: where D is larger than L2, and k so short that stores are what bounds."""
        gemm = self.gemm
        return gemm.k <= _SHORT_K and gemm.m_min * gemm.n * gemm.batch * DTYPE_BYTES[gemm.out] > _L2_BYTES

    @property
    def pairs(self) -> bool:
        """Whether two neighbouring columns of D, C and the bias are one aligned word everywhere."""
        return pairs(self.gemm)


KNOBS = tuple(field.name for field in fields(Plan))[2:]
_last: tuple[Gemm, Config, Plan] | None = None


def plan(gemm: Gemm, config: Config, units: int) -> Plan:
    """The plan of ``config`` for ``gemm`` on ``units`` SMs. Rules ask for the same one time after time."""
    global _last
    last = _last
    if last is not None and last[0] is gemm and last[1] is config and last[2].units == units:
        return last[2]
    knobs: dict[str, Any] = dict(config.knobs)
    planned = Plan(gemm, units, **knobs)
    _last = (gemm, config, planned)
    return planned
