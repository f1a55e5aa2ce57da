"""How a config cuts the problem: tiles, warpgroups, registers, shared memory, work. Integers only, no TVM."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tirgemm import expr
from tirgemm.config import Config
from tirgemm.expr import Dim
from tirgemm.families.wgmma.tile import CORE_ROWS, ELEMENT_BYTES, SLAB_BYTES, SWIZZLES, Tile
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand, Range

WARPGROUP = 128
MMA_M = 64
COOPERATIVE, PINGPONG = "cooperative", "pingpong"
TMA, STAGED, DIRECT = "tma", "staged", "direct"

# Consumer warpgroups of a cooperative tile. 192 rows are three: two would have one and a half wgmmas each.
_CONSUMERS = {64: 1, 128: 2, 192: 3, 256: 2}
# Consumers -> registers of a producer's thread and of a consumer's: what fits the register file after setmaxnreg.
_REGISTERS = {1: (56, 240), 2: (56, 224), 3: (56, 152)}
# The same where two consumers need all they can get.
_MANY_ACCUMULATORS, _MOST_REGISTERS = 160, (40, 232)
# Registers of a consumer's thread beside its accumulators, and more for erf, for C's places beside D's, for a tile's
# coordinates where they take division by m, and for storing straight from the registers: what the assembler needs lest
# it spills, found by compiling.
_OTHER_REGISTERS, _ERF_REGISTERS, _ADDRESS_REGISTERS = 40, 32, 32
_COORDINATE_REGISTERS, _DIRECT_REGISTERS = 8, 40
# Tiles of D in shared memory a consumer: one fills while TMA stores the other.
_STAGING_BUFFERS = 2
_BARRIER_BYTES = 8
_WORD = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """One config of one problem on ``units`` SMs. Defined for every point of the space, valid or not."""

    gemm: Gemm
    units: int
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    schedule: str
    cluster_m: int
    cluster_n: int
    split: int
    epilogue: str
    order: str
    group: int
    l2_promotion: int

    @property
    def config(self) -> Config:
        """The config that this is the plan of."""
        return Config("wgmma", tuple((name, getattr(self, name)) for name in _KNOBS))

    # -- warpgroups ----------------------------------------------------------------------------

    @property
    def pingpong(self) -> bool:
        return self.schedule == PINGPONG

    @property
    def consumers(self) -> int:
        return 2 if self.pingpong else _CONSUMERS[self.tile_m]

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
    def most_accumulators(self) -> int:
        """Accumulators that leave a thread the registers that the rest of its work takes."""
        other = _OTHER_REGISTERS
        if self.split == 1 and self.gemm.act == "gelu":
            other += _ERF_REGISTERS
        if self.split == 1 and self.gemm.beta and self.epilogue == STAGED:
            other += _ADDRESS_REGISTERS
        if isinstance(self.gemm.m, Range) and self.gemm.batch > 1:
            other += _COORDINATE_REGISTERS
        if self.epilogue == DIRECT and not self.pingpong and self.blocks > 1:
            other += _DIRECT_REGISTERS
        return self.consumer_registers - other

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a producer's thread and of a consumer's."""
        return _MOST_REGISTERS if self.accumulators > _MANY_ACCUMULATORS else _REGISTERS[self.consumers]

    @property
    def producer_registers(self) -> int:
        return self.registers[0]

    @property
    def consumer_registers(self) -> int:
        return self.registers[1]

    # -- shared memory -------------------------------------------------------------------------

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def a(self) -> Tile:
        """A's tile. With few rows in all, only those are loaded: the rest of a wgmma reads what lies behind them."""
        k_major = not self.gemm.trans_a
        rows = self.tile_m
        if k_major and rows == MMA_M and self.cluster_n == 1:
            rows = min(rows, -(-self.gemm.m_max // CORE_ROWS) * CORE_ROWS)
        return Tile(k_major, rows, self.tile_k, self.cluster_n)

    @property
    def b(self) -> Tile:
        return Tile(self.gemm.trans_b, self.tile_n, self.tile_k, self.cluster_m)

    @property
    def stage_bytes(self) -> int:
        return self.a.nbytes + self.b.nbytes

    @property
    def chunk(self) -> int:
        """Columns of D that are staged in shared memory at a time: the widest swizzled row that divides the tile."""
        return next(c for c in (64, 32, 16) if self.tile_n % c == 0)

    @property
    def chunk_swizzle(self) -> int:
        return SWIZZLES[self.chunk * ELEMENT_BYTES]

    @property
    def staged(self) -> bool:
        """Whether D passes through shared memory."""
        return self.split == 1 and self.epilogue != DIRECT

    @property
    def staging_buffers(self) -> int:
        return _STAGING_BUFFERS

    @property
    def staging_bytes(self) -> int:
        return self.consumers * _STAGING_BUFFERS * MMA_M * self.chunk * ELEMENT_BYTES if self.staged else 0

    @property
    def slack_bytes(self) -> int:
        """Shared memory behind the last stage that a wgmma on fewer than 64 rows of A may read beyond the rest."""
        read = (MMA_M - self.a.extent) * SLAB_BYTES if self.a.extent < MMA_M else 0
        return max(0, read - self.stages * self.b.nbytes - self.staging_bytes)

    @property
    def barriers(self) -> int:
        return 2 * self.stages + (2 if self.pingpong else 0)

    @property
    def shared_bytes(self) -> int:
        tiles = self.stages * self.stage_bytes + self.staging_bytes + self.slack_bytes
        return tiles + self.barriers * _BARRIER_BYTES

    # -- work ----------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Steps of k in all."""
        return -(-self.gemm.k // self.tile_k)

    @property
    def split_steps(self) -> int:
        """Steps of k in one part of a split; the last part may have fewer."""
        return -(-self.steps // self.split)

    @property
    def tiles_m(self) -> Dim:
        """Rows of clusters of tiles."""
        return expr.ceildiv(self.gemm.m_dim, self.tile_m * self.cluster_m)

    @property
    def tiles_n(self) -> int:
        return -(-self.gemm.n // (self.tile_n * self.cluster_n))

    @property
    def slices(self) -> int:
        """Parts of k times matrices of the batch."""
        return self.split * self.gemm.batch

    @property
    def work(self) -> Dim:
        """Clusters' tiles in all."""
        return expr.make("mul", self.tiles_m, self.tiles_n * self.slices)

    @property
    def waves(self) -> Dim:
        """Tiles that the busiest cluster computes."""
        return expr.ceildiv(self.work, max(1, self.units // self.cluster))

    @property
    def clusters(self) -> Dim:
        """Clusters launched: as few as give the same waves, which leaves power to those that compute."""
        return expr.ceildiv(self.work, self.waves)

    @property
    def grid(self) -> Dim:
        return expr.make("mul", self.clusters, self.cluster)

    # -- outputs -------------------------------------------------------------------------------

    @property
    def pairs(self) -> bool:
        """Whether two neighbouring columns of D and C are one aligned word everywhere."""
        return pairs(self.gemm)

    @property
    def pitch(self) -> int:
        """Columns of a row of the partial sums."""
        return -(-self.gemm.n // _WORD) * _WORD

    @property
    def partial_elements(self) -> Dim:
        """fp32 numbers of the partial sums of every part: (split, batch, m, pitch)."""
        return expr.make("mul", self.gemm.m_dim, self.slices * self.pitch)


_KNOBS = tuple(field.name for field in fields(Plan))[2:]


def plan(gemm: Gemm, config: Config, units: int) -> Plan:
    """The cut that ``config`` means for ``gemm`` on ``units`` SMs."""
    return Plan(gemm, units, **dict(config.knobs))  # type: ignore[arg-type]


def pairs(gemm: Gemm) -> bool:
    """Whether every even column of C and D starts a word of two elements that is aligned and inside the row."""
    size = 2 * DTYPE_BYTES[gemm.out]
    return gemm.n % 2 == 0 and gemm.align % size == 0 and all(_multiple(gemm, op, 2) for op in _written(gemm))


def stored_by_tma(gemm: Gemm) -> bool:
    """Whether TMA can store D: 16-bit, rows and matrices 16 bytes apart."""
    size = DTYPE_BYTES[gemm.out]
    return size == ELEMENT_BYTES and gemm.align % 16 == 0 and _multiple(gemm, "d", 16 // size)


def loaded_by_tma(gemm: Gemm, operand: Operand) -> bool:
    """Whether TMA can load A or B: rows and matrices 16 bytes apart."""
    return _multiple(gemm, operand, 16 // DTYPE_BYTES[gemm.dtype])


def _written(gemm: Gemm) -> tuple[Operand, ...]:
    return ("d", "c") if gemm.beta else ("d",)


def _multiple(gemm: Gemm, operand: Operand, of: int) -> bool:
    dims = [gemm.leading(operand), *([gemm.batch_stride(operand)] if gemm.batch > 1 else [])]
    return all(_divides(of, dim) for dim in dims)


def _divides(by: int, dim: Dim) -> bool:
    """Whether ``by`` divides ``dim`` at every m: a product of which one factor is divisible will do."""
    if isinstance(dim, int):
        return dim % by == 0
    return dim.op == "mul" and (_divides(by, dim.left) or _divides(by, dim.right))
